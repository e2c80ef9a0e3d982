"""``ptar`` makes archives that GNU tar and bsdtar unpack, and unpacks theirs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import Argument, pverify, show
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import is_root

GNU = ("tar", "--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner")
LONG = b"n" * 200
NAMES = (b"plain", LONG, b"\xff\xfe", b"new\nline", "ü€".encode(), b"\xff" * 150, b" ", b"-rf", b"a=b", b"back\\slash")


def run(*command: Argument, cwd: Path) -> None:
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def by_gnu_tar(archive: Path, place: Path) -> None:
    run(*GNU, "-xpf", archive, cwd=place)


def by_bsdtar(archive: Path, place: Path) -> None:
    run("bsdtar", "--numeric-owner", "-xpf", archive, cwd=place)


def by_ptar(archive: Path, place: Path) -> None:
    done = ptar("-x", "-q", "--numeric-owner", "-f", archive, "-C", place, ranks=2)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), show(done)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with all types of items that all three programs can archive."""
    place = tmp_path_factory.mktemp("ptar")
    tree = place / "tree"
    tree.mkdir()
    for number, name in enumerate(NAMES):
        path = os.path.join(os.fsencode(tree), name)
        os.mkdir(path + b".d")
        with open(os.path.join(path + b".d", name), "wb") as file:
            file.write(name * number * 1000)
        with open(path, "wb") as file:
            file.write(name)
        os.utime(path, ns=(10**18 + number, 10**18 + 123_456_789 + number))
    deep = tree
    for number in range(12):
        deep /= f"{number}" * 30
        deep.mkdir()
    (deep / "file").write_bytes(b"deep")
    os.link(deep / "file", tree / "zz-link")
    os.link(deep / "file", tree / "a-link")
    (tree / "empty").mkdir()
    (tree / "to").symlink_to("nowhere" * 20)
    (tree / "large").write_bytes(os.urandom(9 * MIB + 5))
    with open(tree / "sparse", "wb") as file:
        file.truncate(20 * MIB)
        for at in (MIB, 7 * MIB, 19 * MIB):
            file.seek(at)
            file.write(b"data" * 5000)
    with open(tree / "hole", "wb") as file:
        file.truncate(3 * MIB)
    os.mkfifo(tree / "fifo")
    (tree / "old").write_bytes(b"")
    os.utime(tree / "old", (-1000, -1000))
    os.chmod(tree / "empty", 0o1700)
    run("setfacl", "-m", "u:1000:rwx,u:65534:r", "plain", cwd=tree)
    run("setfacl", "-d", "-m", "u:1000:rwx", "empty", cwd=tree)
    run("setfattr", "-n", "user.a=b%c", "-v", "0x00ff3d0a", "plain", cwd=tree)
    if is_root():
        os.mknod(tree / "device", 0o20600, os.makedev(1, 3))
        os.chown(tree / "large", 1000, 3_000_000)
        os.chmod(tree / "large", 0o4755)
    return tree


UNPACKERS = [by_gnu_tar, by_bsdtar, by_ptar]


@pytest.fixture(scope="module")
def archive(tree: Path) -> Path:
    made = tree.parent / "made.tar"
    done = ptar("-c", "-q", "-f", made, "-C", tree.parent, "tree", ranks=2)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), show(done)
    return made


@pytest.mark.parametrize("unpack", UNPACKERS, ids=lambda unpack: unpack.__name__)
def test_archives_of_ptar_are_unpacked_by_all_programs(
    unpack: Callable[[Path, Path], None], tree: Path, archive: Path, place: Path
) -> None:
    unpack(archive, place)
    found = differences(tree, place / "tree", atimes=False)
    if unpack is by_bsdtar:  # it cannot read an equals sign in the name of an attribute as GNU tar writes it
        found = [line for line in found if "user.a" not in line and not line.endswith("x plain")]
    assert found == []
    assert (place / "tree/sparse").stat().st_blocks < 1000
    assert (place / "tree/a-link").stat().st_nlink == 3


