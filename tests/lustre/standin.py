"""The stand-in for Lustre: mounted file systems that look like Lustre to the programs that a test runs.

What those programs see is told by ``shown``, which asks for it as they would, and reads the answer by itself: nothing
here comes from the programs under test.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.lustre.asking import asked
from tests.support.preload import compiled

HERE = Path(__file__).parent
PARTS = ("requests.c", "attributes.c", "layouts.c", "stored.c", "targets.c", "llapi.c", "llapi_files.c", "swap.c")
"""Beside standin.c."""

STORED = "user.standin.lov"
"""Where the layout is kept: what a test writes there, without the stand-in, a program takes for a layout."""
SERVER = "user.standin.mdt"
"""The number of an item's MDT, in digits. A test may set it; what is made in a directory is where that is. A striped
directory has several, with commas between."""

ORACLE = ("--filter=-x user.standin.*", "--filter=-x lustre.*", "--filter=-x trusted.*", "--modify-window=0")
"""Options for an rsync without the stand-in that compares copies: layouts are not its own, and times are floored."""

DELAYED = 0o20400
"""O_LOV_DELAY_CREATE."""
V1, V3, SPECIFIC, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD50BD0, 0x0BD60BD0
RAID0, ON_MDT, OVERSTRIPING, RELEASED = 1, 0x100, 0x200, 0x80000000
STALE, INITIALISED, EXTENSION = 1, 0x10, 0x40
ANY = 0xFFFF
"""Of a count: all OSTs. Of an offset: Lustre chooses."""
END = 2**64 - 1

_PLAIN = struct.Struct("<IIQQIHH")
_POOL = struct.Struct("<16s")
_OBJECT = struct.Struct("<QQII")
_HEADER = struct.Struct("<IIIHHH14x")
_ENTRY = struct.Struct("<IIQQII16x")


def library(*, old: bool = False) -> Path:
    """Both what is preloaded and liblustreapi; the ``old`` one lacks what came with Lustre 2.14 and later."""
    flags = ["-DOLD_LIBRARY"] if old else []
    others = [str(HERE / part) for part in PARTS]
    return compiled(HERE / "standin.c", "-shared", "-fPIC", *flags, *others, "-Wl,--no-as-needed", "-ldl", "-lpthread")


def environment(
    *mounts: Path, osts: int = 8, pools: str = "", mdts: int = 1, log: Path | None = None, refuse: Collection[str] = ()
) -> dict[str, str]:
    """For programs to which ``mounts`` are Lustre. ``pools`` are like ``fast:0,1;slow:4``.

    Words in ``refuse``: ``setxattr``, ``getxattr`` (of files), ``grouplock``, ``mdtidx``, ``swap``, ``lease`` and
    ``llapi`` (to make files by the library) fail. ``locked``: others never give back their locks. ``quiet``: somebody
    writes a byte to each file as soon as its group lock is given back. ``oldlib`` is for an old library. ``ost3``: that
    OST takes no new files, as with max_create_count=0, or when it is full.
    """
    made = str(library(old="oldlib" in refuse))
    reported = {
        "LD_PRELOAD": made,
        "PCOPY_LIBLUSTREAPI": made,
        "LUSTRE_STANDIN": ":".join(map(str, mounts)),
        "LUSTRE_STANDIN_OSTS": str(osts),
        "LUSTRE_STANDIN_POOLS": pools,
        "LUSTRE_STANDIN_MDTS": str(mdts),
        "LUSTRE_STANDIN_REFUSE": ",".join(refuse),
    }
    if log is not None:
        log.touch()
        log.chmod(0o666)  # other users' programs write to it, too
        reported["LUSTRE_STANDIN_LOG"] = str(log)
    return reported


class Event(NamedTuple):
    """A line of the log: ``call`` is write, create, setlayout, keptlayout, setdefault, removedefault, settrusted,
    grouplock, groupunlock, fsync, syncfs, or broken where the file system below refused something."""

    process: int
    call: str
    numbers: dict[str, int]
    """Of them ``ino`` is there always. ``ost`` is -1 for the MDT."""
    text: str
    """What follows: the path of create, the name of settrusted."""


def events(log: Path, *calls: str) -> list[Event]:
    """All, or only ``calls``."""
    found = [_event(line) for line in log.read_text(errors="surrogateescape").split("\n") if line]
    return [event for event in found if not calls or event.call in calls]


def _event(line: str) -> Event:
    process, call, *words = line.split(" ")
    numbers: dict[str, int] = {}
    while words and (pair := words[0].partition("="))[1] and pair[2].lstrip("-").isdigit():
        numbers[pair[0]] = int(pair[2])
        del words[0]
    return Event(int(process), call, numbers, " ".join(words))


@dataclass(frozen=True)
class Component:
    """``osts`` are those of its objects, in their order; none where it has none (yet)."""

    count: int = ANY
    size: int = 0
    pool: str = ""
    osts: tuple[int, ...] = ()
    pattern: int = RAID0
    offset: int = ANY
    start: int = 0
    end: int = END
    flags: int = 0
    number: int = 0


@dataclass(frozen=True)
class Shown:
    """A layout. What it says of its first component is that of the whole where it is not composite."""

    components: tuple[Component, ...]
    composite: bool = False
    mirrors: int = 1

    @property
    def count(self) -> int:
        return self.components[0].count

    @property
    def size(self) -> int:
        return self.components[0].size

    @property
    def pool(self) -> str:
        return self.components[0].pool

    @property
    def osts(self) -> tuple[int, ...]:
        return self.components[0].osts


def parsed(blob: bytes) -> Shown:
    if int.from_bytes(blob[:4], "little") != COMPOSITE:
        return Shown((_component(blob),))
    _, size, _, _, entries, others = _HEADER.unpack_from(blob)
    assert size == len(blob), f"a layout of {size} bytes has {len(blob)}"
    found = []
    for number in range(entries):
        name, flags, start, end, offset, length = _ENTRY.unpack_from(blob, _HEADER.size + number * _ENTRY.size)
        found.append(_component(blob[offset : offset + length], start, end, flags, name))
    return Shown(tuple(found), True, others + 1)


def _component(blob: bytes, start: int = 0, end: int = END, flags: int = 0, number: int = 0) -> Component:
    magic, pattern, _, _, size, count, offset = _PLAIN.unpack_from(blob)
    assert magic in (V1, V3, SPECIFIC), hex(magic)
    place, pool = _PLAIN.size, ""
    if magic != V1:
        (name,) = _POOL.unpack_from(blob, place)
        place, pool = place + _POOL.size, name.rstrip(b"\0").decode()
    osts = tuple(one[3] for one in _OBJECT.iter_unpack(blob[place:]))
    return Component(count, size, pool, osts, pattern, offset, start, end, flags, number)


def plain(count: int, size: int = 0, pool: str = "", offset: int = ANY, pattern: int = RAID0) -> bytes:
    """A wish, as an attribute."""
    head = _PLAIN.pack(V3 if pool else V1, pattern, 0, 0, size, count, offset)
    return head + (_POOL.pack(pool.encode()) if pool else b"")


def composite(*wishes: tuple[int, bytes], mirrors: int = 1, flags: Mapping[int, int] | None = None) -> bytes:
    """Of where each component ends, and what ``plain`` gives for it. With ``mirrors`` each begins anew after ``END``.

    ``flags`` of some components, by their place.
    """
    at = _HEADER.size + len(wishes) * _ENTRY.size
    entries, bodies, start = b"", b"", 0
    for place, (end, body) in enumerate(wishes):
        entries += _ENTRY.pack(0, (flags or {}).get(place, 0), start, end, at + len(bodies), len(body))
        bodies += body
        start = 0 if end == END else end
    size = at + len(bodies)
    return _HEADER.pack(COMPOSITE, size, 0, 0, len(wishes), mirrors - 1) + entries + bodies


def shown(path: Path, seen: Mapping[str, str]) -> Shown | None:
    """The layout of a file, or the default of a directory, as a program sees it; None without."""
    reported = asked(
        "try:\n    print(os.getxattr(sys.argv[1], 'lustre.lov').hex())\n"
        "except OSError as error:\n    assert error.errno == errno.ENODATA, error",
        path,
        seen=seen,
    )
    return parsed(bytes.fromhex(reported)) if reported else None
