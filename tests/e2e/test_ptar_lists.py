"""``ptar -c -T`` archives listed items, as GNU tar does with ``-C DIR -T``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar
from tests.support.command import pcopy, show
from tests.support.oracle import differences
from tests.support.trees import random_tree
from tests.support.users import is_root


def names_in(archive: Path) -> list[bytes]:
    reported = subprocess.run(["tar", "-t", "--quoting-style=escape", "-f", archive], check=True, capture_output=True)
    return reported.stdout.split(b"\n")[:-1]


def unpacked(archive: Path, place: Path) -> Path:
    place.mkdir(exist_ok=True)
    subprocess.run(["tar", "--acls", "--xattrs", "-xpf", archive, "-C", place], check=True)
    return place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for name in ("a/1", "a/b/2", "a/b/3", "a.b/4", "c/d/5", "c/6", "f/7", "new\nline"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(name.encode())
    (tree / "to").symlink_to("a")
    os.link(tree / "a/1", tree / "f/same")
    return tree


@pytest.mark.parametrize("ranks", [1, 3])
def test_listed_items_are_archived_as_by_tar(ranks: int, tmp_path: Path, place: Path) -> None:
    """The list has a third of the items; a directory is archived with all its contents."""
    random_tree(tmp_path / "tree", 11, files=300, directories=40, largest=1 << 20, privileged=is_root())
    subprocess.run(["find", tmp_path / "tree", "-type", "s", "-delete"], check=True)  # sockets are not archived
    found = subprocess.run(["find", ".", "-print0"], cwd=tmp_path / "tree", check=True, stdout=-1)
    paths = sorted(found.stdout.split(b"\0")[1:-1])[1::3]
    (tmp_path / "list").write_bytes(b"\0".join(paths) + b"\0")
    words = ("-C", tmp_path / "tree", "--null", "-T", tmp_path / "list")
    done = ptar("-c", "-q", "-f", tmp_path / "a.tar", *words, ranks=ranks)
    assert (done.returncode, done.stderr) == (0, b""), show(done)
    subprocess.run(["tar", "--acls", "--xattrs", "-cf", tmp_path / "b.tar", *words], check=True)
    assert sorted(names_in(tmp_path / "a.tar")) == sorted(
        {name.removeprefix(b"./") for name in names_in(tmp_path / "b.tar")}
    )
    ours, theirs = unpacked(tmp_path / "a.tar", place), unpacked(tmp_path / "b.tar", tmp_path / "theirs")
    for around, directories, _ in os.walk(theirs):  # the times of mere parents of listed items vary
        for name in directories:
            path = os.path.join(around, name)
            if b"./" + os.fsencode(os.path.relpath(path, theirs)) not in paths:
                os.utime(path, (1, 1))
                os.utime(ours / os.path.relpath(path, theirs), (1, 1))
    os.utime(ours, (1, 1))
    os.utime(theirs, (1, 1))
    assert differences(theirs, ours, atimes=False) == []


def test_listed_items_are_archived_once_and_directories_whole(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"a/b\na/b/2\na.b/4\n./c//d/\n\n{tree}/f/7\na/b\nto\n")
    done = ptar("-cf", tmp_path / "a.tar", "--json", "-C", tree, "-T", tmp_path / "list")
    assert done.returncode == 0, show(done)
    reported = json.loads(done.stdout)
    assert names_in(tmp_path / "a.tar") == [
        *(b"to", b"a/b/", b"a/b/2", b"a/b/3", b"a.b/4", b"c/d/", b"c/d/5", b"f/7"),
    ]
    assert (reported["found"], reported["files"], reported["directories"], reported["symlinks"]) == (8, 5, 2, 1)
    assert ptar("-cf", tmp_path / "b.tar", "--files-from", tmp_path / "list", cwd=tree).returncode == 0
    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "a.tar").read_bytes()


def test_listed_dot_archives_the_whole_directory(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("c/6\n.\na\n")
    assert ptar("-cf", tmp_path / "a.tar", "-C", tree, "-T", tmp_path / "list").returncode == 0
    assert ptar("-cf", tmp_path / "b.tar", "-C", tree, ".").returncode == 0
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_list_is_read_from_a_pipe(tree: Path, tmp_path: Path) -> None:
    run = f"{sys.executable} -c 'from pcopy.cli.script import ptar; ptar()'"
    command = f"find . -name '*n*' -type f -print0 | {run} -cq0T - -f {tmp_path}/a.tar"
    subprocess.run(["sh", "-c", command], cwd=tree, check=True)
    assert names_in(tmp_path / "a.tar") == [b"new\\nline"]


def test_saved_listing_is_relative_to_the_directory_of_its_walk(tree: Path, tmp_path: Path) -> None:
    """Its paths are relative to the directory in which pwalk ran."""
    listing = tmp_path / "list.jsonl"
    done = pcopy("--output", listing, "tree/c", cwd=tmp_path, program="pwalk")
    assert done.returncode == 0, show(done)
    assert ptar("-cf", tmp_path / "a.tar", "-C", tree, "-T", listing, cwd="/").returncode == 0
    assert names_in(tmp_path / "a.tar") == [b"c/", b"c/6", b"c/d/", b"c/d/5"]


def test_listed_hard_links_are_links_and_the_archive_is_left_out(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a/1\nf\n")
    done = ptar("-cf", tree / "f/a.tar", "-C", tree, "-T", tmp_path / "list")
    done = ptar("-cf", tree / "f/a.tar", "-C", tree, "-T", tmp_path / "list")
    assert (done.returncode, b"is the archive itself" in done.stderr) == (0, True), show(done)
    reported = subprocess.run(["tar", "-tvf", tree / "f/a.tar"], check=True, capture_output=True).stdout
    assert reported.count(b"\n") == 4
    assert reported.rstrip().endswith(b"f/same link to a/1")


def test_listed_items_that_are_missing_fail(tree: Path, tmp_path: Path) -> None:
    """GNU tar fails as well. Items below a symbolic link are not archived."""
    (tmp_path / "list").write_text("missing\na/b\nnowhere/deep/file\na/1/below\nto/1\n")
    words = ("-C", tree, "-T", tmp_path / "list")
    done = ptar("-cf", tmp_path / "a.tar", *words, "--json", ranks=2)
    reported = json.loads(done.stdout)
    assert (done.returncode, reported["found"], reported["failed"]) == (1, 7, 4), show(done)
    assert names_in(tmp_path / "a.tar") == [b"a/b/", b"a/b/2", b"a/b/3"]
    for line in (
        *(b"missing: stat: No such file", b"nowhere/deep/file: open: No such file", b"a/1/below: open: Not a dir"),
        b"to/1: open: to is a symbolic link; list what it leads to",
    ):
        assert line in done.stderr, show(done)
    theirs = subprocess.run(["tar", "-cf", tmp_path / "b.tar", *words], check=False, capture_output=True)
    assert theirs.returncode == 2
    assert theirs.stderr.count(b"Cannot stat") == 3


def test_listed_items_in_an_excluded_directory_are_left_out(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a\nc/6\nc/d/5\n")
    words = ("-C", tree, "-T", tmp_path / "list", "--exclude", "/a/b", "--exclude", "d")
    done = ptar("-cf", tmp_path / "a.tar", *words, "--json", ranks=2)
    reported = json.loads(done.stdout)
    assert names_in(tmp_path / "a.tar") == [b"a/", b"a/1", b"c/6"]
    assert (done.returncode, reported["found"], reported["skipped"], reported["excluded"]) == (0, 5, 2, 2), show(done)


def test_refusals(tree: Path, tmp_path: Path) -> None:
    lists = {"up": "a\n../b\n", "out": "/etc\n", "none": "\n", "list": "a\n"}
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    for words, reported in (
        (["-T", "up"], b"--from up: line 2: ../b does not lie in tree; list paths below it"),
        (["-T", "out"], b"--from out: line 1: /etc does not lie in tree; list paths below it"),
        (["-T", "none"], b"lists nothing, so there is nothing to do"),
        (["-T", "gone"], b"--from gone: does not exist"),
        (["-T", ""], b"--from: the empty string"),
        (["-T", "list", "a"], b"leave out PATH"),
        (["-T", "list", "--signature", "s"], b"--signature describes one PATH"),
        (["-0"], b"-0 says how the paths in --from end"),
        (["-T", "list", "-C", "tree/a/1"], b"tree/a/1: is not a directory"),
    ):
        before = sorted(os.listdir(tmp_path))
        where = [] if "-C" in words else ["-C", "tree"]
        done = ptar("-cf", "a.tar", *where, *words, cwd=tmp_path)
        assert (done.returncode, reported in done.stderr, done.stderr.count(b"\n")) == (2, True, 1), show(done)
        assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("mode", ["-x", "-t", "-t --signature"])
def test_members_are_selected_by_a_list_as_by_tar(mode: str, tree: Path, tmp_path: Path, place: Path) -> None:
    """Listed directories include their contents. A name that matches no member is reported."""
    subprocess.run(["tar", "-cf", "a.tar", "tree"], cwd=tmp_path, check=True)
    (tmp_path / "list").write_bytes(b"tree/a/b\0tree/f/7\0tree/new\nline\0tree/c/d/\0")
    words = ("-f", tmp_path / "a.tar", "-C", place, "--null", "-T", tmp_path / "list")
    if mode == "-x":
        done = ptar(mode, *words, "--json", ranks=2)
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        subprocess.run(["tar", "-x", *words[:2], "-C", theirs, *words[4:]], check=True)
        for around in ("tree", "tree/a", "tree/c", "tree/f"):  # no unpacked member sets their times
            os.utime(place / around, (1, 1))
            os.utime(theirs / around, (1, 1))
        assert differences(theirs / "tree", place / "tree", atimes=False) == []
    else:
        more = ("--signature", tmp_path / "sig") if "--signature" in mode else ()
        done = ptar("-t", *words, *more, ranks=2)
        listed = subprocess.run(["tar", "-t", "--quoting-style=escape", *words[:2], *words[4:]], check=True, stdout=-1)
        assert sorted(done.stdout.splitlines()) == sorted(listed.stdout.splitlines())
    assert done.returncode == 0, show(done)
    with (tmp_path / "list").open("ab") as file:
        file.write(b"tree/none\0")
    done = ptar(*mode.split()[:1], *words, ranks=2)
    assert (done.returncode, b"has no members with these names: tree/none" in done.stderr) == (1, True), show(done)
    done = ptar(*mode.split()[:1], *words[:4], "tree/a/1", "tree/no*", ranks=3)
    reported = b"has no members with these names: tree/no*; they are names, not patterns"
    assert (done.returncode, reported in done.stderr) == (1, True), show(done)


def test_saved_listing_selects_members(tree: Path, tmp_path: Path) -> None:
    assert pcopy("--output", "l.jsonl", "tree/c", cwd=tmp_path, program="pwalk").returncode == 0
    assert ptar("-cf", "a.tar", "tree", cwd=tmp_path).returncode == 0
    done = ptar("-tf", "a.tar", "-T", "l.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"tree/c/\ntree/c/6\ntree/c/d/\ntree/c/d/5\n"), show(done)
    (tmp_path / "none").write_bytes(b"")
    for words, why in ((["-T", "none"], b"lists nothing"), (["-T", "l.jsonl", "tree/a"], b"leave out MEMBER")):
        done = ptar("-xf", "a.tar", *words, cwd=tmp_path)
        assert (done.returncode, why in done.stderr) == (2, True), show(done)


@pytest.mark.parametrize("mode", ["-x", "-t"])
def test_names_found_by_any_rank_count_as_found(mode: str, tmp_path: Path, place: Path) -> None:
    """Several ranks read an archive without an index."""
    (tmp_path / "tree").mkdir()
    for number in range(24):
        (tmp_path / f"tree/{number}").write_bytes(bytes(2 * MIB))
    subprocess.run(["tar", "-cf", "a.tar", "tree"], cwd=tmp_path, check=True)
    names = [f"tree/{number}" for number in range(24)]
    more = ("-C", place) if mode == "-x" else ("--signature", tmp_path / "sig")
    done = ptar(mode, "-q", "-f", tmp_path / "a.tar", *more, *names, ranks=4)
    assert (done.returncode, done.stderr) == (0, b""), show(done)
    done = ptar(mode, "-q", "-f", tmp_path / "a.tar", *more, *names, "tree/24", ranks=4)
    assert (done.returncode, b"has no members with these names: tree/24" in done.stderr) == (1, True), show(done)


def test_listed_name_that_ends_with_a_carriage_return_is_exact(tmp_path: Path, place: Path) -> None:
    """As with GNU tar, a member with a similar name is not unpacked instead."""
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "x\r").write_bytes(b"2")
    (tmp_path / "list").write_bytes(b"x\r\n")
    words = ("-f", "a.tar", "-T", "list", "-C", place)
    for members, status in (("x", "x\r"), 0), (("x",), 1):
        subprocess.run(["tar", "-cf", "a.tar", *members], cwd=tmp_path, check=True)
        done = ptar("-x", *words, cwd=tmp_path)
        assert (done.returncode, b"x\\r; if the list has line ends of Windows" in done.stderr) == (status, bool(status))
        theirs = subprocess.run(["tar", "-t", *words[:4]], cwd=tmp_path, check=False, capture_output=True)
        assert (theirs.stdout, bool(theirs.returncode)) == (b"" if status else b"x\\r\n", bool(status))
        assert os.listdir(place) == ["x\r"]
