"""``pwalk`` lists the same items as find; other programs read its lists."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import socket
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.users import NOBODY, require_root

MANY = 100_000
DAY = 86400


def pwalk(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pwalk")


def found(*words: Argument, cwd: Path) -> list[bytes]:
    """Return the sorted paths that find(1) prints."""
    reported = subprocess.run(["find", *words, "-print0"], check=True, capture_output=True, cwd=cwd)
    return sorted(reported.stdout.split(b"\0")[:-1])


def listed(run: Completed) -> list[bytes]:
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    return sorted(run.stdout.split(b"\0")[:-1])


def set_age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment - 3 * DAY, moment), follow_symlinks=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with items of all types and with many names, sizes, ages and modes."""
    top = tmp_path_factory.mktemp("walk") / "tree"
    for name in ("a/b/c", "empty", "full/x y", ".hidden/.git", "Upper"):
        (top / name).mkdir(parents=True)
    for number, size in enumerate((0, 1, 511, 512, 513, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1)):
        (top / f"a/file{number}.dat").write_bytes(b"x" * size)
        (top / f"a/b/{number}.C").write_bytes(b"y" * (number % 3))
    for number, age in enumerate((0.9, 1.1, 1.9, 2.1, 3.5, 30.5)):
        (top / f"full/aged-{number}").touch()
        set_age(top / f"full/aged-{number}", age * DAY)
    for number, age in enumerate((50, 70, 110, 130, 590)):
        (top / f"full/x y/minutes-{number}").touch()
        set_age(top / f"full/x y/minutes-{number}", age)
    for mode in (0o000, 0o644, 0o600, 0o755, 0o4755, 0o2640, 0o1777, 0o222):
        (top / f"Upper/{mode:04o}").touch()
        (top / f"Upper/{mode:04o}").chmod(mode)
    names = (
        b"new\nline",
        b"\xff\xfe",
        "ünïcödé.c".encode(),
        b"-name",
        b"[ab]",
        b"back\\slash",
        b"tab\t",
        b'"quoted",',
        b"A.c",
    )
    for each in names:
        (top / "Upper" / os.fsdecode(each)).touch()
    (top / "link").symlink_to("a")
    (top / "dangling").symlink_to("nowhere")
    os.mkfifo(top / "fifo")
    os.link(top / "a/file1.dat", top / "further")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(top / "socket"))
    os.setxattr(top / "a/file2.dat", "user.checked", b"1")
    if os.geteuid() == 0:
        os.mknod(top / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(top / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 200))
        os.chown(top / "a/file3.dat", 1234, 4321)
    return top


EXPRESSIONS = r"""
-name *.c
-iname *.c
-name [[:upper:]]*
-name ?[!0-9]*
-name \[ab\]
-name ???????.c
-name .*
-name tree
-path *b/*
-path tree/a
-ipath *UPPER/0*
-type f
-type d,l
-type p,s,b,c
-size 1
-size +1
-size -2
-size 0
-size 1k
-size -1k
-size +1k
-size 512c
-size +511c
-size 1M
-size -2M
-size +0
-size 256w
-size 2b
-empty
-type d -empty
-mtime 0
-mtime 1
-mtime +1
-mtime -2
-mtime -1
-mtime 2
-mtime +29
-mtime -1.5
-atime +4
-ctime 0
-mmin 2
-mmin -2
-mmin +1
-mmin +9
-amin -1
-newer tree/full/aged-2
-anewer tree/full/aged-2
-newermt 2020-01-01
! -newermm tree/full/aged-4
-perm 644
-perm -644
-perm /222
-perm /000
-perm -u=rw,g=r
-perm /u=s,g=s
-perm -1000
-perm u=rwx,go=rx
-perm -g+w
-perm -g=s,a=rx
-links 2
-links +1
-type f -links -2
-type f,l -size +1
-name *.dat -size +1
-user root
-uid 0
-gid +0
-nouser
-nogroup
-samefile tree/further
-not -type f
! ( -type f -o -type d )
-type f -name f* -size -3
-type f -o -type l -name d*
-name a -prune -o -print
-name b -prune -o -type f -print
-name a -print -print
-name a -print -size +0 -print
-path */b -prune -o -name *.dat
-maxdepth 0
-maxdepth 1
-mindepth 2
-mindepth 1 -maxdepth 2 -type d
-type d -name full -prune
-size +1k -prune -o -name f*
-false -o -true
-type f , -type d
""".strip().splitlines()
"""Expressions of find; pwalk does not support the last one."""


