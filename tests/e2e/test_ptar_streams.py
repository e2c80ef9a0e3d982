"""Archives that other programs have compressed as one stream are listed and unpacked directly."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.launch.launchers import HYDRA
from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import pcopy, show
from tests.support.oracle import differences
from tests.support.users import require_root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("streams") / "tree"
    for number in range(300):
        directory = tree / f"d{number % 7}" / ("long" * 40)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(os.urandom(number * 7))
    (tree / "large").write_bytes(os.urandom(3 * MIB) + bytes(3 * MIB))
    os.link(tree / "large", tree / "name")
    with open(tree / "sparse", "wb") as file:
        file.seek(5 * MIB)
        file.write(b"data")
        file.truncate(9 * MIB)
    subprocess.run(["tar", "-S", "--format=posix", "-cf", "plain.tar", "tree"], cwd=tree.parent, check=True)
    return tree


def packed(tree: Path, program: str, *, parts: int = 1) -> Path:
    """Return the archive compressed by ``program``, as ``parts`` concatenated streams."""
    data = (tree.parent / "plain.tar").read_bytes()
    path, step = tree.parent / f"a.{program}", -(-len(data) // parts)
    with path.open("wb") as file:
        for start in range(0, len(data), step):
            part = data[start : start + step]
            file.write(subprocess.run([program, "-c"], input=part, check=True, capture_output=True).stdout)
    return path


@pytest.mark.parametrize(("program", "parts"), [("gzip", 1), ("gzip", 3), ("zstd", 1), ("zstd", 3)])
def test_archives_compressed_by_other_programs_are_unpacked(program: str, parts: int, tree: Path, place: Path) -> None:
    archive = packed(tree, program, parts=parts)
    if program == "gzip" and parts > 1:
        archive.write_bytes(archive.read_bytes() + bytes(3000))  # padding as in the last block of a tape
    names = subprocess.run(["tar", "-tf", tree.parent / "plain.tar"], check=True, capture_output=True).stdout
    assert ptar("-tf", archive).stdout == names
    done = ptar("-x", "-f", archive, "-C", place, ranks=2)
    assert done.returncode == 0, show(done)
    assert b"is one stream" in done.stderr
    assert differences(tree, place / "tree", atimes=False) == []
    assert os.listdir(place) == ["tree"]
    assert ptar("-xqf", archive, "-C", place, "tree/large", ranks=1).stderr == b""


def test_ranks_under_a_launcher_share_the_decompressed_archive(tree: Path, place: Path) -> None:
    archive = packed(tree, "gzip")
    done = ptar("-x", "-f", archive, "-C", place, launcher="mpi", ranks=2)
    assert done.returncode == 0, show(done)
    assert done.stderr.count(b"is one stream") == 1
    assert differences(tree, place / "tree", atimes=False) == []


def test_stream_on_several_hosts_is_refused_with_a_command(tree: Path, place: Path) -> None:
    archive = packed(tree, "gzip")
    require_root("makes namespaces")
    done = ptar("-x", "-f", archive, "-C", place, wrap=[HYDRA, "-n", "2", "unshare", "--mount"])
    assert done.returncode == 2, show(done)
    assert b"gzip -dc " in done.stderr
    assert os.listdir(place) == []


@pytest.mark.parametrize("program", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "twice"])
def test_damaged_stream_is_reported_and_nothing_is_unpacked(program: str, damage: str, tree: Path, place: Path) -> None:
    archive = packed(tree, program)
    data = archive.read_bytes()
    middle = len(data) // 2
    if damage == "twice":
        archive.write_bytes(subprocess.run(["gzip", "-c", archive], check=True, capture_output=True).stdout)
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]
        archive.write_bytes(data[:-9] if damage == "cut" else flipped)
    done = ptar("-x", "-q", "-f", archive, "-C", place, ranks=2)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), show(done)
    assert b"cannot be decompressed" in done.stderr
    assert os.listdir(place) == []
    done = ptar("-tf", archive)
    assert (done.returncode, b"decompress: " in done.stderr) == (1, True), show(done)


def test_unsupported_compression_is_refused_with_a_command(tree: Path, place: Path) -> None:
    for word in ("-x", "-t"):
        done = ptar(word, "-f", packed(tree, "xz"), "-C", place)
        assert (done.returncode, b"xz -dc " in done.stderr) == (2, True), show(done)


def test_member_does_not_replace_the_archive(tree: Path, place: Path) -> None:
    (place / "a.tgz").write_bytes(b"evil")
    subprocess.run(["tar", "-czf", tree.parent / "a.tgz", "a.tgz"], cwd=place, check=True)
    data = (tree.parent / "a.tgz").read_bytes()
    (place / "a.tgz").write_bytes(data)
    done = ptar("-xf", place / "a.tgz", "-C", place, ranks=1)
    assert (done.returncode, b"would replace the archive" in done.stderr) == (1, True), show(done)
    assert (place / "a.tgz").read_bytes() == data


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(200 * MIB)
    subprocess.run(["tar", "-czf", "bomb.tgz", "zeros"], cwd=tmp_path, check=True)
    with small_file_system(tmp_path / "small", 16) as small:
        done = ptar("-xqf", tmp_path / "bomb.tgz", "-C", small, ranks=2)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), show(done)
        assert b"more than half of the free space" in done.stderr
        assert os.statvfs(small).f_bfree == os.statvfs(small).f_blocks
    assert ptar("-tf", tmp_path / "bomb.tgz").stdout == b"zeros\n"


def test_damaged_gzip_stream_is_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "tree").write_bytes(os.urandom(100_000))
    (tmp_path / "place").mkdir()
    subprocess.run(["tar", "-czf", "a.tgz", "tree"], cwd=tmp_path, check=True)
    data = bytearray((tmp_path / "a.tgz").read_bytes())
    data[-6] ^= 1  # in the checksum; gzip -t detects it, too
    (tmp_path / "a.tgz").write_bytes(data)
    assert subprocess.run(["gzip", "-t", tmp_path / "a.tgz"], check=False, capture_output=True).returncode == 1
    why = b"a.tgz: decompress: the gzip stream is damaged: incorrect data check; what follows is not read\n"
    done = ptar("-tqf", "a.tgz", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith(why), show(done)
    done = ptar("-xqf", "a.tgz", "-C", "place", cwd=tmp_path)
    way = f"; to unpack what can be read, use: gzip -dc {tmp_path}/a.tgz | tar -x -C place\n"
    assert done.returncode == 2 and done.stderr.decode().endswith(f"incorrect data check{way}"), show(done)
    assert os.listdir(tmp_path / "place") == []


def test_zstd_stream_with_large_window_is_refused_with_command(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    data = tmp_path / "data"
    data.write_bytes(b"data")
    subprocess.run(["tar", "-cf", "a.tar", "data"], cwd=tmp_path, check=True)
    with open(tmp_path / "a.tar", "rb") as plain, open(tmp_path / "a.tar.zst", "wb") as packed:
        subprocess.run(["zstd", "-c", "--long=28"], stdin=plain, stdout=packed, check=True, capture_output=False)
    assert subprocess.run(["zstd", "-t", "a.tar.zst"], cwd=tmp_path, check=False, capture_output=True).returncode == 1
    why = "the zstd frame that begins at byte 0 needs 256 MiB of memory, and 128 MiB are allowed"
    more = "zstd -d --long=31 decompresses it"
    done = ptar("-tqf", "a.tar.zst", cwd=tmp_path)
    assert done.returncode == 1 and f"{why}; {more}" in done.stderr.decode(), show(done)
    done = ptar("-xqf", "a.tar.zst", "-C", "place", cwd=tmp_path)
    way = f"use: zstd -dc --long=31 {tmp_path}/a.tar.zst | tar -x -C place\n"
    assert done.returncode == 2 and done.stderr.decode().endswith(f"{why}; {more}; {way}"), show(done)
    done = pcopy("-q", "--decompress", tmp_path / "a.tar.zst", tmp_path / "a")
    assert done.returncode == 1 and f"{why}; {more} (".encode() in done.stderr, show(done)
    way = way.removeprefix("use: ")
    subprocess.run(["sh", "-c", way], cwd=tmp_path, check=True)
    assert (tmp_path / "place/data").read_bytes() == b"data"


@pytest.mark.parametrize("rest", [b"g", b"garbage\n", b"\x1f\x8b\x00garbage", b"\n" * 200_000])
@pytest.mark.parametrize("program", ["gzip", "zstd"])
def test_garbage_after_a_stream_is_ignored_and_reported(program: str, rest: bytes, tree: Path, place: Path) -> None:
    """GNU tar also unpacks everything, and ends with status 2."""
    archive = packed(tree, program)
    archive.write_bytes(archive.read_bytes() + rest)
    by_tar = place / "by_tar"
    by_tar.mkdir()
    assert subprocess.run(["tar", "-xf", archive, "-C", by_tar], check=False, capture_output=True).returncode == 2
    assert differences(tree, by_tar / "tree") == []

    words = f"were not compressed by {program}, and are ignored".encode()
    done = ptar("-x", "-f", archive, "-C", place, ranks=2)
    assert done.returncode == 1, show(done)
    assert words in done.stderr, show(done)
    assert b"0 failed" in done.stdout, show(done)
    assert differences(place / "tree", tree) == []
    listed = ptar("-t", "-f", archive)
    assert listed.returncode == 1, show(listed)
    assert words in listed.stderr, show(listed)
    assert listed.stdout == subprocess.run(["tar", "-tf", archive], check=False, capture_output=True).stdout


@pytest.mark.parametrize("program", ["gzip", "zstd"])
def test_truncated_part_of_a_stream_is_not_ignored(program: str, tree: Path, place: Path) -> None:
    archive = packed(tree, program)
    whole = archive.read_bytes()
    for size in (2, 5, 1000):
        archive.write_bytes(whole + whole[:size])
        done = ptar("-x", "-f", archive, "-C", place)
        assert done.returncode == 2, show(done)
        assert b"cut short" in done.stderr, show(done)
        assert os.listdir(place) == []


@pytest.mark.parametrize("program", ["", "gzip", "zstd"])
@pytest.mark.parametrize(
    "name", [b"\x1f\x8b\x08x", b"BZhx", b"\xfd7zXZ", b"\x28\xb5/\xfdx", b"\x04\x22M\x18", b"\x50\x2aM\x18"]
)
def test_name_of_the_first_member_is_no_compression(tmp_path: Path, name: bytes, program: str) -> None:
    """Archives begin with the name of their first member. tar finds that it is a header."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as made:
        made.addfile(tarfile.TarInfo(name.decode("latin-1")))
    archive = tmp_path / "a.tar"
    assert archive.read_bytes().startswith(name)
    if program:
        subprocess.run([program, "-q", archive], check=True)
        archive = next(path for path in tmp_path.iterdir() if path.suffix != ".tar")
    expected = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True).stdout
    listed = ptar("-t", "-f", archive)
    assert (listed.returncode, listed.stdout) == (0, expected), show(listed)
    (tmp_path / "out").mkdir()
    unpacked = ptar("-x", "-f", archive, "-C", tmp_path / "out")
    assert unpacked.returncode == 0, show(unpacked)
    assert os.path.lexists(bytes(tmp_path / "out") + b"/" + name)