@pytest.mark.parametrize(
    "make",
    [
        (*GNU, "--sparse", "--format=pax", "-cf"),
        ("tar", "--numeric-owner", "--sparse", "--format=gnu", "-cf"),
        ("bsdtar", "--numeric-owner", "--format=pax", "-cf"),
    ],
    ids=["pax", "gnu", "bsdtar"],
)
def test_archives_of_other_programs_are_unpacked(make: Sequence[str], tree: Path, place: Path, tmp_path: Path) -> None:
    subprocess.run([*make, tmp_path / "a.tar", "tree"], check=False, cwd=tree.parent, capture_output=True)
    by_ptar(tmp_path / "a.tar", place)
    found = differences(tree, place / "tree", atimes=False)
    if "--format=gnu" in make:  # this format has neither attributes nor fractions of seconds
        assert {line for line in found if "contents" in line or "missing" in line} == set()
        assert (place / "tree/large").read_bytes() == (tree / "large").read_bytes()
    else:
        assert found == []


def test_archive_does_not_depend_on_the_number_of_ranks(tree: Path, archive: Path, tmp_path: Path) -> None:
    for ranks in (1, 8):
        assert ptar("-cf", tmp_path / "a.tar", "-C", tree.parent, "tree", ranks=ranks).returncode == 0
        assert (tmp_path / "a.tar").read_bytes() == archive.read_bytes()
        assert (tmp_path / "a.tar.idx").read_bytes().split(b"\n")[1:] == (
            archive.with_name("made.tar.idx").read_bytes().split(b"\n")[1:]
        )
    assert archive.stat().st_size % 10240 == 0


def test_random_tree_survives_a_round_trip(tmp_path: Path, place: Path) -> None:
    random_tree(tmp_path / "tree", 7, files=60, directories=12, largest=5 * MIB, privileged=is_root())
    subprocess.run(["find", tmp_path / "tree", "-type", "s", "-delete"], check=True)  # sockets are not archived
    done = ptar("-cf", tmp_path / "a.tar", "-C", tmp_path, "tree", ranks=3)
    assert done.returncode == 0, show(done)
    by_ptar(tmp_path / "a.tar", place)
    assert differences(tmp_path / "tree", place / "tree", atimes=False) == []


def test_signature_of_an_archive_verifies_the_unpacked_tree(tree: Path, place: Path, tmp_path: Path) -> None:
    signature = tmp_path / "a.sig"
    done = ptar("-cf", tmp_path / "a.tar", "-C", tree.parent, "--signature", signature, "tree", ranks=2)
    assert done.returncode == 0, show(done)
    by_gnu_tar(tmp_path / "a.tar", place)
    assert pverify(signature, place / "tree").returncode == 0
    (place / "tree/plain").write_bytes(b"plai ")
    assert pverify(signature, place / "tree").returncode == 1


