"""``ptar -x`` of many directories, which the C backend creates several at once: GNU tar extracts the same."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.archives import ptar
from tests.support.command import show
from tests.support.faults import Fault, require_strace, slowed
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, is_root, require_root

SIZES = {"f": 700, "empty": 0, "large": (1 << 20) + 1}
DEEP = "/".join("abcdefghij"[level % 10] for level in range(70))
DIRECTORIES = {
    "leaf": 0o755,
    "closed": 0o500,
    "set-gid": 0o2775,
    "sticky": 0o1777,
    "parent": 0o750,
    "parent/child": 0o700,
    "parent/child/grandchild": 0o711,
    "parent/other": 0o555,
    "with-link": 0o705,
    "with-large": 0o704,
    "above/not-described/below": 0o701,
    "above": 0o751,
    DEEP: 0o755,
    DEEP[:39]: 0o711,
    DEEP[:19]: 0o711,
}
"""Modes of the directories that members describe."""
FILES = ("leaf/f", "leaf/empty", "closed/f", "parent/f", "parent/other/f", "with-link/f", "with-large/large",
         "with-large/f", "only/of/files/f", "top/f", "above/not-described/f", f"{DEEP}/f")  # fmt: skip


def members() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Five groups of the directories and files, each in a directory of its own."""
    found = []
    owners = [(0, 0), (1234, 2345)] if is_root() else [(os.getuid(), os.getgid())]
    for group in range(5):
        names = [(name, tarfile.DIRTYPE, mode) for name, mode in DIRECTORIES.items()]
        names += [(name, tarfile.REGTYPE, 0o4640 if group % 2 else 0o604) for name in FILES]
        names.append(("with-link/link", tarfile.SYMTYPE, 0o777))
        for number, (name, kind, mode) in enumerate(names):
            info = tarfile.TarInfo(f"g{group}/{name}")
            info.type, info.mode, info.mtime, info.linkname = (
                kind,
                mode,
                1_000_000_000 + number,
                "f" if mode == 0o777 else "",
            )
            info.uid, info.gid = owners[(group + number) % len(owners)]
            info.size = SIZES[os.path.basename(name)] if kind == tarfile.REGTYPE else 0
            found.append((info, os.urandom(info.size)))
    return found


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Archives of the same members: sorted by name, the reverse, and in an order without meaning."""
    place, every = tmp_path_factory.mktemp("archives"), members()
    every.sort(key=lambda member: member[0].name)
    orders = {"sorted": every, "reverse": every[::-1], "mixed": every[::7] + [m for n, m in enumerate(every) if n % 7]}
    for order, some in orders.items():
        with tarfile.open(place / order, "w") as stream:
            for info, data in some:
                stream.addfile(info, BytesIO(data))
    return {order: place / order for order in orders}


def extracted(place: Path) -> dict[str, tuple[object, ...]]:
    """Return type, mode, owner, mtime and contents of each item; without mtime if no member describes it."""
    found = dict[str, tuple[object, ...]]()
    for above, directories, files in os.walk(place):
        for name in directories + files:
            path = Path(above, name)
            status, shown = path.lstat(), str(path.relative_to(place))
            is_described = shown.partition("/")[2] in (*DIRECTORIES, *FILES, "with-link/link")
            mode = status.st_mode if not stat.S_ISLNK(status.st_mode) else stat.S_IFLNK
            data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[shown] = (mode, status.st_uid, status.st_gid, is_described and status.st_mtime_ns, data)
    return found


@pytest.mark.parametrize("order", ["sorted", "reverse", "mixed"])
def test_directories_are_extracted_as_by_tar(order: str, archives: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tar").mkdir()
    subprocess.run(["tar", "--delay-directory-restore", "-xpf", archives[order], "-C", tmp_path / "tar"], check=True)
    expected = extracted(tmp_path / "tar")
    assert len(expected) > 5 * (len(DIRECTORIES) + len(FILES))
    for ranks in (1, 3):
        place = tmp_path / f"{ranks}"
        place.mkdir()
        for _ in range(2):  # the second time, all of them exist
            done = ptar("-x", "-q", "-f", archives[order], "-C", place, ranks=ranks)
            assert done.returncode == 0, show(done)
            found = extracted(place)
            assert {name: (item, found.get(name)) for name, item in expected.items() if found.get(name) != item} == {}
            assert found.keys() == expected.keys()


def test_existing_items_in_the_place_of_directories(archives: dict[str, Path], tmp_path: Path) -> None:
    """A link is replaced if a member describes the directory, and never followed; other items below it fail."""
    place, outside = tmp_path / "place", tmp_path / "outside"
    (place / "g3").mkdir(parents=True)
    (place / "g4/above").mkdir(parents=True)
    outside.mkdir()
    (place / "g3/leaf").symlink_to(outside)
    (place / "g3/parent").write_bytes(b"file")
    (place / "g4/above/not-described").symlink_to(outside)
    done = ptar("-x", "-q", "-f", archives["sorted"], "-C", place, ranks=2)
    assert done.returncode == 1, show(done)
    assert list(outside.iterdir()) == []
    errors = [os.fsdecode(line) for line in done.stderr.splitlines()]
    assert (place / "g3/leaf/f").stat().st_size == 700
    assert (place / "g3/parent/child/grandchild").is_dir()
    assert (place / "g4/above/not-described").is_symlink()
    failed = [line for line in errors if "g4/above/not-described" in line]
    assert len(failed) == len([line for line in errors if line.startswith("ptar: /")]) == 2, show(done)


def archive_of(path: Path, names: dict[str, tuple[bytes, int]], owner: int) -> Path:
    """Return an archive of members with these types and modes, all of one owner. Hard links lead to ``leaf/f``."""
    with tarfile.open(path, "w") as archive:
        for name, (kind, mode) in names.items():
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid, info.mtime = kind, mode, owner, owner, 1_000_000_000
            info.linkname = "leaf/f" if kind == tarfile.LNKTYPE else ""
            info.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, BytesIO(b"data"))
    return path


LEAVES = {
    "its owner is another user": (0, NOBODY, 0o755),
    "its group may write": (0, 0, 0o775),
    "everybody may write": (0, 0, 0o777),
    "it is read-only": (NOBODY, NOBODY, 0o500),
    "nobody may enter it": (NOBODY, NOBODY, 0o600),
    "it has no rights": (NOBODY, NOBODY, 0o000),
}
"""The user who extracts a directory, and its owner and mode."""


@pytest.mark.parametrize("case", LEAVES)
def test_directory_is_private_until_links_to_its_files_are_created(area: Path, case: str) -> None:
    """Until then other users must not replace the files, and the user must be able to read them; also to extract the
    archive again after an interruption.
    """
    require_root("extract the files of several users")
    user, owner, mode = LEAVES[case]
    names = {"leaf": (tarfile.DIRTYPE, mode), "leaf/f": (tarfile.REGTYPE, 0o644)}
    names |= {"links": (tarfile.DIRTYPE, 0o755), "links/l": (tarfile.LNKTYPE, 0o644)}
    archive, place = archive_of(area / "a.tar", names, owner), area / "place"
    place.mkdir()
    os.chown(place, user, user)
    seen = set[tuple[int, int]]()

    def is_over() -> bool:
        if (place / "leaf/f").exists():
            status = (place / "leaf").stat()
            if not (place / "links/l").exists():
                seen.add((status.st_uid, stat.S_IMODE(status.st_mode)))
        return run.process.poll() is not None

    words = ("-x", "-q", "-f", archive, "-C", place)
    with background(*words, program="ptar", ranks=1, user=user, wrap=slowed("linkat", 300)) as run:
        assert wait_until(is_over)
        assert run.process.returncode == 0, run.process.communicate()
    assert seen == {(user, 0o700)}
    status = (place / "leaf").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (owner, mode)
    assert (place / "links/l").samefile(place / "leaf/f")


@pytest.mark.c_backend
@pytest.mark.parametrize(("name", "when"), [("above", "2"), ("leaf", "1")])
def test_directory_that_cannot_be_opened_after_its_creation_gets_its_mode(area: Path, name: str, when: str) -> None:
    """No member describes ``above``, so it has the mode of a new directory, however it was created. A directory that
    was created is not removed: another rank may create items in it already. The C backend extracts two directories.
    """
    require_strace()
    names = {"above/leaf": (tarfile.DIRTYPE, 0o755), "above/leaf/f": (tarfile.REGTYPE, 0o644)}
    names["above/other"] = (tarfile.DIRTYPE, 0o711)
    archive, place = archive_of(area / "a.tar", names, os.getuid()), area / "place"
    place.mkdir()
    fault = Fault(area / "log", ["openat"], Path(name), "EMFILE", when=when)  # the backend opens names in directories
    done = ptar("-x", "-q", "-f", archive, "-C", place, ranks=1, umask=0o027, wrap=fault.wrap())
    fault.check()
    assert done.returncode == 0, show(done)
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in ("above", "above/leaf")] == [0o750, 0o755]
    assert (place / "above/leaf/f").read_bytes() == b"data"
