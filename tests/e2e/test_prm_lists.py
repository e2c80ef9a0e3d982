"""``prm --from`` removes only listed items, like ``xargs rm -d`` with the deepest items first."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.extent import seed
from tests.support.trees import random_tree
from tests.support.users import is_root, require_root


def prm(*arguments: Argument, given: bytes | None = None, **options: Any) -> Completed:
    """Run prm with ``given`` as its standard input."""
    if given is None:
        return pcopy(*arguments, **options, program="prm")
    with tempfile.NamedTemporaryFile() as file:
        file.write(given)
        file.flush()
        return pcopy(*arguments, **options, program="prm", wrap=("sh", "-c", f'exec "$@" < {file.name}', "sh"))


def items(tree: Path) -> list[bytes]:
    found = subprocess.run(["find", ".", "-mindepth", "1", "-print0"], cwd=tree, check=True, capture_output=True)
    return sorted(found.stdout.split(b"\0")[:-1])


@pytest.mark.parametrize("ranks", [1, 3])
def test_listed_items_are_removed_as_by_xargs_rm(area: Path, ranks: int) -> None:
    random_tree(area / "one", seed(), files=500, largest=100, privileged=is_root())
    (area / "one/outside").symlink_to(area)
    subprocess.run(["cp", "-a", area / "one", area / "two"], check=True)
    chosen = items(area / "one")
    whole = next(name for name in chosen if (area / "one" / os.fsdecode(name)).is_dir())
    below = [name for name in chosen if name == whole or name.startswith(whole + b"/")]
    listed = {*random.Random(seed()).sample(chosen, len(chosen) * 2 // 3), *below}
    deepest_first = b"\0".join(sorted(listed, reverse=True))
    subprocess.run(
        ["xargs", "-0", "rm", "-df"], input=deepest_first, cwd=area / "one", check=False, capture_output=True
    )
    (area / "list").write_bytes(b"\0".join([*listed, b"./" + whole, b""]))
    run = prm("--yes", "--json", "-0", "--from", area / "list", cwd=area / "two", ranks=ranks)
    assert items(area / "one") == items(area / "two")
    stay = listed.intersection(items(area / "two"))
    assert run.returncode == (1 if stay else 0), show(run)
    assert run.stderr.count(b": Directory not empty") == len(stay), show(run)
    reported = json.loads(run.stdout)
    assert reported["found"] == len(listed) == reported["removed"] + reported["failed"] and reported["failed"] == len(
        stay
    )
    assert reported["removed"] == len(chosen) - len(items(area / "one"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_listed_directories_are_removed_as_by_xargs_rm_recursive(area: Path, ranks: int) -> None:
    random_tree(area / "one", seed(), files=500, largest=100, privileged=is_root())
    (area / "one/outside").symlink_to(area)
    (area / "one/large").mkdir()
    for number in range(300):
        (area / f"one/large/{number}").touch()
    subprocess.run(["cp", "-a", area / "one", area / "two"], check=True)
    chosen = items(area / "one")
    directories = [name for name in chosen if (area / "one" / os.fsdecode(name)).is_dir() and name != b"./outside"]
    listed = {*random.Random(seed()).sample(chosen, len(chosen) // 4), directories[0], b"./large", b"./outside"}
    subprocess.run(["xargs", "-0", "rm", "-rf"], input=b"\0".join(listed), cwd=area / "one", check=True)
    (area / "list").write_bytes(b"\0".join([*listed, b""]))
    for words in (("--dry-run",), ("--yes",)):
        run = prm(*words, "-r", "--json", "-0", "--from", area / "list", cwd=area / "two", ranks=ranks)
        assert (run.returncode, run.stderr) == (0, b""), show(run)
        reported = json.loads(run.stdout)
        assert reported["found"] == reported["removed"] == len(chosen) - len(items(area / "one"))
    assert items(area / "one") == items(area / "two")
    assert (area / "list").exists()


def test_recursive_removal_keeps_mounts_and_replaced_directories(area: Path) -> None:
    """Items listed below a link are kept, too. A replaced directory differs from the one in the saved listing."""
    require_root("mount")
    tree = area / "tree"
    build(tree)
    (tree / "link").symlink_to("keep")
    (tree / "replaced").mkdir()
    assert (
        pcopy("--output", "list.jsonl", "tree/replaced", "tree/c", program="pwalk", cwd=area, ranks=1).returncode == 0
    )
    (tree / "replaced").rename(tree / "moved")
    (tree / "replaced").mkdir()
    run = prm("--yes", "--recursive", "--json", "--from", "list.jsonl", cwd=area, ranks=2)
    assert run.returncode == 1 and b"tree/replaced: stat: it is not the item that was listed" in run.stderr, show(run)
    assert not (tree / "c").exists() and (tree / "replaced").exists()
    (tree / "a/b/mounted").mkdir()
    subprocess.run(["mount", "--bind", tree / "keep", tree / "a/b/mounted"], check=True)
    try:
        run = prm("--yes", "-r", "--json", "--from", "-", cwd=tree, ranks=2, **given("a", "a/b/1", "link", "link/4"))
    finally:
        subprocess.run(["umount", tree / "a/b/mounted"], check=True)
    assert run.returncode == 1 and b"a/b/mounted" in run.stderr and b"link/4" in run.stderr, show(run)
    assert items(tree) == [b"./a", b"./a/b", b"./a/b/mounted", b"./keep", b"./keep/4", b"./moved", b"./replaced"]
    reported = json.loads(run.stdout)
    assert reported["found"] == reported["removed"] + reported["not_empty"] + reported["failed"]
    (tree / "inside").mkdir()
    run = prm("--yes", "-r", "--from", "-", cwd=tree / "inside", ranks=1, **given("../inside"))
    assert run.returncode == 2 and b"is the working directory" in run.stderr and (tree / "inside").exists()


def build(tree: Path) -> None:
    for name in ("a/b/1", "a/2", "c/3", "keep/4"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(name.encode())


def given(*paths: str) -> dict[str, Any]:
    return {"given": "".join(f"{path}\n" for path in paths).encode()}


def test_list_is_read_from_a_pipe(area: Path) -> None:
    build(area / "tree")
    run = prm("--yes", "--from", "-", area / "tree", ranks=2, **given("a/b/1", "a", "a/b", f"{area}/tree/c/3", ""))
    assert run.returncode == 1 and f"{area}/tree/a: rmdir: Directory not empty".encode() in run.stderr, show(run)
    assert items(area / "tree") == [b"./a", b"./a/2", b"./c", b"./keep", b"./keep/4"]
    run = prm("--from", "-", ranks=1, cwd=area / "tree", **given("keep/4"))
    assert run.returncode == 2 and b"cannot ask for confirmation" in run.stderr and (area / "tree/keep/4").exists()
    run = prm("--dry-run", "--from", "-", ranks=2, cwd=area / "tree", **given("c", "keep/4"))
    assert run.stdout.startswith(b"delete ./keep/4\ndelete ./c\n2 found = 2 would be removed"), show(run)
    assert b"\n  1 directory among them, if nothing else is in them\n" in run.stdout
    assert (area / "tree/keep/4").exists()
    run = prm("--json", "--from", "-", ranks=1, **given())
    assert run.returncode == 0 and json.loads(run.stdout)["found"] == 0


def test_missing_items_are_reported(area: Path) -> None:
    build(area / "tree")
    words: Sequence[str] = ("missing", "a/b/missing", "a/2/below", "c/3")
    run = prm("--yes", "--json", "--from", "-", cwd=area / "tree", ranks=2, **given(*words))
    assert run.returncode == 1 and json.loads(run.stdout)["failed"] == 3, show(run)
    assert not (area / "tree/c/3").exists()
    run = prm("-f", "--json", "--from", "-", cwd=area / "tree", ranks=2, **given("missing", "x/y/z"))
    assert run.returncode == 0 and not run.stderr, show(run)
    run = prm("-f", "--json", "--from", "-", cwd=area / "tree", ranks=2, **given("x/y/z"))
    assert run.returncode == 0 and json.loads(run.stdout)["found"] == 0, show(run)


def test_items_that_differ_from_a_saved_listing_are_kept(area: Path) -> None:
    tree = area / "tree"
    build(tree)
    for name in ("same", "longer", "later", "moved", "link", "typed"):
        (tree / name).write_text("text")
    lines: list[dict[str, Any]] = [{"format": "pcopy listing", "version": 1, "directory_b64": "L3RtcA=="}]
    for name in ("same", "longer", "later", "moved", "link", "typed", "a", "a/2", "keep/4"):
        there = (tree / name).lstat()
        kind = "directory" if name == "a" else "fifo" if name == "typed" else "file"
        known = {"inode": there.st_ino, "device": there.st_dev, "size": there.st_size, "mtime_ns": there.st_mtime_ns}
        lines.append({"path": f"{tree}/{name}", "type": kind, **(known if name != "keep/4" else {})})
    (tree / "longer").write_text("longer")
    os.utime(tree / "longer", ns=(0, lines[2]["mtime_ns"]))
    os.utime(tree / "later", ns=(0, 0))
    (tree / "moved").rename(tree / "aside")
    (tree / "moved").write_text("text")
    os.utime(tree / "moved", ns=(0, lines[4]["mtime_ns"]))
    (tree / "link").unlink()
    (tree / "link").symlink_to(tree / "aside")
    (tree / "a/new").touch()
    (tree / "keep/4").write_text("of this nothing is known")
    (area / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = prm("--yes", "--json", "--from", area / "list", ranks=2)
    reported = json.loads(run.stdout)
    assert run.returncode == 1 and (reported["removed"], reported["failed"]) == (3, 6), show(run)
    for name in ("longer", "later", "moved", "link", "typed"):
        assert f"{tree}/{name}: stat: it is not the item that was listed, or has changed since".encode() in run.stderr
        assert os.path.lexists(tree / name)
    assert not (tree / "same").exists() and not (tree / "a/2").exists() and not (tree / "keep/4").exists()


REFUSED = (
    (["tree/a", "."], "line 2: . is the working directory, which is never removed"),
    (["tree", "../.."], "line 2: ../.. is a directory above the working directory"),
    (["/"], "line 1: / is the root directory"),
    (["tree/a/../c"], "line 1: tree/a/../c leads upwards"),
    (["link/b/1", "link/2"], "tree/link, a symbolic link; list what it leads to"),
    (["tree/a\0"], "holds a NUL; write -0"),
)


@pytest.mark.parametrize(("paths", "why"), REFUSED)
def test_invalid_arguments_are_refused(area: Path, paths: list[str], why: str) -> None:
    build(area / "tree/tree")
    (area / "tree/link").symlink_to("tree/a")
    before = items(area)
    run = prm("--yes", "--from", "-", cwd=area / "tree", ranks=1, **given(*paths))
    assert run.returncode == 2 and b"prm: --from standard input: " in run.stderr, show(run)
    assert why.encode() in run.stderr, show(run)
    assert items(area) == before


def test_items_below_a_listed_link_are_kept(area: Path) -> None:
    build(area / "outside")
    (area / "tree").mkdir()
    (area / "tree/link").symlink_to("../outside")
    (area / "tree/file").touch()
    run = prm("--yes", "--from", "-", cwd=area / "tree", ranks=2, **given("link/a/2", "file", "link/keep"))
    assert run.returncode == 1 and run.stderr.count(b"\n") == 2, show(run)
    assert items(area / "tree") == [b"./link"] and (area / "outside/a/2").exists()
    outside = prm("--yes", "--from", "-", area / "tree", ranks=1, **given(f"{area}/outside/a/2"))
    assert outside.returncode == 2 and b"does not lie in" in outside.stderr


def test_working_directory_is_kept_under_any_name(area: Path) -> None:
    require_root("mount directories")
    (area / "up/in").mkdir(parents=True)
    (area / "alias").mkdir()
    subprocess.run(["mount", "--bind", area / "up", area / "alias"], check=True)
    try:
        for options in (["--yes"], ["--dry-run"]):
            words = f"{area}/alias/in\n".encode()
            run = prm(*options, "--from", "-", cwd=area / "up/in", ranks=2, given=words)
            assert run.returncode == 1 and b"is the working directory, or one above it" in run.stderr, show(run)
            assert (area / "up/in").is_dir()
    finally:
        subprocess.run(["umount", area / "alias"], check=True)


@pytest.mark.parametrize("program", ["prm", "pchmod"])
def test_listed_path_with_a_slash_must_be_a_directory(area: Path, program: str) -> None:
    build(area / "tree")
    (area / "tree/link").symlink_to("a")
    words = ("c/3/", "link/", "keep/4", "a/b/./", "keep/4/.", "a/b")
    options = ("--yes",) if program == "prm" else ("--owner", f"{os.geteuid()}")
    with (area / "list").open("w") as file:
        file.writelines(f"{word}\n" for word in words)
    listing = ("--json", "--from", area / "list")
    run = pcopy(*options, *listing, cwd=area / "tree", ranks=2, program=program)
    assert run.returncode == 1 and os.path.lexists(area / "tree/link"), show(run)
    assert run.stderr.count(b": is not a directory; leave out the slash\n") == 2, show(run)
    assert b"link: stat: is a symbolic link; leave out the slash, or list what it leads to\n" in run.stderr, show(run)
    assert (area / "tree/c/3").exists() and (area / "tree/keep/4").exists()
    assert json.loads(run.stdout)["found"] == 4


def test_item_with_contradicting_lines_is_kept(area: Path) -> None:
    """An item is removed only if all lines about it are true."""
    sizes, names = (1, 2, 1), ("one", "two", "both")
    head: dict[str, Any] = {"format": "pcopy listing", "version": 1, "directory_b64": "L3RtcA=="}
    lines = [head]
    for name, size in zip(names, sizes, strict=True):
        (area / name).write_bytes(b"x")
        lines.append({"path": f"{area}/{name}", "type": "file", "size": size})
        lines.append({"path": f"{area}/./{name}", "type": "file", "size": 1, "inode": (area / name).stat().st_ino})
    lines.append({"path": f"{area}/one", "type": "file", "inode": 1})
    (area / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = prm("--yes", "--json", "--from", area / "list", ranks=1)
    assert run.returncode == 1 and json.loads(run.stdout)["removed"] == 1, show(run)
    assert run.stderr.count(b"the list has it twice, with different properties: not processed") == 2
    assert [(area / name).exists() for name in names] == [True, True, False]


def test_times_beyond_64_bits_are_compared(area: Path) -> None:
    lines: list[dict[str, Any]] = [{"format": "pcopy listing", "version": 1, "directory_b64": "L3RtcA=="}]
    for name, seconds in (("same", 10**10), ("later", 10**10 + 1)):
        (area / name).touch()
        os.utime(area / name, (0, seconds))
        if (area / name).stat().st_mtime != seconds:
            pytest.skip("the file system holds no such times")
        lines.append({"path": f"{area}/{name}", "type": "file", "mtime_ns": 10**19})
    (area / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = prm("--yes", "--json", "--from", area / "list", ranks=1)
    assert run.returncode == 1 and (area / "later").exists() and not (area / "same").exists(), show(run)
