"""A loss of power on real file systems: the image is copied while its metadata are on it and data are in memory only.

The program is killed at its sync of the whole destination. Another file is then synced, which brings the journal to
storage with all names and sizes, but not the data of other files. Each file that has its final name, size and time on
the copy of the image must have its contents, too: the next run would keep it.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import require_strace
from tests.support.filesystems import mounted, scratch
from tests.support.traces import Trace

MIB = 1 << 20
BIN = Path(__file__).parents[2] / "bin"

Make = Callable[[Path], list[str]]
"""Makes the source below a directory; returns the words of the command before the destination."""


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
    _sparse(area / "source/file", 24 * MIB, (MIB, 4 * MIB), (20 * MIB, MIB))
    return [str(area / "source") + "/"]


def dense_split(area: Path) -> list[str]:
    _sparse(area / "source/file", 48 * MIB, (0, 48 * MIB))
    return ["--chunk-size", "16M", str(area / "source") + "/"]


def compressed_source(area: Path) -> list[str]:
    """Decompressed files with a hole; they have the names of the originals."""
    for number, size in enumerate((MIB, 24 * MIB)):
        _sparse(area / f"source/file{number}", size, (0, size // 4))
    packed = area / "packed"
    program = [sys.executable, str(BIN / "pcopy"), "-q", "-n", "1", "-T", "--compress", "zstd", str(area / "source")]
    subprocess.run([*program, str(packed)], check=True)
    return ["--decompress", "--chunk-size", "4M", str(packed) + "/"]


def archived(area: Path) -> list[str]:
    dense_split(area)
    _sparse(area / "source/sparse", MIB, (64 << 10, 64 << 10))
    tar = ["tar", "--sparse", "--format=posix", "-C", str(area / "source"), "-cf", str(area / "archive.tar")]
    subprocess.run([*tar, "file", "sparse"], check=True)
    return ["-x", "-f", str(area / "archive.tar"), "-C"]


CASES: dict[tuple[str, str], Make] = {
    **{(program, make.__name__): make for program in ("psync", "pcopy") for make in
       (small_sparse, large_sparse, dense_split)},
    ("pcopy", "decompressed"): compressed_source,
    ("ptar", "unpacked"): archived,
}  # fmt: skip


def _run(program: str, words: list[str], target: Path, state: Path, kernel: str, wrap: list[str]) -> None:
    more = [] if program == "ptar" else ["-q"]
    command = [*wrap, sys.executable, str(BIN / program), "-n", "2", *more, *words, str(target)]
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PCOPY_KERNEL": kernel}
    subprocess.run(command, check=False, capture_output=True, env=environment, timeout=120)


@contextmanager
def after_power_cut(kind: str, point: Path, area: Path) -> Iterator[Path]:
    """The file system of ``point`` as a loss of power would leave it now, mounted."""
    with open(point / "other", "wb") as other:
        other.write(b"x")
        os.fsync(other.fileno())
    image, again = area / "copy.image", area / "again"
    subprocess.run(["cp", "--sparse=always", str(point) + ".image", str(image)], check=True)
    again.mkdir()
    options = "loop,nouuid" if kind == "xfs" else "loop"
    subprocess.run(["mount", "-o", options, str(image), str(again)], check=True)
    try:
        yield again
    finally:
        subprocess.run(["umount", str(again)], check=True)
        image.unlink()


@pytest.mark.parametrize("kernel", ["c", "python"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_file_that_looks_whole_after_power_cut_has_its_contents(case: tuple[str, str], kind: str, kernel: str) -> None:
    require_strace()
    with scratch() as area, mounted(kind, area, size=400 * MIB) as point:
        words, target = CASES[case](area), point / "target"
        if case[0] == "ptar":
            target.mkdir()
        killed = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=syncfs", "-e", "inject=syncfs:signal=KILL"]
        _run(case[0], words, target, area / "state", kernel, killed)
        sources = sorted((area / "source").iterdir())
        assert {path.name for path in sources} <= {path.name for path in target.iterdir()}, "all had their names"
        with after_power_cut(kind, point, area) as again:
            lost = [path.name for path in sources if not _is_sound(path, again / "target" / path.name)]
        assert lost == []


def _is_sound(source: Path, copy: Path) -> bool:
    """True unless the copy has the size and time of the source and other contents."""
    if not copy.exists():
        return True
    there, wanted = copy.stat(), source.stat()
    if (there.st_size, int(there.st_mtime)) != (wanted.st_size, int(wanted.st_mtime)):
        return True
    return not subprocess.run(["cmp", "-s", str(source), str(copy)], check=False).returncode


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_data_are_synced_before_the_final_name(case: tuple[str, str], area: Path) -> None:
    """Each file whose size was set by ftruncate was synced before it was renamed. The others were written in order."""
    words, target = CASES[case](area), area / "target"
    if case[0] == "ptar":
        target.mkdir()
    trace = Trace(area / "trace", "ftruncate", "fdatasync", "rename", "renameat", "renameat2")
    _run(case[0], words, target, area / "state", "c", trace.wrap())
    lines = [line for log in sorted((area / "trace").iterdir()) for line in log.read_text().splitlines()]
    renamed = {line.split('"')[1] for line in lines if "rename" in line and '".pcopy-' in line}
    truncated, synced = (
        {line.split(">")[0].rsplit("/", 1)[1] for line in lines if line.startswith(call) and "/.pcopy-" in line}
        for call in ("ftruncate", "fdatasync")
    )
    assert renamed & truncated
    assert renamed & truncated <= synced
    shutil.rmtree(target)
