"""``pwalk`` tells what find tells; its lists are read by others."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_real import bindfs
from tests.support.command import Argument, Completed, pcopy, show, start
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root

MANY = 100_000
DAY = 86400


def pwalk(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pwalk")


def found(*words: Argument, cwd: Path) -> list[bytes]:
    """What find(1) finds, sorted, in the locale that the tests have."""
    told = subprocess.run(["find", *words, "-print0"], check=True, capture_output=True, cwd=cwd)
    return sorted(told.stdout.split(b"\0")[:-1])


def listed(run: Completed) -> list[bytes]:
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    return sorted(run.stdout.split(b"\0")[:-1])


def aged(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment - 3 * DAY, moment), follow_symlinks=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Items of all types, names, sizes, ages and modes."""
    top = tmp_path_factory.mktemp("walk") / "tree"
    for name in ("a/b/c", "empty", "full/x y", ".hidden/.git", "Upper"):
        (top / name).mkdir(parents=True)
    for number, size in enumerate((0, 1, 511, 512, 513, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1)):
        (top / f"a/file{number}.dat").write_bytes(b"x" * size)
        (top / f"a/b/{number}.C").write_bytes(b"y" * (number % 3))
    for number, age in enumerate((0.9, 1.1, 1.9, 2.1, 3.5, 30.5)):
        (top / f"full/aged-{number}").touch()
        aged(top / f"full/aged-{number}", age * DAY)
    for number, age in enumerate((50, 70, 110, 130, 590)):
        (top / f"full/x y/minutes-{number}").touch()
        aged(top / f"full/x y/minutes-{number}", age)
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
"""As find has them; the last one is refused, since pwalk does not have it."""


@pytest.mark.parametrize("number", range(4))
def test_finds_what_find_finds(tree: Path, number: int) -> None:
    """All tests as the words stand there, on two ranks."""
    require_root("look at what nobody may read")
    for line in EXPRESSIONS[number:-1:4]:
        words = line.split(" ")
        wanted = ["-print0" if word == "-print" else word for word in words]
        if "-print" not in words:
            wanted = ["(", *words, ")", "-print0"] if not {"-maxdepth", "-mindepth"} & {*words} else [*words, "-print0"]
        oracle = subprocess.run(["find", "tree", *wanted], check=True, capture_output=True, cwd=tree.parent)
        run = pwalk("--print0", "tree", *words, cwd=tree.parent, ranks=1 + number % 2)
        assert listed(run) == sorted(oracle.stdout.split(b"\0")[:-1]), line


def test_own_tests_and_places_of_options(tree: Path) -> None:
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
def test_large_directories(area: Path, launcher: str | None) -> None:
    """Names of one are spread over the ranks, with stat and without."""
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
    """As Python's lstat tells them."""
    status = os.lstat(os.path.join(os.fsencode(path), name))
    same = ("uid", "gid", "size", "atime_ns", "mtime_ns", "ctime_ns")
    values: dict[str, Any] = {key: getattr(status, f"st_{key}") for key in same}
    values |= {"inode": status.st_ino, "device": status.st_dev, "links": status.st_nlink}
    return {**values, "mode": f"{status.st_mode & 0o7777:04o}", "allocated": status.st_blocks * 512}


KINDS = {"f": "file", "d": "directory", "l": "symlink", "p": "fifo", "s": "socket", "c": "character", "b": "block"}


