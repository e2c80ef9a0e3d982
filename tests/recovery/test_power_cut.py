"""A loss of power on real file systems: the image is copied while its metadata are on it and data are in memory only.

The program is killed. Another file is then synced, which brings the journal to storage with all names and sizes, but
not the data of other files. Each file that has its final name, size and time on the copy of the image must have its
contents, too: the next run would keep it. So the same command, given again, must make the copy whole.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from pcopy.fast_named_tuple import NamedTuple
from tests.support import loops
from tests.support.faults import require_strace
from tests.support.filesystems import mounted, scratch

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
BIN = ROOT / "bin"
FAILED = 1
STOPPED = 75
REFUSED = 2


def _sparse(path: Path, size: int, *stretches: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for start, length in stretches:
            os.pwrite(file.fileno(), random.Random(str(path)).randbytes(length), start)
        file.truncate(size)
    os.utime(path, (10**9, 10**9))


def small_sparse(area: Path) -> list[str]:
    for number in range(20):
        _sparse(area / f"source/file{number}", 256 << 10, (64 << 10, 64 << 10))
    return [str(area / "source") + "/"]


def large_sparse(area: Path) -> list[str]:
    for number in range(3):
        _sparse(area / f"source/file{number}", 24 * MIB, (MIB, 4 * MIB), (20 * MIB, MIB))
    return [str(area / "source") + "/"]


def dense_split(area: Path) -> list[str]:
    for number in range(2):
        _sparse(area / f"source/file{number}", 24 * MIB, (0, 24 * MIB))
    return ["--chunk-size", "8M", str(area / "source") + "/"]


def linked_sparse(area: Path) -> list[str]:
    words = small_sparse(area)
    for number in range(20):
        os.link(area / f"source/file{number}", area / f"source/link{number}")
    return words


def compressed(area: Path) -> list[str]:
    """A file that all ranks compress, and small ones."""
    for number in range(4):
        _sparse(area / f"source/file{number}", 100 << 10, (0, 50 << 10))
    for number in range(4, 6):
        _sparse(area / f"source/file{number}", 24 * MIB, (0, 6 * MIB))
    return ["--compress", "zstd", "--chunk-size", "4M", str(area / "source") + "/"]


def decompressed(area: Path) -> list[str]:
    """Decompressed files with a hole; they have the names of the originals."""
    for number, size in enumerate((MIB, MIB, 24 * MIB)):
        _sparse(area / f"source/file{number}", size, (0, size // 4))
    packed = area / "packed"
    program = [sys.executable, str(BIN / "pcopy"), "-q", "-n", "1", "-T", "--compress", "zstd", str(area / "source")]
    subprocess.run([*program, str(packed)], check=True)
    return ["--decompress", "--chunk-size", "4M", str(packed) + "/"]


def archived(area: Path) -> list[str]:
    dense_split(area)
    _sparse(area / "source/sparse", MIB, (64 << 10, 64 << 10))
    names = sorted(path.name for path in (area / "source").iterdir())
    tar = ["tar", "--sparse", "--format=posix", "-C", str(area / "source"), "-cf", str(area / "archive.tar")]
    subprocess.run([*tar, *names], check=True)
    return ["-x", "-f", str(area / "archive.tar"), "-C"]


def broadcast(area: Path) -> list[str]:
    small_sparse(area)
    _sparse(area / "source/large", 8 * MIB, (0, MIB), (5 * MIB, MIB))
    return [str(path) for path in sorted((area / "source").iterdir())]


def written_over(area: Path) -> list[str]:
    """Existing files of the same sizes are written over; ``prepared`` makes them."""
    large_sparse(area)
    return ["--inplace", *dense_split(area)]


def prepared(case: Case, area: Path, target: Path) -> None:
    """Make what is in the target before the program is run."""
    if case.program in ("ptar", "pbcast"):
        target.mkdir()
    if case.make is written_over:
        target.mkdir()
        for path in (area / "source").iterdir():
            (target / path.name).write_bytes(bytes(path.stat().st_size))
        os.sync()


class Case(NamedTuple):
    """``make`` makes the source below a directory, and returns the words of the command before the destination."""

    program: str
    make: Callable[[Path], list[str]]
    words: tuple[str, ...] = ()
    kills: tuple[str, ...] = ("syncfs", "renameat,renameat2")
    """At which system calls the program is killed."""
    again: bool = True
    """True if the program keeps what is unchanged: the same command is given again."""

    def __str__(self) -> str:
        return "-".join((self.program, self.make.__name__, *(word.strip("-") for word in self.words)))


NAMED_LAST = ("renameat,renameat2",)

CASES = (
    *(Case("psync", make) for make in (small_sparse, large_sparse, dense_split, linked_sparse,
                                       written_over)),
    *(Case("pcopy", make, ("--existing", "changed")) for make in (small_sparse, dense_split, compressed, decompressed)),
    *(Case("pcopy", make, ("--existing", policy), NAMED_LAST) for policy in ("newer", "skip") for make in
      (small_sparse, dense_split)),
    *(Case("pcopy", make, again=False) for make in (small_sparse, large_sparse, dense_split, compressed, decompressed)),
    Case("ptar", archived, again=False),
    Case("pbcast", broadcast, again=False),
)  # fmt: skip

WITHOUT_CASES = {
    "pverify": "it writes to no target",
    "pwalk": "it writes to no target",
    "prm": "it makes no file",
    "pchmod": "it makes no file",
    "pstripe": "it syncs each copy and reads it back before the layouts are exchanged; it needs Lustre",
    "pdbench": "it removes what it makes",
    "pcopy-tar": "it is ptar under another name",
}
"""Programs of which no file can look whole after a loss of power and not be, and why."""


def test_each_program_has_cases_or_a_reason() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    scripts = settings["options.entry_points"]["console_scripts"].split("\n")
    programs = {line.partition("=")[0].strip() for line in scripts if line}
    assert {case.program for case in CASES} | WITHOUT_CASES.keys() == programs
    assert not {case.program for case in CASES} & WITHOUT_CASES.keys()


def _run(
    case: Case, words: list[str], target: Path, state: Path, backend: str, wrap: list[str]
) -> subprocess.CompletedProcess[str]:
    more = [] if case.program == "ptar" else ["-q"]
    ranks = [] if case.program == "pbcast" else ["-n", "2"]
    command = [*wrap, sys.executable, str(BIN / case.program), *ranks, *more, *case.words, *words, str(target)]
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PCOPY_BACKEND": backend}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120)


def _has_ended_early(run: subprocess.CompletedProcess[str]) -> bool:
    """True if a run was killed, or if only the process that syncs for it was, so that nothing is known to be stored."""
    is_syncer = run.returncode in (FAILED, STOPPED) and "the process that syncs has ended" in run.stderr
    return run.returncode in (-9, 70, 137) or is_syncer


def _killed_at(calls: str, when: int) -> list[str]:
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e",
            f"inject={calls}:signal=KILL:when={when}+"]  # fmt: skip


def cut_power(kind: str, point: Path, area: Path) -> None:
    """Mount at ``point`` what a loss of power would leave of its file system now."""
    with open(point / "other", "wb") as other:
        other.write(b"x")
        os.fsync(other.fileno())
    image = area / "copy.image"
    subprocess.run(["cp", "--sparse=always", str(point) + ".image", str(image)], check=True)
    subprocess.run(["umount", str(point)], check=True)
    with loops.attached(image) as device:
        # A test that runs beside this one may have a copy of the first mount in its own mount namespace.
        options = ["-o", "nouuid"] if kind == "xfs" else []
        subprocess.run(["mount", *options, str(device), str(point)], check=True)
    image.unlink()


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_file_with_final_size_and_time_after_power_cut_has_its_contents(case: Case, kind: str, backend: str) -> None:
    require_strace()
    with scratch() as area, mounted(kind, area, size=400 * MIB) as point:
        words, target = case.make(area), point / "target"
        prepared(case, area, target)
        killed = _run(case, words, target, area / "state", backend, _killed_at(case.kills[0], 1 + len(case.kills) % 2))
        assert _has_ended_early(killed), killed
        sources = sorted((area / "source").iterdir())
        if case.kills[0] == "syncfs":
            suffix = ".zst" if case.make is compressed else ""
            assert {path.name + suffix for path in sources} <= {path.name for path in target.iterdir()}, "all had names"
        cut_power(kind, point, area)
        assert [path.name for path in sources if not _is_sound(case, path, target / path.name)] == []


def _is_sound(case: Case, source: Path, copy: Path) -> bool:
    """True unless the copy has the size and time of the source and other contents."""
    if case.make is compressed:
        return _is_sound_compressed(source, copy.with_name(copy.name + ".zst"))
    if not copy.exists() or any(name.endswith("pcopy.incomplete") for name in os.listxattr(copy)):
        return True
    there, wanted = copy.stat(), source.stat()
    if (there.st_size, int(there.st_mtime)) != (wanted.st_size, int(wanted.st_mtime)):
        return True
    return not subprocess.run(["cmp", "-s", str(source), str(copy)], check=False).returncode


def _is_sound_compressed(source: Path, copy: Path) -> bool:
    """True unless the copy has the time of the source, is not empty, and is damaged. (A file that was written in order
    and is cut short is made again: no seek table ends it.)"""
    if not copy.exists() or not copy.stat().st_size or int(copy.stat().st_mtime) != int(source.stat().st_mtime):
        return True
    done = subprocess.run(["zstd", "-dcq", str(copy)], check=False, capture_output=True)
    return done.stdout == source.read_bytes()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("is_known", [True, False], ids=["job on record", "job unknown"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize(
    ("case", "kill"),
    [pytest.param(case, kill, id=f"{case}-{kill}") for case in CASES if case.again for kill in case.kills],
)
def test_same_command_after_power_cut_completes_the_copy(case: Case, kill: str, kind: str, is_known: bool) -> None:
    require_strace()
    with scratch() as area, mounted(kind, area, size=400 * MIB) as point:
        words, target, state = case.make(area), point / "target", area / "state"
        prepared(case, area, target)
        killed = _run(case, words, target, state, "c", _killed_at(kill, 1 if kill == "syncfs" else 3))
        if kill == "syncfs":
            assert _has_ended_early(killed), killed
        cut_power(kind, point, area)
        if not is_known:
            shutil.rmtree(state, ignore_errors=True)
        again = _run(case, words, target, state, "c", [])
        if again.returncode == REFUSED and is_known:  # -u and skip, or the destination has another name by now
            again = _run(case._replace(words=("--resume",)), [], Path(), state, "c", [])
        assert again.returncode == 0, again
        _check_whole(case, area / "source", target, is_known=is_known)


def _check_whole(case: Case, source: Path, target: Path, *, is_known: bool) -> None:
    if case.make is compressed:
        for path in source.iterdir():
            done = subprocess.run(["zstd", "-dcq", f"{target / path.name}.zst"], check=True, capture_output=True)
            assert done.stdout == path.read_bytes()
        return
    rsync = ["rsync", "-aHAXni", "--checksum", "--modify-window=-1", "--delete", f"{source}/", f"{target}/"]
    if not is_known:  # nobody removes the temporary files of a job that is unknown
        rsync.append("--exclude=.pcopy-*")
    assert subprocess.run(rsync, check=True, capture_output=True, text=True).stdout == ""


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_data_are_synced_before_a_file_gets_its_final_name(case: Case, area: Path) -> None:
    """A file that was not written from its beginning to its end is synced after the last write, and before it gets its
    name: by a sync of the file, or of the whole file system."""
    require_strace()
    words, target = case.make(area), area / "target"
    prepared(case, area, target)
    log = area / "trace"
    log.mkdir()
    calls = ("ftruncate", "pwrite64", "pwritev", "write", "copy_file_range", "fsync", "fdatasync", "syncfs", "rename",
             "renameat", "renameat2", "linkat")  # fmt: skip
    wrap = ["strace", "-ff", "-qq", "-y", "-ttt", "-T", "-o", str(log / "trace"), "-e",
            "trace=" + ",".join(calls)]  # fmt: skip
    done = _run(case, words, target, area / "state", "c", wrap)
    assert done.returncode == 0, done
    events = sorted(event for path in log.iterdir() for event in _events(path))
    out_of_order, unsynced = _examined(events)
    assert unsynced == []
    assert out_of_order or case.make is written_over, "no file was written out of order: the case shows nothing"


class Event(NamedTuple):
    """A system call that has succeeded, in seconds; ``path`` is the last component of the file that it is about."""

    start: float
    end: float
    call: str
    path: str
    numbers: tuple[int, ...]
    result: int


_LINE = re.compile(r"(\d+\.\d+) (\w+)\((.*)\)\s+= (\d+)\S* <(\d+\.\d+)>")
_FILE = re.compile(r"\d+<([^>]*)>")
ROUNDING = 5e-5
"""Seconds by which the times that strace prints may be wrong."""


def _events(log: Path) -> Iterator[Event]:
    for line in log.read_text(errors="replace").splitlines():
        if match := _LINE.fullmatch(line):
            start, call, arguments, result, took = match.groups()
            renamed = re.search(r'"([^"]*)"', arguments) if call.startswith(("rename", "link")) else None
            files = [renamed[1]] if renamed else _FILE.findall(arguments)
            numbers = tuple(map(int, re.findall(r"(?<=, )\[?(\d+)\]?(?=,|$)", arguments)))
            path = files[-1].rpartition("/")[2] if files else ""
            yield Event(float(start), float(start) + float(took), call, path, numbers, int(result))


def _examined(events: list[Event]) -> tuple[list[str], list[str]]:
    """Return the temporary files whose size was ever beyond what had been written, and those of them that got a name
    before they were synced."""
    written: dict[str, int] = defaultdict(int)
    last: dict[str, float] = {}
    out_of_order: dict[str, None] = {}
    syncs: list[Event] = []
    unsynced = []
    for event in events:
        if event.call in ("syncfs", "fsync", "fdatasync"):
            syncs.append(event)
        elif not event.path.startswith(".pcopy-"):
            continue
        elif event.call == "ftruncate":
            if event.numbers[-1] > written[event.path]:
                out_of_order[event.path] = None
        elif event.call.startswith(("rename", "link")):
            done = [
                sync
                for sync in syncs
                if (sync.call == "syncfs" or sync.path == event.path)
                and sync.start >= last.get(event.path, 0) - ROUNDING
                and sync.end <= event.start + ROUNDING
            ]
            if event.path in out_of_order and not done:
                unsynced.append(event.path)
        else:
            last[event.path] = event.end
            at = event.numbers[-1] if event.call == "pwrite64" else written[event.path]
            if at > written[event.path]:
                out_of_order[event.path] = None
            written[event.path] = max(written[event.path], at + event.result)
    return [*out_of_order], unsynced


def test_missing_sync_is_found_in_trace() -> None:
    def event(call: str, start: float, *numbers: int, path: str = ".pcopy-1", result: int = 0) -> Event:
        return Event(start, start + 0.1, call, path, numbers, result)

    write, hole = event("pwrite64", 1, 5, 0, result=5), event("ftruncate", 0, 9)
    sync, rename = event("fdatasync", 2), event("renameat", 3)
    assert _examined([hole, write, sync, rename]) == ([".pcopy-1"], [])
    assert _examined([hole, write, rename]) == ([".pcopy-1"], [".pcopy-1"])
    assert _examined([hole, write, rename, sync._replace(start=4)]) == ([".pcopy-1"], [".pcopy-1"])
    assert _examined([sync._replace(start=0.5, end=0.6), hole, write, rename])[1] == [".pcopy-1"]
    assert _examined([write, rename]) == ([], [])
    assert _examined([event("pwrite64", 1, 5, 20, result=5), rename])[1] == [".pcopy-1"]
