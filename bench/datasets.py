"""Makes what is copied: many small files in many directories, one large file, or one flat directory.

``python -m bench.datasets DIRECTORY`` makes one to keep; the other programs make their own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

MIB = 1 << 20

_BLOCK = 64 * MIB


@dataclass(frozen=True, slots=True)
class Dataset:
    """What it is called, how much of the file system it takes, and how it is made in an existing directory.

    ``size`` is in bytes; ``files`` counts regular files.
    """

    label: str
    files: int
    size: int
    make: Callable[[Path], None]


def small_files(files: int, size: int, per_directory: int) -> Dataset:
    """``files`` files of ``size`` random bytes, ``per_directory`` to a directory."""

    def make(root: Path) -> None:
        random = Random(files)
        for start in range(0, files, per_directory):
            directory = root / f"d{start // per_directory:05}"
            directory.mkdir()
            _fill(directory, range(start, min(start + per_directory, files)), size, random)

    return Dataset(f"{files:,} files of {size:,} bytes, {per_directory} a directory", files, files * size, make)


def directories_only(files: int, per_directory: int) -> Dataset:
    """The directories of ``small_files``, without the files."""

    def make(root: Path) -> None:
        for number in range(-(-files // per_directory)):
            (root / f"d{number:05}").mkdir()

    return Dataset(f"{-(-files // per_directory):,} empty directories", 0, 0, make)


def flat_directory(files: int, size: int) -> Dataset:
    """All ``files`` in one directory."""

    def make(root: Path) -> None:
        directory = root / "flat"
        directory.mkdir()
        _fill(directory, range(files), size, Random(files))

    return Dataset(f"{files:,} files of {size:,} bytes in one directory", files, files * size, make)


def large_file(size: int) -> Dataset:
    """One file without holes; no two of its MiB are alike, and none compresses."""

    def make(root: Path) -> None:
        block = bytearray(os.urandom(min(_BLOCK, size)))
        with open(root / "large", "xb", buffering=0) as file:
            for start in range(0, size, _BLOCK):
                for at in range(0, len(block), MIB):
                    block[at : at + 8] = (start + at).to_bytes(8, "little")
                left = memoryview(block)[: min(_BLOCK, size - start)]
                while left:
                    left = left[file.write(left) :]

    return Dataset(f"one file of {size / MIB:,.0f} MiB", 1, size, make)


def _fill(directory: Path, numbers: range, size: int, random: Random) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in numbers:
            file = os.open(f"f{number:07}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=descriptor)
            try:
                if os.write(file, random.randbytes(size)) != size:
                    raise OSError(f"{directory}: not all of a file was written")
            finally:
                os.close(file)
    finally:
        os.close(descriptor)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``chosen`` reads."""
    group = parser.add_argument_group("datasets")
    group.add_argument(
        "--datasets", nargs="+", choices=["small", "large", "flat"], default=["small", "large"], help="which ones"
    )
    group.add_argument("--files", type=int, default=50_000, help="number of small files (default %(default)s)")
    group.add_argument("--file-size", type=int, default=4096, help="bytes of each (default %(default)s)")
    group.add_argument("--per-directory", type=int, default=100, help="of them in a directory (default %(default)s)")
    group.add_argument("--large-size", type=int, default=2048, help="MiB of the large file (default %(default)s)")
    group.add_argument("--flat-files", type=int, default=200_000, help="files in one directory (default %(default)s)")


def chosen(arguments: argparse.Namespace) -> list[Dataset]:
    """The datasets that the command line asks for."""
    makers: dict[str, Callable[[], Dataset]] = {
        "small": lambda: small_files(arguments.files, arguments.file_size, arguments.per_directory),
        "large": lambda: large_file(arguments.large_size * MIB),
        "flat": lambda: flat_directory(arguments.flat_files, 100),
    }
    return [makers[name]() for name in arguments.datasets]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.datasets", description="Makes datasets in a new directory.")
    parser.add_argument("directory", type=Path)
    add_options(parser)
    arguments = parser.parse_args()
    arguments.directory.mkdir()
    for name, dataset in zip(arguments.datasets, chosen(arguments), strict=True):
        root = arguments.directory / name
        root.mkdir()
        dataset.make(root)
        print(f"{root}: {dataset.label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
