"""``pverify --compare`` of two trees by chosen properties, checked by a separate walk, by rsync and by diff."""

from __future__ import annotations

import os
import random
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, pverify, show, start, succeed
from tests.support.compared import ALL, change, expected, paths, reported, seen, summary
from tests.support.faults import READS, Fault
from tests.support.processes import wait_until
from tests.support.trees import random_tree
from tests.support.users import NOBODY, require_root

MIB = 1 << 20


@pytest.fixture(scope="module")
def trees(session_scratch: Path) -> Path:
    """Two equal trees ``a`` and ``b``, and a third one, ``c``, that differs in all properties."""
    require_root("to give files away, and make devices")
    path = session_scratch / "compare"
    path.mkdir()
    random_tree(path / "a", 47, files=150, directories=25, largest=9 * MIB, privileged=True)
    for name in ("b", "c"):
        subprocess.run(["cp", "-a", path / "a", path / name], check=True)
    change(path / "c", 47)
    return path


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("ranks", "launcher"), [(1, None), (2, None), (8, None), (3, "mpi")])
def test_each_different_property_of_each_item_is_reported(trees: Path, ranks: int, launcher: str | None) -> None:
    wanted = expected(trees / "a", trees / "c")
    run = pverify("-q", "--json", "--compare", "all", trees / "a", trees / "c", ranks=ranks, launcher=launcher)
    assert (run.returncode, run.stderr) == (1, b""), show(run)
    assert reported(run) == wanted
    assert {name for _, differs in wanted.values() for name in differs} == {*ALL}
    numbers = summary(run)
    assert numbers["found"] == numbers["common"] + numbers["only_a"] + numbers["only_b"] + numbers["differ"]
    assert numbers["differ_in"] == {name: sum(name in each for _, each in wanted.values()) for name in ALL}
    run = pverify("-q", "--compare", "all", trees / "a", trees / "b", ranks=ranks, launcher=launcher)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("properties", ["type", "size,mtime", "mode,owner", "acl", "xattr", "content"])
def test_only_requested_properties_are_compared(trees: Path, properties: str) -> None:
    run = pverify("-q", "--json", "--compare", properties, trees / "a", trees / "c", ranks=2)
    assert reported(run) == expected(trees / "a", trees / "c", properties.split(","))


def acl_entries_beyond_mode(path: bytes) -> list[bytes]:
    """Return the ACL entries that are not equivalent to permission bits of the mode."""
    reported = subprocess.run(["getfacl", "-cnp", "--", path], check=True, capture_output=True).stdout.splitlines()
    return [entry for entry in reported if not entry.startswith((b"user::", b"mask::", b"other::"))]


def test_rsync_reports_the_same_properties(trees: Path) -> None:
    """Compare the items that exist on both sides; rsync reports their different properties as letters.

    A difference that both the mode and an ACL contain is reported by rsync for the mode only.
    """
    letters = {
        "s": "size",
        "T": "mtime",
        "t": "mtime",
        "p": "mode",
        "o": "owner",
        "g": "owner",
        "a": "acl",
        "x": "xattr",
    }
    command = ["rsync", "-aHAXn8", "--checksum", "--modify-window=-1", "--no-H", "--itemize-changes", "--open-noatime"]
    done = subprocess.run([*command, f"{trees}/a/", f"{trees}/c/"], check=True, capture_output=True)
    theirs = {}
    for line in done.stdout.splitlines():
        flags, path = line[:11].decode(), re.sub(rb"\\#(\d{3})", lambda code: bytes((int(code[1], 8),)), line[12:])
        path = path.partition(b" -> ")[0] if flags[1] == "L" else path
        if not flags.startswith("c") and "+" not in flags:
            theirs[path.rstrip(b"/") or b"."] = {letters[each] for each in flags[3:] if each in letters}
    run = pverify("-q", "--json", "--compare", "all", trees / "a", trees / "c")
    ours = {path: {*each} - {"content", "type"} for path, (word, each) in reported(run).items() if word == "differ"}
    for path, each in ours.items():
        if "acl" in each - theirs.get(path, set()):
            one, other = (acl_entries_beyond_mode(bytes(trees / side) + b"/" + path) for side in ("a", "c"))
            assert "mode" in each and len(one) > 1 and one == other
            each.remove("acl")
    assert len(theirs) > 50
    assert {path: each for path, each in theirs.items() if each} == {path: each for path, each in ours.items() if each}


