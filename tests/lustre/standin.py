"""The stand-in for Lustre: mounted file systems that look like Lustre to the programs that a test runs.

``shown`` returns the layouts that those programs see. It reads and parses them independently: no code of the programs
under test is used here.
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
"""Source files in addition to standin.c."""

STORED = "user.standin.lov"
"""The attribute in which a layout is stored: a value that a test writes there, without the stand-in, appears as a
layout."""
SERVER = "user.standin.mdt"
"""The MDT number of an item, in digits. A test may set it; new items get that of their directory. A striped directory
has several, separated by commas."""

ORACLE = ("--filter=-x user.standin.*", "--filter=-x lustre.*", "--filter=-x trusted.*", "--modify-window=0")
"""Options for an rsync without the stand-in that compares copies: layouts are excluded, and times are rounded down."""

DELAYED = 0o20400
"""O_LOV_DELAY_CREATE."""
V1, V3, SPECIFIC, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD50BD0, 0x0BD60BD0
RAID0, ON_MDT, OVERSTRIPING, RELEASED = 1, 0x100, 0x200, 0x80000000
STALE, INITIALISED, EXTENSION = 1, 0x10, 0x40
ANY = 0xFFFF
"""As a stripe count: all OSTs. As an offset: chosen by Lustre."""
END = 2**64 - 1

_PLAIN = struct.Struct("<IIQQIHH")
_POOL = struct.Struct("<16s")
_OBJECT = struct.Struct("<QQII")
_HEADER = struct.Struct("<IIIHHH14x")
_ENTRY = struct.Struct("<IIQQII16x")


def library(*, old: bool = False) -> Path:
    """Return the library that is preloaded and used as liblustreapi; the ``old`` one lacks functions of Lustre 2.14 and
    later."""
    flags = ["-DOLD_LIBRARY"] if old else []
    others = [str(HERE / part) for part in PARTS]
    return compiled(HERE / "standin.c", "-shared", "-fPIC", *flags, *others, "-Wl,--no-as-needed", "-ldl", "-lpthread")


def environment(
    *mounts: Path, osts: int = 8, pools: str = "", mdts: int = 1, log: Path | None = None, refuse: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment in which ``mounts`` look like Lustre. ``pools`` are like ``fast:0,1;slow:4``.

    Words in ``refuse``: ``setxattr``, ``getxattr`` (of files), ``grouplock``, ``mdtidx``, ``swap``, ``lease`` and
    ``llapi`` (creation of files by the library) fail. ``locked``: other processes never release their locks. ``quiet``:
    a byte is written to each file as soon as its group lock is released. ``oldlib``: use the old library. ``ost3``:
    this OST accepts no new files, as with max_create_count=0, or when it is full.
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
    grouplock, groupunlock, fsync, syncfs, or broken if the underlying file system refused an operation."""

    process: int
    call: str
    numbers: dict[str, int]
    """``ino`` is always present. ``ost`` is -1 for the MDT."""
    text: str
    """The rest of the line: the path of create, the name of settrusted."""


def events(log: Path, *calls: str) -> list[Event]:
    """Return all events, or only those of ``calls``."""
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
    """A component; ``osts`` are the OSTs of its objects, in order; empty if it has none (yet)."""

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
    """A layout. The properties are those of the first component, which is the only one if the layout is not
    composite."""

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
    """Return the attribute value that requests a simple layout."""
    head = _PLAIN.pack(V3 if pool else V1, pattern, 0, 0, size, count, offset)
    return head + (_POOL.pack(pool.encode()) if pool else b"")


def composite(*wishes: tuple[int, bytes], mirrors: int = 1, flags: Mapping[int, int] | None = None) -> bytes:
    """Return a composite layout of components, each given by its end and its ``plain`` layout. With ``mirrors``, each
    mirror begins after ``END``.

    ``flags`` of some components, by their index.
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
    """Return the layout of a file, or the default layout of a directory, as a program sees it; None if there is
    none."""
    reported = asked(
        "try:\n    print(os.getxattr(sys.argv[1], 'lustre.lov').hex())\n"
        "except OSError as error:\n    assert error.errno == errno.ENODATA, error",
        path,
        seen=seen,
    )
    return parsed(bytes.fromhex(reported)) if reported else None
