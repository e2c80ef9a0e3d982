"""Datasets to copy. ``python -m bench.datasets SHAPE DIRECTORY`` creates one to keep; benchmarks create their own.

No two files and no two MiB of a file are equal; nothing is compressible or has holes. The same shape always has the
same sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_RANDOM_MIB = Random(0).randbytes(MIB)
"""A MiB of random bytes. A file consists of copies of them, each changed by the number of the file and of the MiB."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset: its ``label``, its sizes, and the function ``make`` that creates it in an existing directory.

    ``size`` is its total in bytes, ``files`` the number of its regular files, and ``directories`` the number of its
    directories.
    """

    label: str
    files: int
    size: int
    make: Callable[[Path], None]
    directories: int = 0


def _write_file(directory: int, name: str, number: int, size: int) -> None:
    """Write a new file ``name`` of ``size`` bytes into the open ``directory``; raise ``OSError`` if that fails.

    ``number`` makes its contents differ from those of other files.
    """
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
    try:
        for start in range(0, size, MIB):
            mark = number.to_bytes(8, "little") + start.to_bytes(8, "little")
            piece = (mark + _RANDOM_MIB[len(mark) :])[: size - start]
            if os.write(file, piece) != len(piece):
                raise OSError(f"{name}: not all of a file was written")
    finally:
        os.close(file)


def _create_files(directory: Path, files: Iterable[tuple[int, int]]) -> None:
    """Create files in a directory. Each is given by its number and its size in bytes."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, size in files:
            _write_file(descriptor, f"f{number:07}", number, size)
    finally:
        os.close(descriptor)


