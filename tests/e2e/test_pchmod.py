"""``pchmod`` gives the results of chmod, chown and setfacl, changes only items that differ, and follows no links."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.extent import seed
from tests.support.faults import Fault, slowed
from tests.support.processes import background, wait_until
from tests.support.trees import random_tree
from tests.support.users import NOBODY, is_root, require_root


def pchmod(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pchmod")


def state(tree: Path, what: str = "%m %U:%G %y %p") -> list[str]:
    """Return what find(1) prints for each item."""
    asked = subprocess.run(["find", ".", "-printf", f"{what}\\0"], cwd=tree, check=True, capture_output=True).stdout
    return sorted(os.fsdecode(asked).split("\0"))


def acls(tree: Path) -> list[bytes]:
    """Return what getfacl(1) prints for each item."""
    asked = subprocess.run(["getfacl", "-RPp", "."], cwd=tree, check=True, capture_output=True).stdout
    return sorted(asked.split(b"\n\n"))


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """Return a random tree with unusual items, and its copy."""
    random_tree(area / "one", seed(), files=300, largest=1000, privileged=is_root())
    for name in ("one/outside", "one/nowhere"):
        (area / name).symlink_to("/etc" if "outside" in name else "nowhere")
    many = area / "one/many"
    many.mkdir()
    for number in range(600):
        (many / f"{number}").touch()
        (many / f"{number}").chmod((number * 77) & 0o7777)
    subprocess.run(["cp", "-a", area / "one", area / "two"], check=True)
    return area / "one", area / "two"


@pytest.mark.parametrize(("ranks", "mode"), [(1, "u=rwX,g=u-w,o="), (2, "a+X,u+s,o-rx"), (3, "2750")])
def test_modes_equal_those_of_chmod(trees: tuple[Path, Path], ranks: int, mode: str) -> None:
    one, two = trees
    etc = os.stat("/etc")
    before = dict(zip(state(two, "%i"), state(two, "%i %m"), strict=True))
    subprocess.run(["chmod", "-R", mode, one], check=True, umask=0o022)
    run = pchmod("--json", mode, two, ranks=ranks)
    assert run.returncode == 0 and not run.stderr, show(run)
    assert state(one) == state(two) and acls(one) == acls(two)
    assert os.stat("/etc") == etc
    reported = json.loads(run.stdout)
    differing = set(state(two, "%i %m")) - set(before.values())
    assert reported["changed"] >= len(differing) > 10  # each name of an inode counts
    assert reported["found"] == reported["changed"] + reported["unchanged"] == len(state(two)) - 1
    changed = state(two, "%C@ %p")
    again = json.loads(pchmod("--json", mode, two, ranks=ranks).stdout)
    assert (again["changed"], again["unchanged"]) == (0, reported["found"])
    assert state(two, "%C@ %p") == changed


@pytest.mark.parametrize(("ranks", "mode"), [(1, ""), (2, "u+rwX,g-s")])
def test_owners_equal_those_of_chown(trees: tuple[Path, Path], ranks: int, mode: str) -> None:
    require_root("give files away")
    one, two = trees
    subprocess.run(["chown", "-hR", "7:8", one], check=True)
    if mode:
        subprocess.run(["chmod", "-R", mode, one], check=True)
    run = pchmod("--owner", "+7", "--group", "8", *([mode] if mode else []), two, ranks=ranks)
    assert run.returncode == 0 and not run.stderr, show(run)
    assert state(one) == state(two) and acls(one) == acls(two)
    changed = state(two, "%C@ %p")
    run = pchmod("--json", "--owner", "7:8", *([mode] if mode else []), two, ranks=ranks)
    assert json.loads(run.stdout)["changed"] == 0 and state(two, "%C@ %p") == changed


@pytest.mark.parametrize("reference", ["u:7:rw,m::rx,d:g:8:rwx,d:u::rwx", ""])
def test_acls_equal_those_of_setfacl(area: Path, trees: tuple[Path, Path], reference: str) -> None:
    require_root("name users")
    one, two = trees
    (area / "reference").mkdir(mode=0o751)
    if reference:
        subprocess.run(["setfacl", "-m", reference, area / "reference"], check=True)
    asked = subprocess.run(["getfacl", "-cp", area / "reference"], check=True, capture_output=True).stdout
    subprocess.run(["setfacl", "-Rkb", one], check=True)
    subprocess.run(["setfacl", "-RP", "-M", "-", one], input=asked, check=True, stderr=subprocess.DEVNULL)
    run = pchmod("--acl-from", area / "reference", two, ranks=2)
    assert run.returncode == 0, show(run)
    assert acls(one) == acls(two) and state(one) == state(two)
    again = pchmod("--json", "--acl-from", area / "reference", two, ranks=2)
    assert json.loads(again.stdout)["changed"] == 0


def test_item_whose_acl_cannot_be_read_fails_alone(area: Path) -> None:
    (area / "tree").mkdir()
    for name in ("reference", *(f"tree/{number}" for number in range(8))):
        (area / name).touch(mode=0o640)
    (area / "reference").chmod(0o604)
    wrap = Fault(Path(os.devnull), ["lgetxattr"], None, "EIO", "3").wrap()
    run = pchmod("--json", "--acl-from", area / "reference", area / "tree", ranks=1, wrap=wrap)
    reported = json.loads(run.stdout)
    assert (run.returncode, reported["failed"], reported["changed"]) == (1, 1, 8), show(run)
    left = subprocess.run(["find", area / "tree", "!", "-perm", "-004"], check=True, capture_output=True).stdout
    assert left.count(b"\n") == 1 and b"getxattr" in run.stderr


def test_mode_of_the_reference_is_set(area: Path) -> None:
    for name, mode in (("reference", 0o2750), ("tree/inner", 0o1777)):
        (area / name).mkdir(parents=True)
        (area / name).chmod(mode)
    run = pchmod("--reference", area / "reference", area / "tree", ranks=1)
    assert run.returncode == 0 and state(area / "tree", "%m") == ["", "2750", "2750"]


def close_tree(tree: Path) -> None:
    """Make the tree belong to ``NOBODY``, who cannot enter it; it also contains items of root."""
    for name in ("a/b/c", "d", "roots"):
        (tree / name).mkdir(parents=True)
    for name in ("1", "a/2", "a/b/3", "a/b/c/4", "roots/5"):
        (tree / name).touch()
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", tree], check=True)
    subprocess.run(["chown", "-R", "0:0", tree / "roots"], check=True)
    subprocess.run(["chmod", "-R", "a=", tree / "1", tree / "a", tree / "d"], check=True)
    tree.chmod(0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ordinary_user_can_open_and_close_a_tree(area: Path, ranks: int) -> None:
    require_root("be somebody else")
    (area / "tree").mkdir()
    close_tree(area / "tree")
    run = pchmod("u+rwX", area / "tree", ranks=ranks, user=NOBODY)
    assert run.returncode == 0, show(run)
    own = [line for line in state(area / "tree", "%m %U %y") if f" {NOBODY} " in line]
    assert {line for line in own if line[-1] == "d"} == {f"700 {NOBODY} d"}
    assert {line for line in own if line[-1] == "f"} == {f"600 {NOBODY} f"} or len(own) == 9
    run = pchmod("--json", "a=", area / "tree", ranks=ranks, user=NOBODY)
    reported = json.loads(run.stdout)
    assert run.returncode == 1 and (reported["failed"], reported["changed"]) == (2, 9), show(run)
    for name in (b"roots", b"roots/5"):
        assert b"tree/%b: chmod: Operation not permitted (EPERM)" % name in run.stderr
    assert {line[:2] for line in state(area / "tree", "%m %U") if line.endswith(f" {NOBODY}")} == {"0 "}
    run = pchmod("--json", "a+r", area / "tree", ranks=ranks, user=NOBODY)
    assert b"readdir" in run.stderr or b"open" in run.stderr or b"stat" in run.stderr
    assert run.returncode == 1 and json.loads(run.stdout)["failed"] >= 1, show(run)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["go=", "u-rx", "a="])
def test_deep_and_wide_trees_equal_those_of_chmod(area: Path, mode: str, ranks: int) -> None:
    """Subtrees with more levels and names than one call of the backend processes, also if each directory becomes
    inaccessible to its owner.
    """
    require_root("be somebody else")
    trees = [area / "one", area / "two"]
    for tree in trees:
        (tree / Path(*["d"] * 50) / "end").mkdir(parents=True)
        for name in range(1100):
            (tree / f"wide/{name}/below").mkdir(parents=True)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", tree], check=True)
    subprocess.run(["chmod", "-R", mode, trees[0]], check=True)
    run = pchmod("--json", mode, trees[1], ranks=ranks, user=NOBODY)
    reported = json.loads(run.stdout)
    assert run.returncode == 0, show(run)
    assert reported["changed"] == reported["found"] == reported["directories"] == 2 * 1100 + 1 + 50 + 1 + 1
    assert state(trees[0]) == state(trees[1])


def test_link_given_as_path_is_followed_only_for_modes(area: Path) -> None:
    (area / "tree").mkdir()
    (area / "tree/file").touch(0o644)
    (area / "link").symlink_to("tree")
    assert pchmod("go=", area / "link", ranks=1).returncode == 0
    assert state(area / "tree", "%m") == ["", "600", "700"]
    if is_root():
        assert pchmod("--owner", "7", area / "link", ranks=1).returncode == 0
        assert ((area / "link").lstat().st_uid, (area / "tree").stat().st_uid) == (7, 0)
    run = pchmod("--group", f"{os.getegid()}", "go=", area / "link", ranks=1)
    assert run.returncode == 2 and b"link: is a symbolic link; --owner and --group change the link," in run.stderr
    run = pchmod("go=r", ".", "tree/file", "missing", area / "tree/", cwd=area, ranks=2)
    assert run.returncode == 1 and run.stderr.count(b"\n") == 1 and b"missing: stat: No such file" in run.stderr
    assert state(area / "tree", "%m") == ["", "644", "744"] and stat.S_IMODE(area.stat().st_mode) == 0o744
    area.chmod(0o755)


def test_dry_run_and_log_list_the_changes(area: Path) -> None:
    tree = area / "tree"
    (tree / "inner").mkdir(parents=True, mode=0o755)
    (tree / "as it is").touch(0o600)
    (tree / "new\nline").touch(0o644)
    for path in (tree, tree / "inner"):
        path.chmod(0o755)
    before = state(tree, "%m %C@ %p")
    run = pchmod("--dry-run", "go=", tree, ranks=2)
    assert run.returncode == 0 and state(tree, "%m %C@ %p") == before
    lines = run.stdout.decode().splitlines()
    names = (f"mode 0755 -> 0700 {tree}", f"mode 0755 -> 0700 {tree}/inner", f"mode 0644 -> 0600 {tree}/new\\nline")
    assert sorted(line for line in lines if line.startswith("meta")) == sorted(f"meta {name}" for name in names)
    assert "  3 would be changed, 1 unchanged" in lines
    run = pchmod("--log", area / "log", "-q", "go=", tree, ranks=2)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    log = [json.loads(line) for line in (area / "log").read_text().splitlines()]
    reported = {(line["action"], line.get("change"), line["type"], line["path"]) for line in log}
    assert reported == {
        ("meta", "mode 0755 -> 0700", "directory", f"{tree}"),
        ("meta", "mode 0755 -> 0700", "directory", f"{tree}/inner"),
        ("meta", "mode 0644 -> 0600", "file", f"{tree}/new\\nline"),
        ("skip", None, "file", f"{tree}/as it is"),
    }


def test_excluded_items_are_not_changed(area: Path) -> None:
    for name in ("a.c", "a.o", "keep/a.c", "sub/keep.c", "sub/a.o"):
        (area / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (area / "tree" / name).touch(0o644)
    run = pchmod("--json", "--exclude", "/keep", "--exclude", "*.o", "go=", area / "tree", ranks=2)
    reported = json.loads(run.stdout)
    assert run.returncode == 0 and (reported["changed"], reported["excluded"], reported["found"]) == (4, 3, 7), show(
        run
    )
    found = {line.split()[1]: line.split()[0] for line in state(area / "tree", "%m %P x")[1:]}
    assert {name for name, mode in found.items() if mode in ("600", "700")} == {"x", "a.c", "sub", "sub/keep.c"}
    run = pchmod("--json", "--larger-than", "1", "a=", area / "tree", ranks=1)
    assert run.returncode == 0 and json.loads(run.stdout)["changed"] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_only_listed_and_unchanged_items_are_changed(area: Path, ranks: int) -> None:
    """A listed directory is changed without its contents."""
    tree = area / "tree"
    for name in ("a/1", "a/2", "b/3", "b/4", "c/5"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch(0o644)
    lines: list[dict[str, Any]] = [{"format": "pcopy listing", "version": 1, "directory_b64": "L3RtcA=="}]
    for name, kind in (("a", "directory"), ("a/1", "file"), ("b/3", "file"), ("b/4", "file"), ("c/5", "symlink")):
        there = (tree / name).lstat()
        known = {"inode": there.st_ino, "device": there.st_dev, "size": there.st_size, "mtime_ns": there.st_mtime_ns}
        lines.append({"path": f"{tree}/{name}", "type": kind, **known})
    (tree / "a/new").touch(0o644)
    (tree / "b/3").write_text("other")
    (tree / "b/4").rename(tree / "b/moved")
    (tree / "b/4").touch(0o644)
    (area / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = pchmod("--json", "--from", area / "list", "go=", ranks=ranks)
    reported = json.loads(run.stdout)
    assert run.returncode == 1 and (reported["changed"], reported["failed"], reported["found"]) == (2, 3, 5), show(run)
    assert run.stderr.count(b"it is not the item that was listed, or has changed since: not processed") == 3
    changed = [line.split()[1] for line in state(tree, "%m %P x")[1:] if line.split()[0] in ("600", "700")]
    assert changed == ["a/1", "a"] or sorted(changed) == ["a", "a/1"]


def test_run_under_a_launcher_succeeds(trees: tuple[Path, Path]) -> None:
    one, two = trees
    subprocess.run(["chmod", "-R", "go-rwx", one], check=True)
    run = pchmod("go-rwx", two, ranks=3, launcher="mpi")
    assert run.returncode == 0, show(run)
    assert state(one) == state(two)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_same_command_completes_an_interrupted_run(area: Path, number: signal.Signals) -> None:
    """The run ends by a signal or by the loss of a rank."""
    for each in range(200):
        (area / f"tree/{each}").mkdir(parents=True)
        (area / f"tree/{each}/file").touch(0o644)
    with background("go=", area / "tree", program="pchmod", ranks=2, wrap=slowed("getdents64", 20)) as run:
        assert wait_until(lambda: "600" in state(area / "tree", "%m"))
        if number == signal.SIGTERM:
            run.send_signal(number)
        else:
            os.kill(run.ranks()[-1], number)
        assert run.end(20) == (75 if number == signal.SIGTERM else 70)
    assert "644" in state(area / "tree", "%m")
    assert pchmod("go=", area / "tree", ranks=2).returncode == 0
    assert set(state(area / "tree", "%m")) == {"", "600", "700"}


def test_items_whose_owner_cannot_be_changed_fail(area: Path) -> None:
    """All system calls that change an owner fail from the third item on."""
    require_root("give files away")
    for number in range(8):
        (area / f"tree/{number}").mkdir(parents=True)
    fault = Fault(area / "log", ["fchownat", "chown", "lchown", "fchown"], None, "EIO", "3+")
    run = pchmod("--json", "--owner", "7", area / "tree", ranks=1, wrap=fault.wrap())
    fault.check()
    reported = json.loads(run.stdout)
    left = state(area / "tree", "%U").count("0")
    assert (run.returncode, reported["failed"], reported["changed"]) == (1, left, 9 - left) and left > 2, show(run)
    assert run.stderr.count(b": chown: Input/output error (EIO)\n") == left


REFUSED = (
    (("644",), b"PATH expected"),
    ((), b"MODE and PATH expected"),
    (("u+q", "."), b"u+q: is not a mode; write MODE first"),
    ((".", "755"), b".: is not a mode; 755 is one: write it before PATH"),
    (("0:0", "."), b"0:0: is not a mode; for an owner write --owner 0:0"),
    (("-w", "."), b"-w: is a mode of chmod: write for whom, as in a-w for -w, or write --mode=-w"),
    (("-Rrx", "."), b"is a mode of chmod"),
    (("--mode", "9", "."), b"--mode 9: is not a mode"),
    (("--mode", "7", "--reference", ".", "."), b"leave one out"),
    (("--reference", "missing", "."), b"--reference missing: No such file or directory"),
    (("--owner", "no-such-user", "."), b"there is no user no-such-user"),
    (("--group", "no-such-group", "."), b"there is no group no-such-group"),
    (("--owner", "0", "644", "."), b"644: is both a mode and an existing path; write --mode 644 for the mode, ./644"),
    (("--acl-from", ".", "--mode", "7", "."), b"leave MODE out"),
    (("-h", "644", "."), b"-h"),
    (("-0", "644", "."), b"-0 says how the paths in --from end"),
    (("--from", "/dev/null", "644", ".", "."), b"name at most one directory"),
    (("--from", "/dev/null", "--exclude", "x", "644"), b"leave out filters"),
    (("644", ""), b"a path is the empty string"),
    (("--dry-run", "a-w", "/".join([".."] * 40)), b"is the root directory, which is never changed; name what is in it"),
    (("--dry-run", "--owner", "0", "//"), b"//: is the root directory, which is never changed; name what is in it"),
)


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_invalid_arguments_are_refused(area: Path, words: tuple[str, ...], why: bytes) -> None:
    require_root("name any owner")
    (area / "644").touch(0o644)
    before = state(area, "%m %C@ %p")
    run = pchmod(*words, cwd=area, ranks=1)
    assert run.returncode == 2 and why in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert state(area, "%m %C@ %p") == before


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_dry_run_counts_hard_links_as_the_run_does(area: Path, ranks: int, listed: bool) -> None:
    for number in range(6):
        (area / f"tree/{number}").mkdir(parents=True)
        (area / f"tree/{number}/file").touch(mode=0o600)
        (area / f"tree/{number}/as-wanted").touch(mode=0o640)
        for group in range(5):
            first = area / f"tree/0/group{group}"
            if number:
                os.link(first, area / f"tree/{number}/group{group}")
            else:
                first.touch(mode=0o600 if group else 0o640)
            os.link(first, area / f"tree/{number}/second{group}")
    before = {path.lstat().st_ino: path.lstat().st_mode for path in (area / "tree").rglob("*")}
    names = subprocess.run(["find", area / "tree"], check=True, capture_output=True).stdout
    (area / "list").write_bytes(names)
    words: list[Any] = ["--json", "u+rw,g+r", *(["--from", area / "list"] if listed else [area / "tree"])]
    counts = [json.loads(pchmod(*words, *dry, ranks=ranks).stdout) for dry in (["--dry-run", "-q"], [])]
    after = {path.lstat().st_ino: path.lstat().st_mode for path in (area / "tree").rglob("*")}
    changed = sum(mode != before[inode] for inode, mode in after.items())
    for each in counts:
        assert (each["changed"], each["found"]) == (changed, len(names.splitlines()))
        assert each["changed"] + each["unchanged"] == each["found"] and not each["failed"]
    lines = pchmod("--dry-run", "go-r", area / "tree", ranks=ranks).stdout
    assert lines.count(b" -> ") == sum(bool(mode & 0o044) for mode in after.values()) + 1  # the tree itself


@pytest.mark.parametrize("backend", ["c", "python"])
def test_file_that_cannot_be_opened_once_is_not_missing(area: Path, backend: str) -> None:
    """A server may say ENOENT for a file that exists. Whether it does is decided by a stat."""
    for name in ("file", "other"):
        (area / "tree" / name).parent.mkdir(exist_ok=True)
        (area / "tree" / name).touch(0o644)
    fault = Fault(area / "log", ["openat"], Path("file"), "ENOENT", when="1")
    words = ("--json", "u=rw,go=", area / "tree/")
    run = pcopy(*words, program="pchmod", ranks=1, wrap=fault.wrap(), env={"PCOPY_BACKEND": backend})
    fault.check()
    assert (run.returncode, json.loads(run.stdout)["found"]) == (0, 3), show(run)
    assert {stat.S_IMODE((area / "tree" / name).stat().st_mode) for name in ("file", "other")} == {0o600}
