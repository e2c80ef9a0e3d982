"""File systems that cannot sync one file: no failure, but one warning, and records that do not outlast a reboot."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import command, native
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.faults import Fault
from tests.support.oracle import differences
from tests.support.quirks import quirky

SAYS = b"files cannot be synced here"
REFUSALS = "EINVAL", "ENOSYS", "EOPNOTSUPP"

QUICK = ("--tests", "write", "--repeat", "1", "--time", "0.01", "--size", "64K", "--blocks", "64K")


@pytest.fixture(autouse=True, params=["c", "python"])
def kernel_of_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c":
        native.require()
    monkeypatch.setattr(command, "kernel", request.param)


@pytest.fixture
def source(area: Path) -> Path:
    """Files of all sorts that are stored: small ones, one with a hole, a split one, several names of one."""
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
def test_what_cannot_be_synced_is_written_with_one_warning(source: Path, how: str) -> None:
    below = source.parent / "below"
    refusal = REFUSALS[sorted(RUNS).index(how) % 2 * 2]  # after ENOSYS the kernel does not ask the server again
    with quirky(below, f"fsync={refusal}") as mounted:
        run = run_onto(source, mounted, how)
    assert run.returncode == 0, show(run)
    assert run.stderr.count(SAYS) == 1, show(run)
    RUNS[how][2](source, below / "made")
    assert [name for name in os.listdir(below) if name.startswith(".pcopy")] == []


@pytest.mark.parametrize("how", RUNS)
def test_an_error_of_the_storage_is_never_excused(source: Path, how: str) -> None:
    with quirky(source.parent / "below", "fsync=EIO") as mounted:
        run = run_onto(source, mounted, how)
    assert run.returncode != 0, show(run)
    assert SAYS not in run.stderr, show(run)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_elsewhere_the_whole_file_system_is_synced_instead(source: Path, refusal: str) -> None:
    area, log = source.parent, source.parent / "log"
    fault = Fault(log, ["fsync", "fdatasync"], None, refusal, slow=["syncfs"])
    run = pcopy("--fsync", "-T", source, area / "made", wrap=fault.wrap(), ranks=1)
    assert run.returncode == 0, show(run)
    assert SAYS not in run.stderr, show(run)
    assert differences(source, area / "made") == []
    fault.check()
    assert log.read_bytes().count(b"syncfs(") > 20, "each file is on storage before it gets its name"


@pytest.mark.parametrize("rebooted", [False, True])
def test_after_a_reboot_records_are_not_used(source: Path, rebooted: bool) -> None:
    """A file that has lost its contents, as in a loss of power, is copied again only then."""
    below, job = source.parent / "below", source.parent / "job"
    (source / "blocked").write_bytes(b"a file over a directory that is not empty")
    (below / "made/blocked/inner").mkdir(parents=True)
    with quirky(below, "fsync=EINVAL") as mounted:
        first = pcopy("--existing", "changed", "--checkpoint", job, "-T", source, mounted / "made", ranks=2)
        assert (first.returncode, first.stderr.count(SAYS)) == (1, 1), show(first)
        status = (below / "made/inner/7").stat()
        (below / "made/inner/7").write_bytes(bytes(status.st_size))
        os.utime(below / "made/inner/7", ns=(status.st_atime_ns, status.st_mtime_ns))
        (below / "made/blocked/inner").rmdir()
        (mark,) = job.glob("not-durable-*")
        if rebooted:
            mark.rename(job / "not-durable-01234567-89ab-cdef-0123-456789abcdef")
        second = pcopy("--resume", job, ranks=2)
    assert second.returncode == 0, show(second)
    assert (b"the job begins anew" in second.stderr) == rebooted, show(second)
    lost = [line for line in differences(source, below / "made") if "inner/7" in line]
    assert bool(lost) != rebooted
    assert not job.exists()
