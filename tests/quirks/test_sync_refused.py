"""File systems that cannot sync single files: no failure, but one warning, and records that are not valid after a
reboot."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import command, native
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.faults import Fault
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.quirks import quirky

NOTICE = b"files cannot be synced here"
REFUSALS = "EINVAL", "ENOSYS", "EOPNOTSUPP"

QUICK = ("--tests", "write", "--repeat", "1", "--time", "0.01", "--size", "64K", "--blocks", "64K")


@pytest.fixture(autouse=True, params=["c", "python"])
def backend_of_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c":
        native.require()
    monkeypatch.setattr(command, "backend", request.param)


@pytest.fixture
def source(area: Path) -> Path:
    """Files of all methods of storage: small, with a hole, split, with several names."""
    source, below = area / "source", area / "below"
    below.mkdir()
    (source / "inner").mkdir(parents=True)
    for number in range(20):
        (source / f"inner/{number}").write_bytes(b"%d" % number * 1000)
    os.link(source / "inner/1", source / "link")
    with (source / "hole").open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"begin")
    (source / "large").write_bytes(os.urandom(3 << 20))
    return source


def _copied(source: Path, made: Path) -> None:
    assert differences(source, made) == []


def _archived(source: Path, made: Path) -> None:
    subprocess.run(["tar", "-C", source.parent, "-df", made], check=True)


def _sent(source: Path, made: Path) -> None:
    subprocess.run(["cmp", source / "large", made / "large"], check=True)


def _measured(source: Path, made: Path) -> None:
    del source
    assert os.listdir(made) == []


RUNS: dict[str, tuple[str, Callable[[Path, Path], list[Argument]], Callable[[Path, Path], None]]] = {
    "copy": ("pcopy", lambda source, made: ["-T", source, made], _copied),
    "in place": ("pcopy", lambda source, made: ["--inplace", "-T", source, made], _copied),
    "asked for": ("pcopy", lambda source, made: ["--fsync", "--checkpoint", "none", "-T", source, made], _copied),
    "kept there": ("pcopy", lambda source, made: ["--checkpoint", made.parent / "job", "-T", source, made], _copied),
    "mirror": ("psync", lambda source, made: [f"{source}/", made], _copied),
    "archive": ("ptar", lambda source, made: ["-c", "-f", made, "-C", source.parent, source.name], _archived),
    "broadcast": ("pbcast", lambda source, made: ["--fsync", source / "large", made], _sent),
    "benchmark": ("pdbench", lambda source, made: [*QUICK, made], _measured),
}


def run_onto(source: Path, mounted: Path, how: str) -> Completed:
    program, words, _ = RUNS[how]
    made = mounted / "made"
    if program in ("pbcast", "pdbench"):
        made.mkdir()
    return pcopy(*words(source, made), program=program, ranks=None if program == "pbcast" else 2)


@pytest.mark.parametrize("how", RUNS)
def test_files_that_cannot_be_synced_are_written_with_one_warning(source: Path, how: str) -> None:
    below = source.parent / "below"
    refusal = REFUSALS[sorted(RUNS).index(how) % 2 * 2]  # after ENOSYS the kernel no longer calls the server
    with quirky(below, f"fsync={refusal}") as mounted:
        run = run_onto(source, mounted, how)
    assert run.returncode == 0, show(run)
    assert run.stderr.count(NOTICE) == 1, show(run)
    RUNS[how][2](source, below / "made")
    assert [name for name in os.listdir(below) if name.startswith(".pcopy")] == []


@pytest.mark.parametrize("how", RUNS)
def test_storage_error_of_fsync_is_not_ignored(source: Path, how: str) -> None:
    with quirky(source.parent / "below", "fsync=EIO") as mounted:
        run = run_onto(source, mounted, how)
    assert run.returncode != 0, show(run)
    assert NOTICE not in run.stderr, show(run)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refused_fsync_is_replaced_by_syncfs(source: Path, refusal: str) -> None:
    area, log = source.parent, source.parent / "log"
    fault = Fault(log, ["fsync", "fdatasync"], None, refusal, slow=["syncfs"])
    run = pcopy("--fsync", "-T", source, area / "made", wrap=fault.wrap(), ranks=1)
    assert run.returncode == 0, show(run)
    assert NOTICE not in run.stderr, show(run)
    assert differences(source, area / "made") == []
    fault.check()
    assert log.read_bytes().count(b"syncfs(") > 20, "each file is on storage before it gets its name"


def _block(below: Path) -> None:
    (below / "made/blocked/kept").mkdir(parents=True)


def _unblock(below: Path) -> None:
    (below / "made/blocked/kept").rmdir()


def _lose_file(below: Path) -> None:
    path = below / "made/inner/7"
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _resize(below: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", below], check=True)


def _lose_archive(below: Path) -> None:
    (archive,) = below.glob(".pcopy-*.archive")
    with archive.open("r+b") as file:  # zeros would mark the end of the archive
        file.write(b"x" * os.fstat(file.fileno()).st_size)


def _archive_words(*options: str) -> Callable[[Path, Path], list[Argument]]:
    def words(source: Path, made: Path) -> list[Argument]:
        interval = ("--checkpoint-interval", "0.00001")
        return ["-c", "--resume", *interval, *options, "-f", made, "-C", source.parent, source.name]

    return words


class Interrupted(NamedTuple):
    """A first run that ends early, and its resume; ``program`` and ``words`` belong to the first run."""

    program: str
    ranks: int
    words: Callable[[Path, Path], list[Argument]]
    hinder: Callable[[Path], None]
    status: int
    """The exit status of the first run."""
    unhinder: Callable[[Path], None]
    lose: Callable[[Path], None]
    """Overwrite contents that the first run has recorded, as a loss of power does."""
    check: Callable[[Path, Path], None]


def _of_archive(*options: str) -> Interrupted:
    full, roomy = partial(_resize, size="12m"), partial(_resize, size="60m")
    return Interrupted("ptar", 1, _archive_words(*options), full, 75, roomy, _lose_archive, _archived)


def _of_job(program: str, *options: str) -> Interrupted:
    def words(source: Path, made: Path) -> list[Argument]:
        return [*options, "--checkpoint", source.parent / "job", f"{source}/", made]

    return Interrupted(program, 2, words, _block, 1, _unblock, _lose_file, _copied)


INTERRUPTED = {
    "copy": _of_job("pcopy", "-T", "--existing", "changed"),
    "mirror": _of_job("psync", "--exclude", "kept"),
    "archive": _of_archive(),
    "archive, zstd": _of_archive("--zstd"),
    "archive, gzip": _of_archive("--gzip"),
}

OTHER_BOOT = """
echo 01234567-89ab-cdef-0123-456789abcdef >"$0"
mount --bind "$0" /proc/sys/kernel/random/boot_id
exec "$@"
"""


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("how", INTERRUPTED)
def test_records_are_not_used_after_a_reboot(source: Path, how: str, rebooted: bool) -> None:
    """Lost contents, as after a power loss, are written again only after a reboot."""
    case, area = INTERRUPTED[how], source.parent
    (source / "blocked").write_bytes(b"a file over a directory that is not empty")
    for number in range(6 if case.program == "ptar" else 0):
        (source / f"random{number}").write_bytes(os.urandom(3 << 20))
    with mounted("tmpfs", area) as below, quirky(below, "fsync=EINVAL") as point:
        words = case.words(source, point / "made")
        case.hinder(below)
        first = pcopy(*words, program=case.program, ranks=case.ranks)
        assert (first.returncode, first.stderr.count(NOTICE)) == (case.status, 1), show(first)
        case.unhinder(below)
        case.lose(below)
        if case.program != "ptar":
            words = ["--resume", area / "job"]
        wrap: list[Argument] = ["unshare", "--mount", "sh", "-ec", OTHER_BOOT, area / "boot_id"] if rebooted else []
        second = pcopy(*words, program=case.program, ranks=case.ranks, wrap=wrap)
        assert second.returncode == 0, show(second)
        assert (b"the job begins anew" in second.stderr) == (rebooted and case.program != "ptar"), show(second)
        if rebooted:
            case.check(source, below / "made")
        else:
            with pytest.raises((AssertionError, subprocess.CalledProcessError)):
                case.check(source, below / "made")
        assert [name for name in os.listdir(below) if name.startswith(".pcopy")] == []
    assert not (area / "job").exists()