@pytest.mark.parametrize("number", range(4))
def test_expressions_match_the_same_items_as_find(tree: Path, number: int) -> None:
    """Expressions run on one or two ranks."""
    require_root("look at what nobody may read")
    for line in EXPRESSIONS[number:-1:4]:
        words = line.split(" ")
        wanted = ["-print0" if word == "-print" else word for word in words]
        if "-print" not in words:
            wanted = ["(", *words, ")", "-print0"] if not {"-maxdepth", "-mindepth"} & {*words} else [*words, "-print0"]
        oracle = subprocess.run(["find", "tree", *wanted], check=True, capture_output=True, cwd=tree.parent)
        run = pwalk("--print0", "tree", *words, cwd=tree.parent, ranks=1 + number % 2)
        assert listed(run) == sorted(oracle.stdout.split(b"\0")[:-1]), line


def test_extension_tests_and_option_positions(tree: Path) -> None:
    around = tree.parent
    assert listed(pwalk("-n", "1", "tree", "-xattr", "user.checked", "--print0", cwd=around)) == [b"tree/a/file2.dat"]
    assert listed(pwalk("--print0", cwd=tree, ranks=1)) == found(".", cwd=tree)
    assert listed(pwalk("--print0", "tree/", cwd=around, ranks=1)) == found("tree/", cwd=around)
    several = ["tree/a", "tree/link", "tree/link/", "tree/fifo", "tree/../tree/Upper"]
    assert listed(pwalk(*several, "-print0", cwd=around, ranks=2)) == found(*several, cwd=around)
    plain = pwalk("tree", "-name", "f*", "--sort=path", cwd=around, ranks=1)
    assert plain.stdout.splitlines() == found("tree", "-name", "f*", cwd=around)


def test_filters(tree: Path) -> None:
    run = pwalk("--print0", "--exclude", "b/", "--larger-than", "1000", "tree", "-type", "f", cwd=tree.parent, ranks=2)
    wanted = found("tree", "-name", "b", "-prune", "-o", "-type", "f", "-size", "+1000c", cwd=tree.parent)
    assert listed(run) == [path for path in wanted if path != b"tree/a/b"]


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_large_directories_are_listed_by_all_ranks(area: Path, launcher: str | None) -> None:
    """The ranks share the names of one directory, with and without reading their status."""
    (area / "large").mkdir()
    number = MANY if launcher is None else 3000
    for each in range(number):
        os.close(os.open(area / f"large/file-{each}", os.O_CREAT | os.O_WRONLY, 0o600))
    for each in range(600):
        (area / f"large/{each}/inner").mkdir(parents=True)
    for words in ((), ("-size", "-1")):
        run = pwalk("--print0", "large", *words, cwd=area, ranks=3, launcher=launcher)
        assert listed(run) == found("large", *words, cwd=area)


def values_of(path: Path, name: bytes) -> dict[str, Any]:
    """Return the values that os.lstat gives."""
    status = os.lstat(os.path.join(os.fsencode(path), name))
    same = ("uid", "gid", "size", "atime_ns", "mtime_ns", "ctime_ns")
    values: dict[str, Any] = {key: getattr(status, f"st_{key}") for key in same}
    values |= {"inode": status.st_ino, "device": status.st_dev, "links": status.st_nlink}
    return {**values, "mode": f"{status.st_mode & 0o7777:04o}", "allocated": status.st_blocks * 512}


KINDS = {"f": "file", "d": "directory", "l": "symlink", "p": "fifo", "s": "socket", "c": "character", "b": "block"}


