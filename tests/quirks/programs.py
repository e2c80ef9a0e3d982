"""Programs that write files, each as a function that takes a source and a mounted directory.

Each returns a directory whose contents are to be compared with the source.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.command import Argument, pcopy, show
from tests.support.files import write

Case = Callable[[Path, Path, str], Path]


def run(program: str, *words: Argument, backend: str, ranks: int | None = 3) -> None:
    """Run a program that must succeed, and print nothing on standard error."""
    done = pcopy("-q", *words, program=program, ranks=ranks, env={"PCOPY_BACKEND": backend})
    assert done.returncode == 0, show(done)
    assert done.stderr == b"", show(done)


def _copied(*options: Argument, program: str = "pcopy", ranks: int = 3) -> Case:
    def case(source: Path, mounted: Path, backend: str) -> Path:
        run(program, "--chunk-size", "1M", *options, f"{source}/", mounted / "copy", backend=backend, ranks=ranks)
        return mounted / "copy"

    return case


def _over(*options: Argument, program: str = "pcopy") -> Case:
    """Copy over files with other contents and times."""

    def case(source: Path, mounted: Path, backend: str) -> Path:
        for path in source.rglob("*"):
            if path.is_file():
                write(mounted / "copy" / path.relative_to(source), b"other contents")
        return _copied(*options, program=program)(source, mounted, backend)

    return case


def _unpacked(source: Path, mounted: Path, backend: str) -> Path:
    archive = source.parent / "archive"
    subprocess.run(["tar", "--format=posix", "-cf", archive, "-C", source, "."], check=True)
    (mounted / "unpacked").mkdir()
    run("ptar", "-x", "-f", archive, "-C", mounted / "unpacked", backend=backend)
    return mounted / "unpacked"


def _archived(*options: str) -> Case:
    def case(source: Path, mounted: Path, backend: str) -> Path:
        run("ptar", "-c", *options, "-f", mounted / "archive", "-C", source, ".", backend=backend)
        there = source.parent / "unpacked"
        there.mkdir()
        subprocess.run(["tar", *options, "-xf", mounted / "archive", "-C", there], check=True)
        return there

    return case


def _recoded(source: Path, mounted: Path, backend: str) -> Path:
    run("pcopy", "--chunk-size", "1M", "--compress", "zstd", f"{source}/", mounted / "packed", backend=backend)
    run("pcopy", "--chunk-size", "1M", "--decompress", mounted / "packed/", mounted / "copy", backend=backend)
    return mounted / "copy"


def _broadcast(source: Path, mounted: Path, backend: str) -> Path:
    (mounted / "copy").mkdir()
    files = [path for path in source.iterdir() if path.is_file()]
    run("pbcast", *files, mounted / "copy", backend=backend, ranks=None)
    for other in source.rglob("*"):  # pbcast accepts no directories
        if other.parent != source and other.is_file():
            there = mounted / "copy" / other.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(other.read_bytes())
            times = other.stat()
            os.utime(there, ns=(times.st_atime_ns, times.st_mtime_ns))
    return mounted / "copy"


CASES: dict[str, Case] = {
    "copy": _copied(),
    "copy by one rank": _copied("--in-flight", "1", "--checkpoint", "none", ranks=1),
    "copy without replacing": _copied("--existing", "skip"),
    "copy, synced": _copied("--fsync"),
    "replace": _over(),
    "in place": _over("--inplace"),
    "mirror": _over(program="psync"),
    "recode": _recoded,
    "unpack": _unpacked,
    "archive": _archived(),
    "archive, compressed": _archived("--zstd"),
    "broadcast": _broadcast,
}