def test_differences_are_printed_as_text_lines(area: Path) -> None:
    for side, text in (("a", "1"), ("b", "22")):
        (area / side / "both").mkdir(parents=True)
        (area / side / "f\n").write_text(text)
        (area / side / f"only-{side}").mkdir()
        (area / side / f"only-{side}/below").touch()
        os.utime(area / side / "f\n", (5, 5))
        os.utime(area / side / "both", (5, 5))
        os.utime(area / side, (5, 5))
    run = pverify("--compare", "size,mtime", area / "a", area / "b")
    assert run.stdout == b"differ in size: f\\n\nonly A: only-a\nonly B: only-b\n"
    lines = run.stderr.splitlines()
    assert lines[0] == b"pverify: different: 1 only A, 1 only B, 1 differ (1 in size)"
    assert lines[1].startswith(b"pverify: 5 items compared by type,size,mtime in "), lines
    done = subprocess.run(["diff", "-rq", "a", "b"], check=False, cwd=area, capture_output=True)
    assert done.stdout == b"Files a/f\n and b/f\n differ\nOnly in a: only-a\nOnly in b: only-b\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_content_no_file_is_opened(area: Path, ranks: int) -> None:
    for side in ("a", "b"):
        (area / side).mkdir()
        for name in ("small", "large"):
            (area / side / name).write_bytes(b"x" * (MIB if name == "large" else 9))
    trace = area / "trace"
    wrap = ("strace", "-f", "-qq", "-e", "trace=open,openat,openat2", "-o", str(trace))
    words = ("--compare", "type,size,mode,owner,acl,xattr", area / "a", area / "b")
    run = pverify("-q", *words, ranks=ranks, wrap=wrap)
    assert run.returncode == 0, show(run)
    assert '"small"' not in trace.read_text() and '"large"' not in trace.read_text()


def test_times_are_compared_to_the_nanosecond_or_within_the_window(area: Path) -> None:
    for side, moment in (("a", 10**18), ("b", 10**18 + 1)):
        (area / side).write_bytes(b"")
        os.utime(area / side, ns=(0, moment))
    assert pverify("-q", "--compare", "mtime", area / "a", area / "b").stdout == b"differ in mtime: .\n"
    assert pverify("-q", "--compare", "mtime", "--modify-window", "1", area / "a", area / "b").returncode == 0
    os.utime(area / "b", ns=(0, 10**18 + 2 * 10**9))
    assert pverify("-q", "--compare", "mtime", "--modify-window", "1", area / "a", area / "b").returncode == 1
    assert pverify("-q", "--compare", "mtime", "--modify-window", "2", area / "a", area / "b").returncode == 0


