"""``ptar -t --signature`` reads an archive and computes the signature of the archived tree."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.archives import MIB, Made, made_of, member, ptar, small_file_system
from tests.support.command import pverify, show
from tests.support.users import is_root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with links, holes, special files and names that sort differently with a trailing slash."""
    tree = tmp_path_factory.mktemp("proves") / "tree"
    for below in ("a", "a/b", "a.b", "a-b/c", "a\xffb", "empty"):
        (tree / below).mkdir(parents=True)
        for name in ("a", "a.b", "a-b", "new\nline") if below != "empty" else ():
            if not (tree / below / name).exists():
                (tree / below / name).write_bytes(os.urandom(3000))
    (tree / "nothing").write_bytes(b"")
    (tree / "large").write_bytes(os.urandom(5 * MIB + 7))
    with open(tree / "sparse", "wb") as file:
        file.truncate(11 * MIB)
        for at in (MIB, 9 * MIB):
            file.seek(at)
            file.write(os.urandom(70_000))
    os.link(tree / "large", tree / "a/hard")
    os.link(tree / "large", tree / "zz")
    (tree / "to").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    if is_root():
        os.mknod(tree / "device", 0o20600, os.makedev(1, 3))
    return tree


def comparable_lines(signature: Path) -> list[str]:
    """Return the lines of a signature file except its source and time."""
    return [line for line in signature.read_text().splitlines() if not line.startswith(("source:", "created:"))]


@pytest.fixture(scope="module")
def signature(tree: Path) -> Path:
    path = tree.parent / "tree.sig"
    assert pverify("--create", path, tree).returncode == 0
    return path


MADE = {
    "ptar": ["ptar", "-c", "-q"],
    "ptar --zstd": ["ptar", "-c", "-q", "--zstd"],
    "tar": ["tar", "-c"],
    "tar -S": ["tar", "-c", "-S", "--format=posix"],
    "tar -z": ["tar", "-c", "-z"],
    "bsdtar": ["bsdtar", "-c"],
}


@pytest.mark.parametrize("how", MADE)
def test_signature_of_an_archive_equals_that_of_the_tree(how: str, tree: Path, signature: Path, tmp_path: Path) -> None:
    archive, found = tmp_path / "a", tmp_path / "found"
    program, *words = MADE[how]
    if program == "ptar":
        assert ptar(*words, "-f", archive, "-C", tree.parent, "tree", ranks=2).returncode == 0
    else:
        subprocess.run([program, *words, "-f", archive, "-C", tree.parent, "tree"], check=True)
    done = ptar("-t", "-q", "-f", archive, "--signature", found)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), show(done)
    assert comparable_lines(found) == comparable_lines(signature)
    assert pverify(found, tree).returncode == 0


def test_signature_of_selected_members_with_another_digest(tree: Path, tmp_path: Path) -> None:
    archive, found, of_part = tmp_path / "a", tmp_path / "found", tmp_path / "part"
    subprocess.run(["tar", "-cf", archive, "-C", tree, "."], check=True)
    how = ("--hash", "blake3", "--block-size", "64K")
    for words, part in (([], "."), (["./a-b"], "a-b"), (["./sparse"], "sparse")):
        done = ptar("-tqf", archive, *how, "--signature", found, *words)
        assert done.returncode == 0, show(done)
        assert pverify("--create", of_part, "--force", *how, tree / part).returncode == 0
        assert comparable_lines(found) == comparable_lines(of_part)


@pytest.mark.parametrize("ranks", [1, 2])
def test_signature_excludes_members_that_would_not_be_unpacked(ranks: int, tree: Path, tmp_path: Path) -> None:
    """Patterns match paths below DIR, not member names."""
    archive, found, place = tmp_path / "a", tmp_path / "found", tmp_path / "place"
    subprocess.run(["tar", "-cf", archive, "-C", tree, "."], check=True)
    place.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", place, "--exclude=./a-b", "--exclude=./a.b/a"], check=True)
    left_out = ("--exclude", "/a-b/", "--exclude", "a.b/a")
    done = ptar("-tf", archive, "--signature", found, *left_out, ranks=ranks)
    assert done.returncode == 0, show(done)
    assert b"./a.b/a-b" in done.stdout.splitlines()
    assert not {b"./a-b/", b"./a-b/c/a", b"./a.b/a"}.intersection(done.stdout.splitlines())
    assert pverify(found, place).returncode == 0


