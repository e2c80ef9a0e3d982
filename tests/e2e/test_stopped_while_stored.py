"""Jobs stopped while the sync of a file hangs: no file has its final name yet, and the next run completes the job.

Each program has a row for each task that waits for stable storage before a file gets its name. A signal takes effect
immediately, even if the storage hangs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.archives import ptar
from tests.support.command import Argument, pcopy, show
from tests.support.preload import STORING, preloaded
from tests.support.processes import PROMPT, Run, background, wait_until

MIB = 1 << 20


class Case(NamedTuple):
    """A command to stop. ``make`` creates the source, with the file ``expected`` in it, and returns the arguments."""

    name: str
    program: str
    make: Callable[[Path], list[Argument]]
    ranks: int | None = 2
    passed: int = 0
    """Number of syncs that succeed before one hangs."""
    stopped: int = 75
    """Exit status after a signal."""
    resumes: bool = True
    """True if ``--resume`` continues the job; otherwise the same command does."""

    def __str__(self) -> str:
        return self.name


def _dense(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(13 * MIB))


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(random.Random(2).randbytes(10_000))
        file.truncate(size)
        file.seek(size - 5000)
        file.write(b"the end")


def split(area: Path) -> list[Argument]:
    _dense(area / "source/expected")
    return ["--chunk-size", "4M", "-T", area / "source", area / "target"]


def split_not_kept(area: Path) -> list[Argument]:
    return ["--checkpoint", "none", *split(area)]


def small_sparse(area: Path) -> list[Argument]:
    _sparse(area / "source/expected", MIB)
    return ["-T", area / "source", area / "target"]


def large_sparse(area: Path) -> list[Argument]:
    _sparse(area / "source/expected", 20 * MIB)
    return ["-T", area / "source", area / "target"]


def synchronised(area: Path) -> list[Argument]:
    _dense(area / "source/expected")
    return ["--chunk-size", "4M", f"{area}/source/", f"{area}/target"]


def compressed(area: Path) -> list[Argument]:
    _dense(area / "source/expected")
    return ["--compress", "zstd", "--chunk-size", "4M", "-T", area / "source", area / "target"]


def compressed_not_kept(area: Path) -> list[Argument]:
    return ["--checkpoint", "none", *compressed(area)]


def _decompressed(area: Path) -> list[Argument]:
    source = area / "source/expected"
    packed: list[Argument] = ["--compress", "zstd", "--chunk-size", "4M", "-T", area / "source", area / "packed"]
    succeeded = pcopy(*packed, ranks=2)
    assert succeeded.returncode == 0, show(succeeded)
    shutil.move(source, area / "expected")
    shutil.copytree(area / "packed", area / "source", dirs_exist_ok=True)
    return ["--decompress", "--chunk-size", "4M", "-T", area / "source", area / "target"]


def decompressed(area: Path) -> list[Argument]:
    _dense(area / "source/expected")
    return _decompressed(area)


def decompressed_sparse(area: Path) -> list[Argument]:
    _sparse(area / "source/expected", 2 * MIB)
    return _decompressed(area)


def unpacked(area: Path) -> list[Argument]:
    (area / "source/expected").write_bytes(random.Random(1).randbytes(6 * MIB) + bytes(34 * MIB))
    packed = ptar("-c", "-q", "--zstd", "-f", area / "a.tar.zst", "-C", area / "source", "expected", ranks=1)
    assert packed.returncode == 0, show(packed)
    return ["-x", "-f", area / "a.tar.zst", "-C", area / "target"]


def unpacked_sparse(area: Path) -> list[Argument]:
    _sparse(area / "source/expected", 2 * MIB)
    subprocess.run(["tar", "-S", "-C", area / "source", "-cf", area / "a.tar", "expected"], check=True)
    return ["-x", "-f", area / "a.tar", "-C", area / "target"]


def archived(area: Path) -> list[Argument]:
    _dense(area / "source/expected")
    return ["-c", "-f", area / "target/a.tar", "-C", area / "source", "expected"]


def broadcast(area: Path) -> list[Argument]:
    _sparse(area / "source/expected", 2 * MIB)
    return [area / "source/expected", area / "target"]


CASES = (
    Case("split: the last chunk", "pcopy", split),
    Case("split: FinishFile", "pcopy", split, passed=1),
    Case("split, not kept: FinishFile", "pcopy", split_not_kept, passed=1, stopped=130, resumes=False),
    Case("small with holes", "pcopy", small_sparse),
    Case("large with holes", "pcopy", large_sparse, ranks=1),
    Case("psync: FinishFile", "psync", synchronised, passed=1),
    Case("compressed: FinishRecodedFile", "pcopy", compressed),
    Case("compressed, not kept", "pcopy", compressed_not_kept, stopped=130, resumes=False),
    Case("decompressed: FinishRecodedFile", "pcopy", decompressed),
    Case("decompressed, with holes", "pcopy", decompressed_sparse),
    Case("unpacked in parts", "ptar", unpacked, resumes=False),
    Case("unpacked, with holes", "ptar", unpacked_sparse, resumes=False),
    Case("archived", "ptar", archived, resumes=False),
    Case("broadcast", "pbcast", broadcast, ranks=None, resumes=False),
)


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_job_stopped_during_a_hanging_sync_is_completed_by_the_next_run(case: Case, end: str, area: Path) -> None:
    calls = area / "calls"
    (area / "source").mkdir()
    (area / "target").mkdir()
    words = case.make(area)
    env = {"XDG_STATE_HOME": str(area / "state")}
    hanging = {**preloaded(STORING), "PCOPY_TEST_STORES": str(calls), "PCOPY_TEST_STORES_PASS": str(case.passed)}
    calls.write_bytes(b"")
    with background(*words, program=case.program, ranks=case.ranks, env=env | hanging) as job:
        assert wait_until(lambda: calls.stat().st_size > case.passed or job.process.poll() is not None)
        assert job.process.poll() is None, job.process.communicate()
        status = _end_job(job, end)
    left = os.listdir(area / "target")
    calls.unlink()
    assert [name for name in left if not name.startswith(".pcopy-")] == []
    if end != "SIGKILL":
        assert status == (case.stopped if end == "SIGINT" or case.resumes else STOPPED.get(case.stopped, case.stopped))
        assert bool(left) is case.resumes or case.name.endswith("holes"), (
            "temporary files remain only if the next run uses them"
        )
    again = pcopy(*(["--resume"] if case.resumes else words), program=case.program, ranks=case.ranks, env=env)
    assert again.returncode == 0, show(again)
    if end == "SIGKILL" and not case.resumes:  # no run removes its temporary files
        for name in left:
            (area / "target" / name).unlink(missing_ok=True)
    _compare(case, area)


STOPPED = {130: 143}
"""Exit status after SIGTERM, by that after SIGINT."""


def _end_job(job: Run, end: str) -> int:
    """Send the signal and return the exit status. The signal takes effect although the storage hangs."""
    time.sleep(0.2)
    began = time.monotonic()
    if end == "SIGKILL":
        job.kill_all()
    else:
        job.send_signal(signal.Signals[end])
    status = job.end(60)
    assert time.monotonic() < began + PROMPT
    return status


def _compare(case: Case, area: Path) -> None:
    """Compare the only file in the target with the source by tar(1), zstd(1) and cmp(1)."""
    expected = next(path for path in (area / "expected", area / "source/expected") if path.exists())
    (name,) = os.listdir(area / "target")
    found = area / "target" / name
    if name == "a.tar":
        with (area / "unpacked").open("wb") as unpacked:
            subprocess.run(["tar", "-xOf", found], stdout=unpacked, check=True)
        found = area / "unpacked"
    elif name.endswith(".zst"):
        subprocess.run(["zstd", "-q", "-d", found, "-o", area / "unpacked"], check=True)
        found = area / "unpacked"
    subprocess.run(["cmp", expected, found], check=True)
    assert found.stat().st_size == expected.stat().st_size