def test_output_lists_suffice_to_make_the_trees_equal(trees: Path, area: Path) -> None:
    """Copying and removing by these lists makes the trees equal, except for the metadata of directories."""
    subprocess.run(["cp", "-a", trees / "c", area / "c"], check=True)
    lists = ("--output", f"only-a:{area}/copy", "--output", f"differ:{area}/copy", "--output", f"only-b:{area}/remove")
    more = ("--output", f"common:{area}/common", "--output", f"differ-in-size:{area}/size")
    run = pverify("-q", "-0", "--compare", "all", *lists, *more, trees / "a", area / "c", ranks=2)
    assert run.returncode == 1, show(run)
    wanted = expected(trees / "a", area / "c")
    here, there = seen(trees / "a"), seen(area / "c")
    entered = {path for path, each in here.items() if each.values["type"] == (stat.S_IFDIR, 0)}
    differing = {path: each for path, (word, each) in wanted.items() if word == "differ"}
    files = {path for path, each in differing.items() if path not in entered or "type" in each} - {b"."}
    assert {*paths(area / "copy", b"\0")} == files | {path for path, (word, _) in wanted.items() if word == "only A"}
    assert {*paths(area / "remove", b"\0")} == {path for path, (word, _) in wanted.items() if word == "only B"}
    assert {*paths(area / "size", b"\0")} == {path for path, each in differing.items() if "size" in each}
    known = {path for path in here if path in there} - entered - {*wanted}
    below = [path + b"/" for path, (word, each) in wanted.items() if word != "differ" or "type" in each]
    assert {*paths(area / "common", b"\0")} == {path for path in known if not path.startswith((*below,))}
    subprocess.run(["xargs", "-0", "-a", area / "remove", "rm", "-r", "--"], check=True, cwd=area / "c")
    for path in paths(area / "copy", b"\0"):  # pcopy replaces only empty directories by files
        other = os.path.join(os.fsencode(area / "c"), path)
        if os.path.isdir(other) and not os.path.islink(other) and path not in entered:
            os.rmdir(other)
    succeed("-0", "--files-from", area / "copy", f"{trees}/a/", area / "c", ranks=2)
    run = pverify("-q", "--json", "--compare", "all", trees / "a", area / "c", ranks=2)
    assert {path for path in reported(run) if path not in entered and path != b"."} == set(), show(run)


def test_name_with_newline_is_refused_in_a_list_of_lines(area: Path) -> None:
    for side in ("a", "b"):
        (area / side).mkdir()
    (area / "a/x").touch()
    (area / "a/y\nz").touch()
    words = ("--compare", "size", "--output", f"only-a:{area}/list", area / "a", area / "b")
    run = pverify("-q", *words)
    assert run.returncode == 2 and not (area / "list").exists()
    assert b"y\\nz has a newline in it: give -0" in run.stderr, show(run)
    assert pverify("-q", "-0", *words).returncode == 1
    assert paths(area / "list", b"\0") == [b"x", b"y\nz"]
    run = pverify("-q", "-0", *words)
    assert run.returncode == 2 and b"already exists and is not replaced; --force replaces it" in run.stderr
    (area / "a/x").unlink()
    assert pverify("-q", "-0", "--force", *words).returncode == 1
    assert paths(area / "list", b"\0") == [b"y\nz"]


def test_filters_apply_to_both_trees(area: Path) -> None:
    for side, size in (("a", 5), ("b", 500)):
        (area / side / "d").mkdir(parents=True)
        for name in ("x.o", "y.c", f"{side}.o", f"{side}.c", "d/z.o"):
            (area / side / name).write_bytes(b"." * size)
    run = pverify("-q", "--exclude", "*.o", "--compare", "size", area / "a", area / "b")
    assert run.stdout == b"only A: a.c\nonly B: b.c\ndiffer in size: y.c\n"
    run = pverify("-q", "--larger-than", "99", "--compare", "size", area / "a", area / "b")
    reported = [
        b"only B: b.c",
        b"only B: b.o",
        b"differ in size: d/z.o",
        b"differ in size: x.o",
        b"differ in size: y.c",
    ]
    assert run.stdout.splitlines() == reported, show(run)
    run = pverify("--exclude", "*", "--compare", "size", area / "a", area / "b")
    assert run.returncode == 2 and b"the filters have selected nothing" in run.stderr


@pytest.mark.parametrize("ranks", [1, 3])
def test_large_directories_are_compared(area: Path, ranks: int) -> None:
    for side in ("a", "b"):
        (area / side).mkdir()
        for number in range(3000):
            (area / side / f"{number}").touch()
    for number in range(0, 3000, 7):
        (area / "a" / f"{number}").unlink()
        (area / "b" / f"{number + 1}").unlink()
        (area / "b" / f"{number + 2}").write_text("x")
    run = pverify("-q", "--json", "--compare", "size", area / "a", area / "b", ranks=ranks)
    wanted = expected(area / "a", area / "b", ["size"])
    assert reported(run) == wanted and len(wanted) > 1200