def test_signature_is_that_of_the_tree_tar_unpacks(tmp_path: Path) -> None:
    """The archive has several top directories, implied directories, repeated names, and links to replaced members."""
    members = [
        member("d/e/file", b"first"),
        member("d/link", kind=tarfile.LNKTYPE, link="d/e/file"),
        member("/d/chain", kind=tarfile.LNKTYPE, link="d/link"),
        member("d/e/file", b"second"),
        member("d/later", kind=tarfile.LNKTYPE, link="d/e/file"),
        member("d/self", b"self"),
        member("d/self", kind=tarfile.LNKTYPE, link="d/self"),
        member("f", b"a file"),
        member("f", kind=tarfile.DIRTYPE),
        member("f/in", b"in it"),
    ]
    archive, found, place = made_of(tmp_path / "a", members), tmp_path / "found", tmp_path / "place"
    place.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", place], check=True, stderr=subprocess.DEVNULL)
    done = ptar("-tqf", archive, "--signature", found)
    assert done.returncode == 0, show(done)
    assert pverify(found, place).returncode == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_error_about_a_signature_names_its_file(tree: Path, tmp_path: Path, ranks: int) -> None:
    archive = tmp_path / "a"
    assert ptar("-c", "-q", "-f", archive, "-C", tree.parent, "tree", ranks=1).returncode == 0
    with small_file_system(tmp_path / "small", 1) as small:
        (small / "taken").write_bytes(bytes(MIB))
        done = ptar("-tqf", archive, "--signature", small / "found", ranks=ranks)
        assert done.returncode == 1, show(done)
        wanted = f"ptar: {small}/found: the signature could not be written: No space left on device\n"
        assert done.stderr.decode() == wanted
        assert os.listdir(small) == ["taken"]


def test_flipped_byte_changes_the_signature(tree: Path, signature: Path, tmp_path: Path) -> None:
    archive, found = tmp_path / "a", tmp_path / "found"
    assert ptar("-c", "-q", "-f", archive, "-C", tree.parent, "tree", ranks=1).returncode == 0
    data = bytearray(archive.read_bytes())
    contents = (tree / "large").read_bytes()
    data[data.index(contents[:100]) + 4 * MIB] ^= 1
    archive.write_bytes(data)
    assert ptar("-tqf", archive, "--signature", found).returncode == 0
    assert comparable_lines(found) != comparable_lines(signature)
    assert pverify(found, tree).returncode == 1
    for broken, why in ((data[: len(data) // 2], b"ends here"), (b"x" + data[1:], b"is wrong")):
        (tmp_path / "broken").write_bytes(broken)
        done = ptar("-tqf", tmp_path / "broken", "--signature", tmp_path / "none")
        assert (done.returncode, b"no signature is written" in done.stderr, why in done.stderr) == (1, True, True)
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([member("../out", b"x")], b"contains .."),
        ([member("d/l", kind=tarfile.LNKTYPE, link="nowhere")], b"is a hard link"),
        ([member("f", b"x"), member("f/in", b"x")], b"a member that is no directory has the name of the directory f"),
        ([], b"the archive is empty"),
    ],
)
def test_archive_that_is_no_tree_has_no_signature(members: Sequence[Made], why: bytes, tmp_path: Path) -> None:
    archive = made_of(tmp_path / "a", members)
    done = ptar("-tqf", archive, "--signature", tmp_path / "found")
    assert (done.returncode, why in done.stderr) == (1, True), show(done)
    assert os.listdir(tmp_path) == ["a"]


def test_refusals(tmp_path: Path) -> None:
    archive = made_of(tmp_path / "a", [member("f", b"x")])
    for words, why in (
        (["-t", "--signature", archive], b"is no signature"),
        (["-x", "--signature", "s"], b"--signature can only be given with -c or -t"),
        (["-t", "--errors", "e"], b"--errors can only be given with -c or -x"),
        (["-t", "--signature", "s", "--log", "l"], b"--log can only be given with -c or -x"),
        (["-t", "--report", "r.json"], b"--report describes the work of several ranks"),
        (["-t", "--metrics", "m.prom"], b"--metrics describes the work of several ranks"),
    ):
        before = archive.read_bytes()
        done = ptar(*words, "-f", archive, cwd=tmp_path)
        assert (done.returncode, why in done.stderr) == (2, True), show(done)
        assert (archive.read_bytes(), os.listdir(tmp_path)) == (before, ["a"])