def rows_of(lines: Sequence[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    return {base64.b64decode(row["path_b64"]) if row.get("path_b64") else row["path"].encode(): row for row in lines}


def test_all_lists_tell_the_same_as_stat(tree: Path, area: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet  # type: ignore[import-untyped]

    names = [area / f"list.{ending}" for ending in ("jsonl", "csv", "parquet", "lst")]
    outputs = [word for name in names for word in ("--output", name)] + ["--print0"]
    for sort in ([], ["--sort=-size"]):
        run = pwalk(*outputs, *sort, "--json", "--force", "tree", cwd=tree.parent, ranks=2)
        assert run.returncode == 0, show(run)
        paths = found("tree", cwd=tree.parent)
        told = json.loads(run.stdout)
        assert (told["found"], told["skipped"], told["failed"], told["exit_status"]) == (len(paths), 0, 0, 0)
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
            if row["type"] in ("directory", "symlink"):  # find has looked into them
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


def test_a_saved_listing_copies(tree: Path, area: Path) -> None:
    """``pcopy --files-from`` reads it: names of all sorts arrive."""
    run = pwalk("--output", area / "list.jsonl", ".", "-path", "./Upper/*", cwd=tree, ranks=2)
    assert run.returncode == 0, show(run)
    copied = pcopy("--files-from", area / "list.jsonl", f"{tree}/", area / "copy", ranks=1)
    assert copied.returncode == 0, show(copied)
    assert sorted(os.listdir(os.fsencode(area / "copy/Upper"))) == sorted(os.listdir(os.fsencode(tree / "Upper")))


def test_sorted_by_each_key(tree: Path) -> None:
    around = tree.parent
    for key, form in (("size", "%s"), ("mtime", "%T@"), ("uid", "%U"), ("name", "%f")):
        run = pwalk("--print0", "tree", f"--sort={key}", cwd=around, ranks=2)
        told = subprocess.run(
            ["find", "tree", "-printf", f"{form}\\0%p\\0"], check=True, capture_output=True, cwd=around
        )
        parts = told.stdout.split(b"\0")[:-1]
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        if key != "name":
            pairs = [(float(value), path) for value, path in pairs]  # type: ignore[misc]
        assert run.stdout.split(b"\0")[:-1] == [path for _, path in sorted(pairs)], key


def test_what_may_not_be_read(tree: Path, area: Path) -> None:
    """As for find, all else is told, and the status is 1."""
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
    ("-output", "x"): "unknown test -output",
    ("--output", "x"): "x: its name says what it holds",
    ("--output", "nowhere/x.csv"): "nowhere/x.csv",
    ("--sort=colour",): "is none of path",
    ("--fields", "colour"): "colour: is none of mode",
    ("--json",): "--json prints a summary",
    ("-L",): "-L: symbolic links are not followed",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refuses(area: Path, words: tuple[str, ...]) -> None:
    run = pwalk(*words, cwd=area)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert REFUSED[words].encode() in run.stderr
    assert run.stderr.count(b"\n") == 1
    assert os.listdir(area) == []


def test_files_that_are_there(area: Path) -> None:
    """A list is replaced, anything else is not."""
    (area / "thesis.txt").write_text("mine")
    run = pwalk("--output", "thesis.txt", ".", cwd=area)
    assert run.returncode == 2
    assert b"may be anything; name another file, or write --force" in run.stderr
    assert (area / "thesis.txt").read_text() == "mine"
    for _ in range(2):
        run = pwalk("--output", "list.csv", "-q", ".", cwd=area, ranks=1)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)
    assert run.returncode == 0
    assert pwalk("--force", "--output", "thesis.txt", ".", "-name", "thesis*", cwd=area, ranks=1).returncode == 0
    assert (area / "thesis.txt").read_text() == "./thesis.txt\n"
    assert sorted(os.listdir(area)) == ["list.csv", "thesis.txt"]


@pytest.fixture
def many(area: Path) -> Iterator[Path]:
    for each in range(200):
        (area / f"many/{each}").mkdir(parents=True)
        for file in range(20):
            (area / f"many/{each}/{'long name ' * 20}{file}").touch()
    yield area / "many"


def test_a_reader_that_goes_ends_it(many: Path) -> None:
    with start("-n", "2", many, program="pwalk") as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline().startswith(os.fsencode(many))
        run.stdout.close()
        assert run.wait(30) == 75
        assert run.stderr.read() == b""


def test_a_full_disk(many: Path) -> None:
    with open("/dev/full", "wb") as full, start("-n", "2", many, program="pwalk", stdout=full) as run:
        assert run.stderr is not None
        assert run.wait(30) == 75
        assert run.stderr.read() == b"pwalk: standard output cannot be written: No space left on device\n"


def writes_below(directory: Path, process: int) -> bool:
    """Has it a file open there, with or without a name?"""
    links = []
    with suppress(OSError):
        for each in os.scandir(f"/proc/{process}/fd"):
            with suppress(OSError):
                links.append(os.readlink(each.path))
    return any(link.startswith(f"{directory}/") for link in links)


@pytest.mark.parametrize(
    ("number", "rank", "status"), [(signal.SIGINT, 0, 75), (signal.SIGKILL, 1, 70), (signal.SIGKILL, 0, 137)]
)
def test_stopped_it_leaves_no_list(many: Path, area: Path, number: signal.Signals, rank: int, status: int) -> None:
    """A signal stops it in order; where a rank is killed the others end, too. No other file is left."""
    (area / "out").mkdir()
    words = ("--oplimit", "100", "--output", area / "out/list.jsonl", many)
    with background(*words, program="pwalk", ranks=2) as run:
        assert wait_until(lambda: len(run.processes()) > 1 and writes_below(area / "out", run.process.pid))
        os.kill(run.ranks()[0] if rank else run.process.pid, number)
        assert run.end(30) == status
    assert os.listdir(area / "out") == []


def test_a_list_of_a_file_system_that_names_each_file(area: Path) -> None:
    """Where a rank is lost, rank 0 removes it."""
    with bindfs(area) as (_, out):
        words = ("--oplimit", "1", "--output", out / "list.lst", "/usr/share")
        with background(*words, program="pwalk", ranks=2) as run:
            assert wait_until(lambda: len(run.processes()) > 1 and len(os.listdir(out)) == 1)
            os.kill(run.ranks()[-1], signal.SIGKILL)
            assert run.end(30) == 70
        assert os.listdir(out) == []


def test_outputs_that_are_refused(area: Path) -> None:
    (area / "link.lst").symlink_to("target.lst")
    run = pwalk("--force", "--output", area / "link.lst", area, ranks=1)
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr == f"pwalk: {area}/link.lst: is a symbolic link; name what it leads to\n".encode()


def test_a_listing_that_was_cut_off(area: Path) -> None:
    whole = pwalk("--json-lines", area, ranks=1).stdout
    (area / "cut.jsonl").write_bytes(whole[:-1])
    run = pwalk("--from", area / "cut.jsonl", "--output", area / "new.lst", ranks=2)
    assert run.returncode == 2 and b": line 2: has no end: the listing was cut off" in run.stderr, show(run)
    assert os.listdir(area) == ["cut.jsonl"]


def test_times_that_64_bits_do_not_hold(area: Path) -> None:
    """They are the latest and the earliest for tests, and no list tells a number instead of them."""
    moments = {"now": int(time.time()), "late": 10**10, "early": -(10**10)}
    for name, seconds in moments.items():
        (area / name).touch()
        os.utime(area / name, (0, seconds))
        if (area / name).stat().st_mtime != seconds:
            pytest.skip("the file system holds no such times")
    for words in (
        ["-newermt", "2250-01-01"],
        ["-newermt", "2280-01-01"],
        ["!", "-newermt", "1600-01-01"],
        ["-mtime", "+9"],
    ):
        assert listed(pwalk(".", "-type", "f", *words, "-print0", cwd=area, ranks=1)) == found(
            ".", "-type", "f", *words, cwd=area
        )
    fields = ("--fields", "size,mtime_ns")
    run = pwalk(*fields, "--json-lines", "--output", "list.csv", *moments, cwd=area, ranks=1)
    (area / "list.jsonl").write_bytes(run.stdout)
    again = pwalk(*fields, "--json-lines", "--from", "list.jsonl", cwd=area, ranks=1)
    for text in (run.stdout, again.stdout):
        told = {item["path"]: item for item in map(json.loads, text.splitlines()[1:])}
        assert {name: item.get("mtime_ns") for name, item in told.items()} == {
            "now": moments["now"] * 10**9,
            "late": None,
            "early": None,
        }
        assert all(item["size"] == 0 for item in told.values())
    with (area / "list.csv").open() as file:
        assert {row["path"]: row["mtime_ns"] for row in csv.DictReader(file)} == {
            "now": f"{moments['now']}000000000",
            "late": "",
            "early": "",
        }
    whole = run.stdout.replace(b'"path": "late"', b'"mtime_ns": %d, "path": "late"' % 10**19)
    (area / "list.jsonl").write_bytes(whole)
    other = pwalk("--from", "list.jsonl", "-newermt", "2280-01-01", cwd=area, ranks=1)
    assert (other.returncode, other.stdout) == (0, b"late\n"), show(other)
