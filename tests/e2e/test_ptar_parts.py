"""``ptar -x`` unpacks a large member of a compressed archive in parts, which all ranks write in parallel."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import show
from tests.support.faults import require_strace
from tests.support.held import held
from tests.support.oracle import differences
from tests.support.traces import whole_lines
from tests.support.users import is_root

SIZE = 56 * MIB + 4321
"""Four parts of 16 MiB, the last one shorter."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("parts") / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(os.urandom(MIB) * 8 + bytes(SIZE - 20 * MIB) + os.urandom(12 * MIB))
    with open(tree / "sparse", "wb") as file:
        file.truncate(60 * MIB)
        file.seek(50 * MIB)
        file.write(os.urandom(MIB))
    (tree / "small").write_bytes(b"small")
    os.link(tree / "large", tree / "zz-link")
    subprocess.run(["setfattr", "-n", "user.a", "-v", "b", tree / "large"], check=True)
    subprocess.run(["setfacl", "-m", "u:1000:rwx", tree / "large"], check=True)
    if is_root():
        os.chown(tree / "large", 1000, 1000)
    os.chmod(tree / "large", 0o4751)
    os.utime(tree / "large", ns=(10**18, 10**18 + 123))
    return tree


@pytest.fixture(scope="module")
def archive(tree: Path) -> Path:
    done = ptar("-c", "-q", "--zstd", "-f", tree.parent / "a.tar.zst", "-C", tree.parent, "tree", ranks=2)
    assert done.returncode == 0, show(done)
    return tree.parent / "a.tar.zst"


def temporary_files(place: Path) -> list[str]:
    return [name for _, _, names in os.walk(place) for name in names if name.startswith(".pcopy-")]


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_file_unpacked_in_parts_equals_its_source(launcher: str | None, tree: Path, archive: Path, place: Path) -> None:
    done = ptar("-xf", archive, "-C", place, "--json", ranks=3, launcher=launcher)
    assert done.returncode == 0, show(done)
    assert differences(tree, place / "tree", atimes=False) == []
    reported = json.loads(done.stdout)
    assert (reported["found"], reported["files"], reported["hardlinks"], reported["bytes"]) == (
        5,
        3,
        1,
        SIZE + 60 * MIB + 5,
    )


def test_parts_are_written_separately_and_the_name_is_given_last(archive: Path, place: Path) -> None:
    """A single rank writes the file as a whole. In both cases a large file gets its name only when it is complete."""
    require_strace()
    for ranks, parts in ((2, 4), (1, 0)):
        log = place.parent / f"log{ranks}"
        wrap = ("strace", "-f", "-qq", "--seccomp-bpf", "-o", log, "-e", "trace=openat,openat2,renameat,renameat2")
        done = ptar("-xqf", archive, "-C", place, ranks=ranks, wrap=wrap)
        assert done.returncode == 0, show(done)
        lines = list(whole_lines(log))
        assert (
            sum("/large" in line or '"large"' in line for line in lines if "openat" in line and "O_CREAT" in line) == 0
        )
        (renamed,) = [line for line in lines if "rename" in line and '"large"' in line and line.endswith(" = 0")]
        found = re.search(r'"(\.pcopy-[^"]+)"', renamed)
        assert found is not None
        opened = [line for line in lines if found[1] in line and "O_WRONLY" in line and "O_CREAT" not in line]
        assert len(opened) == parts + bool(parts)


def test_existing_items_are_replaced_on_unpacking(tree: Path, archive: Path, place: Path) -> None:
    (place / "tree/large").mkdir(parents=True)
    (place / "outside").write_bytes(b"kept")
    os.link(place / "outside", place / "tree/sparse")
    for _ in range(2):
        done = ptar("-xqf", archive, "-C", place, ranks=2)
        assert done.returncode == 0, show(done)
        assert differences(tree, place / "tree", atimes=False) == []
    assert (place / "outside").read_bytes() == b"kept"
    (place / "tree/large").unlink()
    (place / "tree/large/full").mkdir(parents=True)
    done = ptar("-xf", archive, "-C", place, ranks=2)
    assert (done.returncode, b"tree/large: " in done.stderr) == (1, True), show(done)
    assert (place / "tree/large/full").is_dir()
    assert temporary_files(place) == []


def test_damaged_part_fails_the_whole_file(archive: Path, place: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 255
    (place.parent / "b").write_bytes(data)
    done = ptar("-xf", place.parent / "b", "-C", place, "--json", ranks=2)
    reported = json.loads(done.stdout)
    assert (done.returncode, reported["failed"], reported["files"]) == (1, 2, 2), show(done)
    assert done.stderr.count(b"tree/large: decompress: ") == 1
    assert sorted(os.listdir(place / "tree")) == ["small", "sparse"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_full_disk_leaves_no_partial_member(ranks: int, archive: Path, tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 40) as small:
        done = ptar("-xf", archive, "-C", small, "--json", ranks=ranks)
        reported = json.loads(done.stdout)
        assert done.returncode in (1, 75), show(done)
        assert b"No space left on device" in done.stderr
        there = set(os.listdir(small / "tree"))
        assert there <= {"small", "sparse"}
        assert reported["files"] == len(there)


@pytest.mark.parametrize(("call", "when"), [("pwrite64", "9"), ("ftruncate", "1"), ("fsetxattr", "1")])
def test_signal_leaves_no_partial_member(call: str, when: str, archive: Path, place: Path) -> None:
    words = ("-xf", archive, "-C", place, "--json")
    with held(place.parent / "log", *words, calls=(call,), when=when, program="ptar", ranks=2) as run:
        run.run.send_signal(signal.SIGTERM)
        done = run.go_on()
    assert done.returncode == 75, show(done)
    assert temporary_files(place) == []
    reported = json.loads(done.stdout)
    there = [path for path in (place / "tree").iterdir() if path.name in ("large", "small", "sparse")]
    assert reported["files"] == len(there)
    assert all(path.stat().st_size in (5, SIZE, 60 * MIB) for path in there)


def test_item_that_replaced_the_temporary_file_is_not_written(archive: Path, place: Path) -> None:
    """Another user may own the directory and replace the temporary file by a link."""
    (place.parent / "victim").write_bytes(bytes(SIZE))
    (place / "tree").mkdir()
    words = ("-xf", archive, "-C", place, "tree/large")
    with held(place.parent / "log", *words, calls=("pwrite64",), program="ptar", ranks=2) as run:
        (name,) = [each for each in temporary_files(place) if (place / "tree" / each).stat().st_size == SIZE]
        (place / "tree" / name).unlink()
        os.link(place.parent / "victim", place / "tree" / name)
        done = run.go_on()
    assert (done.returncode, b"tree/large: " in done.stderr) == (1, True), show(done)
    assert not (place / "tree/large").exists()
    assert (place.parent / "victim").read_bytes() == bytes(SIZE)