def files_of_sizes(label: str, sizes: list[int], per_directory: int) -> Dataset:
    """Return a dataset with one file of each size, ``per_directory`` files in each directory."""

    def make(root: Path) -> None:
        for start in range(0, len(sizes), per_directory):
            directory = root / f"d{start // per_directory:05}"
            directory.mkdir()
            _create_files(directory, enumerate(sizes[start : start + per_directory], start))

    return Dataset(label, len(sizes), sum(sizes), make, -(-len(sizes) // per_directory))


def small_files(files: int, size: int, per_directory: int) -> Dataset:
    """Return a dataset of equal files: ``files`` files of ``size`` bytes, ``per_directory`` of them in each
    directory.
    """
    return files_of_sizes(
        f"{files:,} files of {size:,} bytes, {per_directory:,} a directory", [size] * files, per_directory
    )


def files_of_heavy_tailed_sizes(files: int, least: int, most: int) -> Dataset:
    """Return a dataset of files from ``least`` to ``most`` bytes, with many small and few large ones, as in real file
    systems.

    For each size there are half as many files as for half that size.
    """
    random = Random(files)
    sizes = [min(int(least / (1 - random.random() * (1 - least / most))), most) for _ in range(files)]
    return files_of_sizes(f"{files:,} files of {least / KIB:.0f} KiB to {most / MIB:.0f} MiB", sizes, 100)


def many_files(files: int) -> Dataset:
    """Return a dataset of very many files: one in 100 has 4 KiB, the others are empty.

    Nine of ten are in directories of 100 files, the others in directories of 10,000.
    """
    few = files * 9 // 10
    spans = [(start, min(start + 100, few)) for start in range(0, few, 100)]
    spans += [(start, min(start + 10_000, files)) for start in range(few, files, 10_000)]

    def make(root: Path) -> None:
        for number, (start, end) in enumerate(spans):
            directory = root / f"d{number:05}"
            directory.mkdir()
            _create_files(directory, ((each, 0 if each % 100 else 4 * KIB) for each in range(start, end)))

    label = f"{files:,} files, most of them empty, 100 or 10,000 a directory"
    return Dataset(label, files, -(-files // 100) * 4 * KIB, make, len(spans))


def large_file(size: int) -> Dataset:
    """Return a dataset of one file of ``size`` bytes, named ``large``."""

    def make(root: Path) -> None:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _write_file(descriptor, "large", 0, size)
        finally:
            os.close(descriptor)

    return Dataset(f"one file of {size / MIB:,.0f} MiB", 1, size, make)


def directory_tree(levels: int, width: int, files: int, size: int) -> Dataset:
    """Return a tree of directories with ``levels`` levels below the root.

    Each directory has ``width`` subdirectories, except those of the last level, and ``files`` files of ``size`` bytes.
    """

    def places(root: Path, level: int) -> Iterator[Path]:
        yield root
        if level < levels:
            for number in range(width):
                (root / f"d{number}").mkdir()
                yield from places(root / f"d{number}", level + 1)

    def make(root: Path) -> None:
        for number, directory in enumerate(places(root, 0)):
            _create_files(directory, ((number * files + index, size) for index in range(files)))

    directories = sum(width**level for level in range(levels + 1))
    label = f"{directories:,} directories, {width} in each, {levels} levels"
    if files:
        label += f", each with {files} files of {size:,} bytes"
    return Dataset(label, directories * files, directories * files * size, make, directories)


def directories_only(files: int, per_directory: int) -> Dataset:
    """Return a dataset with the directories that ``small_files`` would create for these arguments, but without the
    files.
    """

    def make(root: Path) -> None:
        for number in range(-(-files // per_directory)):
            (root / f"d{number:05}").mkdir()

    return Dataset(f"{-(-files // per_directory):,} empty directories", 0, 0, make, -(-files // per_directory))


def hard_links(files: int, names: int) -> Dataset:
    """Return a dataset of ``files`` files of 4 KiB, each with ``names`` names in different directories."""
    single = small_files(files, 4 * KIB, 100)

    def make(root: Path) -> None:
        single.make(root)
        for directory in sorted(root.iterdir()):
            for number in range(1, names):
                other = root / f"{directory.name}-{number}"
                other.mkdir()
                for file in directory.iterdir():
                    os.link(file, other / file.name)

    label = f"{files:,} files of 4,096 bytes with {names} names each"
    return Dataset(label, files * names, single.size, make, single.directories * names)


ScalableDataset = Callable[[float], Dataset]
"""Type of a function that returns a dataset for a scale (a factor for its size). With scale 1, a dataset takes some GiB
of memory and some seconds to copy.
"""


def _scaled_number(number: int, scale: float, least: int = 1) -> int:
    """Return ``number`` multiplied by ``scale``, but at least ``least``."""
    return max(least, round(number * scale))


def _number_of_tree_levels(width: int, directories: float) -> int:
    """Return the number of levels of a tree in which each directory has ``width`` subdirectories.

    It is the largest one with which the tree has at most ``directories`` directories.
    """
    counts = accumulate(width**level for level in range(32))
    return max(1, sum(1 for count in counts if count <= directories) - 1)


DATASETS_BY_NAME: dict[str, ScalableDataset] = {
    "huge": lambda scale: large_file(_scaled_number(6 * GIB, scale, MIB)),
    "large": lambda scale: large_file(_scaled_number(GIB, scale, MIB)),
    "hundreds": lambda scale: small_files(
        _scaled_number(40, max(scale, 1)), _scaled_number(100 * MIB, min(scale, 1), MIB), 10
    ),
    "heavy": lambda scale: files_of_heavy_tailed_sizes(
        _scaled_number(100_000, scale, 100), 4 * KIB, _scaled_number(100 * MIB, min(scale, 1), MIB)
    ),
    "one": lambda _: small_files(1, 4 * KIB, 1),
    "small": lambda scale: small_files(_scaled_number(50_000, scale, 200), 4 * KIB, 100),
    "many": lambda scale: many_files(_scaled_number(400_000, scale, 200)),
    "fdtree": lambda scale: directory_tree(_number_of_tree_levels(8, 5000 * scale), 8, 10, 4 * KIB),
    "directories": lambda scale: directory_tree(_number_of_tree_levels(8, 40_000 * scale), 8, 0, 0),
    "links": lambda scale: hard_links(_scaled_number(10_000, scale, 200), 3),
    "20000-in-200": lambda scale: small_files(_scaled_number(20_000, scale, 200), 4 * KIB, 100),
    "2000-in-20": lambda scale: small_files(_scaled_number(2000, scale, 200), 4 * KIB, 100),
    "2000-in-1": lambda scale: small_files(_scaled_number(2000, scale, 100), 4 * KIB, 2000),
}
"""The datasets of the benchmarks, by name."""


def main() -> int:
    """Create the dataset that the command line selects, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.datasets", description=__doc__)
    parser.add_argument("shape", choices=DATASETS_BY_NAME)
    parser.add_argument("directory", type=Path, help="is created")
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    dataset = DATASETS_BY_NAME[arguments.shape](arguments.scale)
    arguments.directory.mkdir()
    dataset.make(arguments.directory)
    print(f"{arguments.directory}: {dataset.label}, {dataset.size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