def rows_of(lines: Sequence[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    return {base64.b64decode(row["path_b64"]) if row.get("path_b64") else row["path"].encode(): row for row in lines}


def test_all_list_formats_give_the_values_of_stat(tree: Path, area: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet  # type: ignore[import-untyped]

    names = [area / f"list.{ending}" for ending in ("jsonl", "csv", "parquet", "lst")]
    outputs = [word for name in names for word in ("--output", name)] + ["--print0"]
    for sort in ([], ["--sort=-size"]):
        run = pwalk(*outputs, *sort, "--json", "--force", "tree", cwd=tree.parent, ranks=2)
        assert run.returncode == 0, show(run)
        paths = found("tree", cwd=tree.parent)
        reported = json.loads(run.stdout)
        assert (reported["found"], reported["skipped"], reported["failed"], reported["exit_status"]) == (
            len(paths),
            0,
            0,
            0,
        )
        head, *lines = map(json.loads, names[0].read_text(encoding="ascii").splitlines())
        assert head == {
            "format": "pcopy listing",
            "version": 1,
            "directory_b64": base64.b64encode(os.fsencode(tree.parent)).decode(),
        }
        as_csv = list(csv.DictReader(io.StringIO(names[1].read_text(encoding="utf-8"), newline="")))
        as_parquet = pyarrow.parquet.read_table(names[2]).to_pylist()
        for rows in map(rows_of, (lines, as_csv, as_parquet)):
            assert sorted(rows) == paths
        for path in paths:
            wanted = values_of(tree.parent, path)
            row = rows_of(lines)[path]
            if row["type"] in ("directory", "symlink"):  # find has read them
                del wanted["atime_ns"]
            assert {key: row[key] for key in wanted} == wanted
            assert {key: rows_of(as_csv)[path][key] for key in wanted} == {key: str(wanted[key]) for key in wanted}
            parquet = rows_of(as_parquet)[path]
            assert {key: parquet[key] for key in wanted} == {**wanted, "mode": int(wanted["mode"], 8)}
        for letter, word in KINDS.items():
            of_kind = found("tree", "-type", letter, cwd=tree.parent)
            assert sorted(path for path, row in rows_of(lines).items() if row["type"] == word) == of_kind
        if sort:
            sizes = [line["size"] for line in lines]
            assert sizes == sorted(sizes, reverse=True)
        assert sorted(names[3].read_bytes().split(b"\0")) == sorted([*paths, b""])


def test_saved_listing_serves_as_a_list_of_files_to_copy(tree: Path, area: Path) -> None:
    """``pcopy --files-from`` reads names of all kinds from it."""
    run = pwalk("--output", area / "list.jsonl", ".", "-path", "./Upper/*", cwd=tree, ranks=2)
    assert run.returncode == 0, show(run)
    copied = pcopy("--files-from", area / "list.jsonl", f"{tree}/", area / "copy", ranks=1)
    assert copied.returncode == 0, show(copied)
    assert sorted(os.listdir(os.fsencode(area / "copy/Upper"))) == sorted(os.listdir(os.fsencode(tree / "Upper")))


def test_output_is_sorted_by_each_key(tree: Path) -> None:
    around = tree.parent
    for key, form in (("size", "%s"), ("mtime", "%T@"), ("uid", "%U"), ("name", "%f")):
        run = pwalk("--print0", "tree", f"--sort={key}", cwd=around, ranks=2)
        reported = subprocess.run(
            ["find", "tree", "-printf", f"{form}\\0%p\\0"], check=True, capture_output=True, cwd=around
        )
        parts = reported.stdout.split(b"\0")[:-1]
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        if key != "name":
            pairs = [(float(value), path) for value, path in pairs]  # type: ignore[misc]
        assert run.stdout.split(b"\0")[:-1] == [path for _, path in sorted(pairs)], key


def test_long_format_equals_that_of_find(tree: Path, area: Path) -> None:
    """Link targets and device numbers are not compared."""
    for words in (["tree", "-name", "*[!c]", "-ls"], ["tree", "-name", "f*", "(", "-size", "+0", "-o", "-ls", ")"]):
        reported = subprocess.run(["find", *words], check=True, capture_output=True, cwd=tree.parent).stdout
        wanted = [line.split(b" -> ")[0] for line in reported.splitlines() if line.split()[2][:1] not in b"bc"]
        run = pwalk(*words, cwd=tree.parent, ranks=2)
        assert (run.returncode, run.stderr) == (0, b""), show(run)
        ours = [line for line in run.stdout.splitlines() if line.split()[2][:1] not in b"bc"]
        assert sorted(line.split()[:10] for line in ours) == sorted(line.split()[:10] for line in wanted)
        assert len({line.rindex(b"tree") for line in ours if line.endswith(b".dat")}) <= 1
    for age in (-2 * 3600, -1800, 60, 179.5 * DAY, 180.5 * DAY):  # printed with the time of day or with the year
        (area / str(age)).touch()
        set_age(area / str(age), age)
    reported = subprocess.run(["find", ".", "-type", "f", "-ls"], check=True, capture_output=True, cwd=area).stdout
    run = pwalk(".", "-type", "f", "-ls", cwd=area, ranks=1)
    assert sorted(map(bytes.split, run.stdout.splitlines())) == sorted(map(bytes.split, reported.splitlines()))


def test_unreadable_directories_are_reported_as_by_find(tree: Path, area: Path) -> None:
    """As with find, all other items are listed, and the status is 1."""
    require_root("become another user")
    area.chmod(0o755)
    for name in ("open/inner", "closed/inner", "listed/inner"):
        (area / name).mkdir(parents=True)
    (area / "closed").chmod(0o700)
    (area / "listed").chmod(0o744)
    for words in ((), ("-size", "+0")):
        line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "find", ".", *words, "-print0"]
        oracle = subprocess.run(line, check=False, capture_output=True, cwd=area)
        run = pwalk("--print0", ".", *words, cwd=area, ranks=2, user=NOBODY)
        assert (oracle.returncode, run.returncode) == (1, 1)
        assert sorted(run.stdout.split(b"\0")) == sorted(oracle.stdout.split(b"\0"))
        assert b"closed: open: Permission denied" in run.stderr
        assert run.stderr.count(b"listed/inner") == oracle.stderr.count(b"listed/inner") == 1
        assert b"Traceback" not in run.stderr
    missing = pwalk("-n", "1", "nowhere", "open", cwd=area)
    assert (missing.returncode, missing.stdout) == (1, b"open\nopen/inner\n")
    assert b"nowhere: stat: No such file" in missing.stderr


REFUSED = {
    ("-nmae", "x"): "unknown test -nmae; the nearest is -name",
    ("-type", "x"): "-type x: f, d, l",
    ("-size", "5q"): "-size 5q: a number",
    ("-name",): "-name: its value is missing",
    ("-name", "a", "b"): "b: paths stand before",
    ("-type", "f", "-o"): "-o: a test has to follow",
    ("(", "-type", "f"): "(: nothing closes",
    (")",): "): a test has to stand before",
    ("-type", "f", ")"): "): nothing opens",
    ("-exec", "ls", "{}", "+"): "-exec: pwalk runs no commands; write -print0",
    ("-delete",): "-delete: pwalk changes nothing",
    ("-user", "nobody-has-this-name"): "there is no such user",
    ("-newer", "nowhere"): "-newer nowhere: No such file",
    ("-perm", "8"): "-perm 8: an octal mode",
    ("-mtime", "x"): "-mtime x: a number",
    ("-type", "f", "-regex", "x"): "-regex: write -name",
    ("-readable",): "-perm examines mode bits only",
    ("-output", "x"): "unknown test -output",
    ("--output", "x"): "x: its format is chosen by its extension",
    ("--output", "nowhere/x.csv"): "nowhere/x.csv",
    ("--sort=colour",): "is none of path",
    ("--fields", "colour"): "colour: is none of mode",
    ("--json",): "--json prints a summary",
    ("-L",): "-L: symbolic links are not followed",
    ("-fls", "x"): "-fls: write --json-lines",
    ("-ls", "-o", "-print"): "-ls and -print: pwalk prints all items in one format",
    ("--summary", "-ls"): "-ls prints lines for people",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_invalid_requests_are_refused(area: Path, words: tuple[str, ...]) -> None:
    run = pwalk(*words, cwd=area)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert REFUSED[words].encode() in run.stderr
    assert run.stderr.count(b"\n") == 1
    assert os.listdir(area) == []


def test_bind_mount_of_the_same_file_system_is_entered(tmp_path: Path) -> None:
    """The parent directory lists the inode of the hidden directory, not of the mounted one."""
    require_root("mount file systems")
    for name in ("tree/a/point", "tree/b", "tree/c/d", "other/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "other/inner/file").touch()
    point = tmp_path / "tree/a/point"
    subprocess.run(["mount", "--bind", tmp_path / "other", point], check=True)
    try:
        run = pwalk("tree", "-print0", cwd=tmp_path)
        assert listed(run) == found("tree", cwd=tmp_path)
    finally:
        subprocess.run(["umount", point], check=True)