def test_directory_too_large_to_merge_on_one_rank_is_compared(area: Path) -> None:
    """Names of the second tree are looked up in the first one, as in directories of far more than 100,000 names."""
    for side, numbers in (("a", range(700)), ("b", range(90, 790))):
        (area / side).mkdir()
        for number in numbers:
            (area / side / f"{number}").touch()
    program = (
        "import sys\nfrom pcopy.cli.pverify import main\nfrom pcopy.tasks.compare import compare_trees\n"
        "compare_trees.MAX_MERGED_NAMES = 100\nsys.exit(main())"
    )
    words = ["-q", "-n", "2", "--json", "--compare", "size", str(area / "a"), str(area / "b")]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, check=False, capture_output=True, cwd=REPOSITORY)
    assert reported(done) == expected(area / "a", area / "b", ["size"]), done
    assert (summary(done)["found"], summary(done)["only_a"], summary(done)["only_b"]) == (791, 90, 90)


def test_large_files_are_compared_by_all_ranks(area: Path) -> None:
    data = random.Random(5).randbytes(40 * MIB)
    for side in ("a", "b"):
        (area / side).mkdir()
        (area / side / "same").write_bytes(data)
        (area / side / "last").write_bytes(data)
    with open(area / "b/last", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes((data[-1] ^ 1,)))
    for words in ((), ("--direct",), ("--hash", "blake3")):
        run = pverify("-q", *words, "--compare", "content", area / "a", area / "b", ranks=3)
        assert (run.returncode, run.stdout) == (1, b"differ in content: last\n"), show(run)
    assert subprocess.run(["cmp", "-s", area / "a/last", area / "b/last"], check=False).returncode == 1


@pytest.mark.parametrize("what", ["directory", "names", "file", "attributes"])
def test_unreadable_item_is_an_error_and_not_a_difference(area: Path, what: str) -> None:
    """An unreadable item is neither equal nor missing on one side. Other differences are still reported."""
    area.chmod(0o755)
    for side in ("a", "b"):
        (area / side / "d").mkdir(parents=True)
        for name in ("d/f", "g"):
            (area / side / name).write_text("same")
    (area / "a/g").write_text("other contents")
    hidden = area / "b" / ("d/f" if what != "directory" else "d")
    (hidden.parent if what == "names" else hidden).chmod(0o444 if what == "names" else 0)
    properties = "xattr" if what == "attributes" else "content"
    if what == "attributes":
        for side in ("a", "b"):
            os.setxattr(area / side / "d/f", "user.x", b"y")
    run = pverify("--compare", f"size,{properties}", area / "a", area / "b", ranks=2, user=NOBODY)
    assert run.returncode == 2, show(run)
    differs = b"size,content" if what != "attributes" else b"size"
    assert run.stdout == b"differ in %b: g\n" % differs
    assert os.fsencode(hidden) in run.stderr and b"Permission denied" in run.stderr
    assert b"1 of " in run.stderr and b"could not be compared" in run.stderr


@pytest.mark.parametrize(("calls", "name"), [(READS, "f"), (("getdents64",), ""), (("llistxattr", "listxattr"), "f")])
def test_io_error_is_not_reported_as_a_difference(area: Path, calls: tuple[str, ...], name: str) -> None:
    for side in ("a", "b"):
        (area / side).mkdir()
        (area / side / "f").write_text("same")
    fault = Fault(
        area / "trace", calls, area / "b" / name if calls != ("llistxattr", "listxattr") else None, "EREMOTEIO"
    )
    run = pverify("-q", "--compare", "content,xattr", area / "a", area / "b", ranks=1, wrap=fault.wrap())
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert b"Remote I/O error" in run.stderr


@pytest.mark.parametrize("victim", [0, 1])
def test_run_with_a_killed_rank_does_not_report_equality(trees: Path, victim: int) -> None:
    process = start("--compare", "all", trees / "a", trees / "b", program="pverify", ranks=2, real=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: children.read_text().split() != [])
    os.kill(int(children.read_text().split()[0]) if victim else process.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, 1) and output == b"", (process.returncode, output, errors)
    assert b"the same" not in errors