@pytest.mark.parametrize("how", ["--zstd", "--gzip"])
def test_compressed_archives_are_read_by_all_programs(
    how: str, tree: Path, archive: Path, place: Path, tmp_path: Path
) -> None:
    """The contents equal the uncompressed archive; any rank may compress each part, and the parts are in order."""
    made, again, signature = tmp_path / "a.tar.x", tmp_path / "b.tar.x", tmp_path / "a.sig"
    words: list[Argument] = ["--signature", signature, "-C", tree.parent, "tree"]
    assert ptar("-c", how, "-f", made, *words, ranks=2).returncode == 0
    assert ptar("-c", how, "-f", again, *words, ranks=1).returncode == 0
    assert made.read_bytes() == again.read_bytes()
    program = how.lstrip("-")
    unpacked = subprocess.run([program, "-dc"], stdin=made.open("rb"), check=True, capture_output=True).stdout
    assert unpacked == archive.read_bytes()
    run("tar", how, "-tf", made, cwd=tmp_path)
    by_ptar(made, place)
    assert differences(tree, place / "tree", atimes=False) == []
    assert pverify(signature, place / "tree").returncode == 0
    assert ptar("-tf", made).stdout == ptar("-tf", archive).stdout
    data = bytearray(made.read_bytes())
    data[len(data) // 2] ^= 1
    made.write_bytes(data)
    if how == "--zstd":
        done = ptar("-xf", made, "-C", place, ranks=2)
        assert done.returncode == 1, show(done)
        assert b"damaged" in done.stderr
    else:
        (tmp_path / "a.tar.x.idx").unlink()
        done = ptar("-xf", made, "-C", place)
        assert (done.returncode, b"gzip -dc " in done.stderr) == (2, True), show(done)


def test_listing_equals_that_of_tar(archive: Path) -> None:
    done = ptar("-tvf", archive, env={"TZ": "UTC"})
    reported = subprocess.run(
        ["tar", "-tvf", archive], check=True, capture_output=True, env={**os.environ, "TZ": "UTC"}
    )
    ours, theirs = done.stdout.splitlines(), reported.stdout.splitlines()
    assert done.returncode == 0
    assert len(ours) == len(theirs)
    plain = [at for at, line in enumerate(theirs) if b"\\" not in line]
    assert [ours[at].split() for at in plain] == [theirs[at].split() for at in plain]
    assert all(line.isprintable() for line in done.stdout.decode().splitlines())
    names = [json.loads(line)["path"] for line in ptar("-tf", archive, "--json").stdout.splitlines()]
    assert len(names) == len(theirs)
    some = ptar("tf", archive, "tree/empty", "tree/to").stdout
    assert some == b"tree/to\ntree/empty/\n"
    none = ptar("-tf", archive, "nothing")
    assert (none.returncode, none.stdout) == (1, b"")


def test_only_selected_members_are_unpacked(tree: Path, archive: Path, place: Path) -> None:
    done = ptar(
        "-xf", archive, "-C", place, "--strip-components", "1", "--exclude", "large", "tree/plain", "tree/large"
    )
    assert done.returncode == 0, show(done)
    assert os.listdir(place) == ["plain"]


def test_existing_items_are_replaced_on_unpacking(archive: Path, tree: Path, place: Path) -> None:
    (place / "tree/empty").mkdir(parents=True)
    (place / "tree/empty/stays").touch()
    (place / "outside").mkdir()
    (place / "outside/file").write_bytes(b"kept")
    (place / "tree/plain").symlink_to(place / "outside/file")
    (place / "tree/plain.d").symlink_to(place / "outside")
    (place / "tree/to").write_bytes(b"old")
    os.link(place / "outside/file", place / "tree/large")
    by_ptar(archive, place)
    (place / "tree/empty/stays").unlink()
    os.utime(place / "tree/empty", ns=(0, (tree / "empty").stat().st_mtime_ns))
    assert differences(tree, place / "tree", atimes=False) == []
    assert (place / "outside/file").read_bytes() == b"kept"
    assert os.listdir(place / "outside") == ["file"]


def test_file_that_changes_fails_and_the_archive_is_well_formed(tmp_path: Path, place: Path) -> None:
    """Injected results make the file look empty when it is read."""
    (tmp_path / "tree").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "tree" / name).write_bytes(b"x" * 3000)
    read = ("strace", "-f", "-qq", "-e", "trace=read,pread64", "-P", str(tmp_path / "tree/b"))
    wrap = (*read, "-e", "inject=read,pread64:retval=0:when=1+", "-o", "/dev/null")
    done = ptar("-cf", tmp_path / "a.tar", "-C", tmp_path, "--json", "tree", ranks=1, wrap=wrap)
    assert done.returncode == 1, show(done)
    reported = json.loads(done.stdout)
    assert (reported["found"], reported["files"], reported["failed"], reported["changed"]) == (4, 2, 1, 1)
    assert b"tree/b: read: the file changed" in done.stderr
    by_gnu_tar(tmp_path / "a.tar", place)
    assert (place / "tree/b").read_bytes() == bytes(3000)
    assert (place / "tree/c").read_bytes() == b"x" * 3000


def test_items_that_are_not_archived_are_reported(tmp_path: Path, place: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"x")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "tree/s"))
    inside = tmp_path / "tree/a.tar"
    for _ in range(2):
        done = ptar("-cf", inside, tmp_path / "tree")
        assert done.returncode == 0, show(done)
        assert b"a socket, which no archive holds" in done.stderr
    assert b"is the archive itself" in done.stderr
    assert b"is called" in done.stderr  # the member name has no leading slash
    run("tar", "-xf", inside, cwd=place)
    assert sorted(os.listdir(str(place) + str(tmp_path / "tree"))) == ["file"]


