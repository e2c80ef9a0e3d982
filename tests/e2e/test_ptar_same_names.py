"""Names that members of several types have in one archive: the last one wins, as with GNU tar.

The number of ranks makes no difference. Each case has a directory of its own in one
archive, so that one run extracts all.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest

from tests.support.archives import ptar
from tests.support.command import show

Case = tuple[tuple[str, str, str], ...]
"""Members: the letter of the type, the name, and the target of a link."""
KINDS = {"d": tarfile.DIRTYPE, "f": tarfile.REGTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "p": tarfile.FIFOTYPE}
OF_ONE_NAME = [*((kind, "x", "first") for kind in KINDS), ("f", "x/below", ""), ("d", "x/below", "")]
ORDERS: list[Case] = [case for number in (1, 2, 3) for case in product(OF_ONE_NAME, repeat=number)]
"""Up to three members of one name, or below it, in all orders."""
LINKS: list[Case] = [
    (("f", "a", ""), ("h", "a/b", "a"), ("f", "a", "")),
    (("f", "a", ""), ("h", "a/b", "a"), ("f", "a", ""), ("d", "a", "")),
    (("d", "b", ""), ("f", "a", ""), ("h", "b", "a"), ("f", "a", ""), ("p", "a", "")),
    (("d", "b", ""), ("f", "b/c", ""), ("f", "a", ""), ("h", "b", "a"), ("f", "a", "")),
    (("f", "x/a/b", ""), ("p", "x/a/b", ""), ("h", "x/a", "x/a"), ("l", "x/a/b", "x")),
    (("d", "a/b", ""), ("h", "a", "a"), ("f", "a/b", "")),
    (("d", "a", ""), ("h", "a", "a")),
]
"""Links to replaced files and to themselves, with directories of their names."""
CASES = [*ORDERS, *LINKS]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "a.tar"
    with tarfile.open(path, "w") as stream:
        for number, case in enumerate(CASES):
            for at, (kind, name, link) in enumerate([("f", "first", ""), *case]):
                info = tarfile.TarInfo(f"{number}/{name}")
                info.type, info.mtime, info.mode = KINDS[kind], 10**9 + at, 0o700 + at
                info.linkname = f"{number}/{link}" if kind == "h" else link
                data = b"%d" % at * (30 * (at % 2) + 1) if kind == "f" else b""
                info.size = len(data)
                stream.addfile(info, BytesIO(data))
    return path


def extracted(place: Path) -> dict[str, tuple[object, ...]]:
    """Return type, mode, contents, mtime and first name of each item. Directories made for their contents have a new
    mtime.
    """
    found, first = dict[str, tuple[object, ...]](), dict[int, str]()
    for directory, directories, files in os.walk(place):
        for name in sorted(directories + files):
            path = Path(directory, name)
            status = path.lstat()
            shown, data = str(path.relative_to(place)), b""
            if stat.S_ISREG(status.st_mode):
                data = path.read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                data = os.fsencode(os.readlink(path))
            same = "" if stat.S_ISDIR(status.st_mode) else first.setdefault(status.st_ino, shown)
            mtime = min(status.st_mtime_ns, 15 * 10**17)
            found[shown] = (status.st_mode, data, mtime, same)
    return found


def cases_of(paths: Sequence[str]) -> set[int]:
    return {int(path.split("/")[0]) for path in paths}


@pytest.mark.parametrize("ranks", [1, 3])
def test_large_files_beside_conflicts_of_names(ranks: int, tmp_path: Path) -> None:
    """A file above 1 MiB is left to a task of its own; that one must extract it."""
    members = [("d/x", b"file"), ("d/large", bytes(1_048_577)), ("d/x/", b""), ("d/x/large", bytes(2_000_000))]
    with tarfile.open(tmp_path / "a.tar", "w") as stream:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE, len(data)
            stream.addfile(info, BytesIO(data))
    place = tmp_path / "place"
    place.mkdir()
    done = ptar("-x", "-f", tmp_path / "a.tar", "-C", place, ranks=ranks)
    assert done.returncode == 0, show(done)
    sizes = {path.relative_to(place).as_posix(): path.stat().st_size for path in place.rglob("*") if path.is_file()}
    assert sizes == {"d/large": 1_048_577, "d/x/large": 2_000_000}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_last_member_of_a_name_wins(ranks: int, archive: Path, tmp_path: Path) -> None:
    place, other, errors = tmp_path / "place", tmp_path / "other", tmp_path / "errors"
    for directory in (place, other):
        directory.mkdir()
    oracle = subprocess.run(
        ["tar", "-xpf", archive, "-C", other],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    done = ptar("-x", "-f", archive, "-C", place, "--errors", errors, ranks=ranks)
    assert (done.returncode, oracle.returncode) == (1, 2), show(done)
    found, expected = extracted(place), extracted(other)
    assert {path: item for path, item in found.items() if expected.get(path) != item} == {}
    assert found.keys() == expected.keys()
    failed = [os.path.relpath(json.loads(line)["path"], place) for line in errors.read_text().splitlines()]
    refused = re.findall(r"^tar: (\d+/[^:]*): Cannot", oracle.stderr, re.MULTILINE)
    is_link_to_itself = {len(ORDERS) + number for number, case in enumerate(LINKS) if any(m[1] == m[2] for m in case)}
    assert cases_of(failed) - is_link_to_itself == cases_of(refused)