def _pairs_of_items(area: Path) -> Iterator[tuple[str, str]]:
    (area / "file").write_text("x")
    (area / "other").write_text("y")
    (area / "dir").mkdir()
    os.mkfifo(area / "fifo")
    os.symlink("file", area / "link")
    yield from (("file", "other"), ("file", "dir"), ("dir", "file"), ("fifo", "file"), ("link", "file"))


def test_single_items_are_compared(area: Path) -> None:
    lines = [pverify("-q", "--compare", "size,content", area / a, area / b).stdout for a, b in _pairs_of_items(area)]
    differs = b"differ in type: .\n"
    assert lines == [b"differ in content: .\n", differs, differs, differs, b""]


def test_devices_are_compared_by_number(area: Path) -> None:
    require_root("to make devices")
    for side, minor in (("a", 3), ("b", 5)):
        (area / side).mkdir()
        os.mknod(area / side / "device", 0o600 | stat.S_IFCHR, os.makedev(1, minor))
        os.mknod(area / side / "socket", 0o600 | stat.S_IFSOCK)
    assert pverify("-q", "--compare", "mode", area / "a", area / "b").stdout == b"differ in type: device\n"


@pytest.mark.parametrize("backend", ["", "python"])
def test_differences_in_directories_compared_by_one_call_are_reported(area: Path, backend: str) -> None:
    """One call compares the small files of several directories; differences of all other items are reported as well."""
    for side in ("a", "b"):
        for number in range(6):
            (area / side / f"{number}/below").mkdir(parents=True)
            for name in ("empty", "some", "much", "below/f"):
                (area / side / f"{number}" / name).write_bytes(
                    {"some": b"x", "much": b"y" * (600 << 10)}.get(name, b"")
                )
            (area / side / f"{number}/link").symlink_to("some")
    for name, text in (("0/some", b"z"), ("1/empty", b"1"), ("2/much", b"y" * ((600 << 10) - 1) + b"z")):
        (area / "b" / name).write_bytes(text)
    (area / "b/2/link").unlink()
    (area / "b/2/link").symlink_to("same")
    (area / "b/3/some").unlink()
    (area / "b/4/below/g").touch()
    (area / "a/5/empty").unlink()
    (area / "a/5/empty").mkdir()
    env = {"PCOPY_BACKEND": backend} if backend else {}
    for properties in ("content", "size"):
        run = pverify("-q", "--json", "--compare", properties, area / "a", area / "b", ranks=2, env=env)
        wanted = expected(area / "a", area / "b", [properties])
        assert reported(run) == wanted and len(wanted) == (7 if properties == "content" else 4), show(run)
        numbers = summary(run)
        assert numbers["found"] == 1 + 6 * 7 + 1 and numbers["differ"] == len(wanted) - 2
    fault = Fault(area / "trace", READS, area / "b/0/below/f", "EREMOTEIO")
    run = pverify("-q", "--compare", "content", area / "a", area / "b", ranks=1, wrap=fault.wrap(), env=env)
    assert run.returncode == 2 and b"0/below/f" in run.stderr and b"Remote I/O error" in run.stderr, show(run)


@pytest.mark.parametrize("words", [("--compare", "content"), ()])
@pytest.mark.parametrize("ranks", [1, 2])
def test_deep_directories_are_compared_with_few_opens(area: Path, words: tuple[str, ...], ranks: int) -> None:
    """Files are read after all directories were listed, mostly from the deepest directory upwards, on both sides."""
    depth = 600
    for side in ("a", "b"):
        deepest = area / side / "/".join(["d"] * depth)
        deepest.mkdir(parents=True)
        for above in (deepest, *deepest.parents[:depth]):
            (above / "f").write_text("same")
    wrap = ["strace", "-f", "-qq", "-c", "-e", "trace=openat,openat2", "-o", str(area / "calls")]
    run = pverify("-q", *words, area / "a", area / "b", ranks=ranks, wrap=wrap)
    assert (run.returncode, run.stdout) == (0, b""), show(run)
    calls = sum(int(line.split()[3]) for line in (area / "calls").read_text().splitlines() if "openat" in line)
    directories_and_files = 2 * 2 * depth
    assert calls < 6 * directories_and_files, calls