@pytest.mark.parametrize("keeps", [True, False], ids=["index", "without"])
def test_intact_members_of_a_damaged_archive_are_unpacked(
    keeps: bool, archive: Path, place: Path, tmp_path: Path
) -> None:
    """Damaged members fail, and the message gives the position."""
    data = bytearray(archive.read_bytes())
    at = data.find(b"tree/zz-link")
    data[at + 120] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    if keeps:
        status = (tmp_path / "a.tar").stat()
        lines = archive.with_name("made.tar.idx").read_bytes().split(b"\n")
        lines[0] = b"#pcopy-tar-index 1 %d %d" % (status.st_size, status.st_mtime_ns)
        (tmp_path / "a.tar.idx").write_bytes(b"\n".join(lines))
    done = ptar("-xf", tmp_path / "a.tar", "-C", place, ranks=2)
    assert done.returncode == 1, show(done)
    assert b"its checksum is wrong" in done.stderr
    assert (place / "tree/plain").read_bytes() == b"plain"
    os.truncate(tmp_path / "a.tar", len(data) // 2)
    done = ptar("-xf", tmp_path / "a.tar", "-C", place, ranks=2)
    assert done.returncode == 1, show(done)
    assert b"ends here" in done.stderr or b"is truncated" in done.stderr
    assert (b"a.tar.idx: is not used: the archive has changed" in done.stderr) == keeps
    assert (b"all headers are read instead: remove that file" in done.stderr) == keeps
    assert ptar("-tf", tmp_path / "a.tar").returncode == 1


def test_refused_ptar_commands_change_nothing(archive: Path, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("somewhere")
    (tmp_path / "fifo").mkdir()
    contents = archive.read_bytes()
    for words, reported in (
        (["-c", tree], b"-f ARCHIVE expected"),
        (["-f", "a", tree], b"write one of -c"),
        (["-cx", "-f", "a", tree], b"write one of -c"),
        (["-cf", "a"], b"PATH expected"),
        (["-cf", "-", tree], b"use tar"),
        (["-cf", "a", "nowhere"], b"nowhere: No such file"),
        (["-cf", "link", tree], b"is a symbolic link"),
        (["-cf", "fifo", tree], b"is a directory"),
        (["-cf", "missing/a", tree], b"the directory missing does not exist; create it first"),
        (["-cf", "/dev/null", tree], b"is not a regular file"),
        (["-cf", "a", "--signature", "s", tree, tree], b"describes one PATH"),
        (["-cjf", "a", tree], b"-j in -cjf: use tar"),
        (
            ["-c", "--zstd", "-f", "a", "--block-size", "64M", "--signature", "s", tree],
            b"--block-size: a compressed archive allows blocks",
        ),
        (["-xf", "nowhere"], b"nowhere: No such file"),
        (["-xf", archive, "-C", "nowhere"], b"nowhere: No such file"),
        (["-xf", archive, "--signature", "s"], b"--signature can only be given with -c"),
        (["-cf", "a", "--resume", "--no-sync", tree], b"leave out --no-sync"),
        (["-cf", archive, archive], b"is the archive itself"),
        (["-cf", archive, "-C", archive.parent, archive.name, f"./{archive.name}"], b"is the archive itself"),
    ):
        before = sorted(os.listdir(tmp_path))
        done = ptar(*words, cwd=tmp_path)
        assert archive.read_bytes() == contents
        assert (done.returncode, reported in done.stderr, done.stderr.count(b"\n")) == (2, True, 1), show(done)
        assert sorted(os.listdir(tmp_path)) == before


def test_full_disk_leaves_the_older_archive(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(8):
        (tmp_path / f"tree/{number}").write_bytes(os.urandom(MIB))
    with small_file_system(tmp_path / "small", 3) as small:
        (small / "a.tar").write_bytes(b"older")
        done = ptar("-cf", small / "a.tar", "-C", tmp_path, "tree", ranks=2)
        assert done.returncode == 75, show(done)
        assert f"{small}/a.tar: the archive cannot be written: write: No space left on device".encode() in done.stderr
        assert os.listdir(small) == ["a.tar"]
        assert (small / "a.tar").read_bytes() == b"older"
