"""``pverify A B`` compares two trees side by side, and shows what a comparison of digests (``--hash``) shows.

Oracles: find for names, types and links, cmp for contents, diff for the status; and the digests of both trees.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, Argument, Completed, pverify, show
from tests.support.faults import READS, Fault
from tests.support.quirks import quirky
from tests.support.traces import Trace
from tests.support.trees import random_tree
from tests.support.users import NOBODY, is_root, require_root

DIGESTS = ("--hash", "xxh3-128")
"""With these options, digests of all items are computed and compared."""


def items_in(tree: Path) -> dict[bytes, tuple[bytes, bytes, int]]:
    """Return type, link text and device number of all items below ``tree`` except sockets, by path."""
    find = ["find", str(tree), "-mindepth", "1", "!", "-type", "s", "-printf", r"%P\0%y\0%l\0"]
    words = iter(subprocess.run(find, check=True, capture_output=True).stdout.split(b"\0")[:-1])
    return {
        path: (kind, text, os.lstat(os.path.join(os.fsencode(tree), path)).st_rdev if kind in b"bc" else 0)
        for path, kind, text in zip(words, words, words, strict=True)
    }


def differences(a: Path, b: Path) -> list[bytes]:
    """Return the lines that ``pverify`` must print: paths as find shows them, and contents as cmp compares them."""
    first, second = items_in(a), items_in(b)
    found: dict[bytes, bytes] = {}
    for path in {**first, **second}:
        if path not in second:
            found[path] = b"missing"
        elif path not in first:
            found[path] = b"extra"
        elif first[path] != second[path]:
            found[path] = b"changed"
        elif first[path][0] == b"f":
            files = [os.path.join(os.fsencode(tree), path) for tree in (a, b)]
            if subprocess.run(["cmp", "-s", *files], check=False).returncode:
                found[path] = b"changed"
    return [
        b"%b %b" % (found[path], escaped(path)) for path in sorted(found, key=lambda path: path.replace(b"/", b"\0"))
    ]


def escaped(path: bytes) -> bytes:
    text = path.decode("utf-8", "backslashreplace").replace("\\", "\\\\")
    text = re.sub(r"\\\\(x[0-9a-f]{2})", r"\\\1", text)
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r").encode()


def contents(tree: Path) -> tuple[Counter[str], int]:
    """Return the numbers of items in ``tree`` by type and the bytes of its files, without sockets."""
    find = ["find", str(tree), "!", "-type", "s", "-printf", r"%y %s\n"]
    lines = subprocess.run(find, check=True, capture_output=True, text=True).stdout.splitlines()
    return Counter(line[0] for line in lines), sum(int(line.split()[1]) for line in lines if line[0] == "f")


def messages(run: Completed) -> list[str]:
    """Return the lines on standard error, without times and rates."""
    return sorted(re.sub(r",? in [\d.:]+( s| min)?: .*/s$", "", line) for line in run.stderr.decode().splitlines())


def check_as_digests(run: Completed, *paths: Argument, **options: object) -> None:
    """Check that ``run`` has shown and returned what a comparison of digests shows and returns."""
    reference = pverify(*DIGESTS, *paths, **options)
    assert (run.returncode, run.stdout) == (reference.returncode, reference.stdout), (show(run), show(reference))
    assert messages(run) == messages(reference), (show(run), show(reference))


def text(number: int) -> str:
    units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]
    unit, name = next((unit, name) for unit, name in units if number >= unit or unit == 1)
    return f"{number} B" if unit == 1 else f"{float(f'{number / unit:.3g}'):#.3g} {name}".replace(". ", " ")


# Each difference, at each depth


def bind(path: Path) -> None:
    """Create a socket."""
    os.mknod(path, stat.S_IFSOCK | 0o600)


def replace_by_tree(path: Path) -> None:
    path.unlink()
    (path / "inner/empty").mkdir(parents=True)
    (path / "inner/file").write_text("inner")


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("was a directory")


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))


def add_tree(top: Path) -> None:
    (top / "added/one/two").mkdir(parents=True)
    (top / "added/one/file").write_text("x" * 1000)
    (top / "added/one/link").symlink_to("file")
    os.mkfifo(top / "added/one/two/fifo")
    bind(top / "added/one/socket")
    for number in range(300):
        (top / f"added/one/two/{number}").touch()


def replace(path: Path, create: Callable[[Path], object]) -> None:
    path.unlink()
    create(path)


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("others")


def set_metadata(top: Path) -> None:
    for name in ("small", "directory"):
        (top / name).chmod(0o700)
        os.utime(top / name, (1, 1))


CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "nothing": (lambda top: None, 0),
    "byte of a small file": (lambda top: flip(top / "small", 2), 1),
    "last byte of a file that C compares": (lambda top: flip(top / "medium", -1), 1),
    "byte of a large file": (lambda top: flip(top / "large", 700_000), 1),
    "hole": (lambda top: flip(top / "sparse", 100_000), 1),
    "size": (lambda top: os.truncate(top / "small", 3), 1),
    "grown empty file": (lambda top: (top / "empty").write_text("x"), 1),
    "link text": (lambda top: relink(top / "link"), 1),
    "file removed": (lambda top: (top / "small").unlink(), 1),
    "file added": (lambda top: (top / "a new one").write_text("new"), 1),
    "directory removed": (lambda top: shutil.rmtree(top / "directory"), 4),
    "tree added": (add_tree, 306),
    "file became a tree": (lambda top: replace_by_tree(top / "small"), 4),
    "tree became a file": (lambda top: replace_by_file(top / "directory"), 4),
    "link became a file": (lambda top: replace(top / "link", lambda path: path.write_text("small")), 1),
    "FIFO became a file": (lambda top: replace(top / "fifo", Path.touch), 1),
    "socket removed": (lambda top: (top / "socket").unlink(), 0),
    "socket added": (lambda top: bind(top / "another"), 0),
    "file became a socket": (lambda top: replace(top / "small", bind), 1),
    "socket became a file": (lambda top: replace(top / "socket", Path.touch), 1),
    "modes and times": (set_metadata, 0),
    "renamed": (lambda top: (top / "small").rename(top / "zz"), 2),
}
"""Changes in a directory of the second tree, and the number of lines."""


def fill(top: Path) -> None:
    """Add items of all types to a directory."""
    (top / "directory/below").mkdir(parents=True)
    (top / "directory/file").write_text("in the directory")
    (top / "directory/below/file").write_text("deeper")
    for name, size in (("small", 10), ("medium", 300_000), ("large", 1_500_000), ("empty", 0)):
        (top / name).write_bytes(random.Random(name).randbytes(size))
    with open(top / "sparse", "xb") as file:
        file.truncate(200_000)
        file.seek(150_000)
        file.write(b"data")
    os.link(top / "small", top / "hard link")
    (top / "hard link").unlink()
    (top / "link").symlink_to("small")
    os.mkfifo(top / "fifo")
    bind(top / "socket")
    (top / b"\xff\n \\n".decode("utf-8", "surrogateescape")).write_text("odd name")


def tree_with_items(top: Path, depth: int) -> Path:
    """Create a tree whose directory at this depth has items of all types; return that directory."""
    deepest = top.joinpath(*["d"] * depth)
    deepest.mkdir(parents=True)
    fill(deepest)
    (deepest / "more").mkdir()
    fill(deepest / "more")
    return deepest


@pytest.mark.in_turn(30)
@pytest.mark.parametrize("depth", [0, 1, 33, 80])
@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_at_each_depth_is_listed(area: Path, change: str, depth: int) -> None:
    act, number = CHANGES[change]
    for side in "ab":
        deepest = tree_with_items(area / side, depth)
    act(deepest)
    wanted = differences(area / "a", area / "b")
    assert len(wanted) == number
    for ranks in (1, 3):
        run = pverify(area / "a", area / "b", ranks=ranks)
        assert (run.returncode, run.stdout.splitlines()) == (int(bool(wanted)), wanted), show(run)
        (items, size), (others, other_size) = first, second = contents(area / "a"), contents(area / "b")
        shown = f"{items.total():,} items of {text(size)}"
        if first != second:
            shown += f" in A and {others.total():,} items of {text(other_size)} in B"
        assert f"pverify: {shown}" in messages(run), show(run)
    words = {b"extra": b"missing", b"missing": b"extra"}
    back = [b" ".join((words.get(word, word), path)) for word, _, path in (line.partition(b" ") for line in wanted)]
    run = pverify("-q", area / "b", area / "a", ranks=2)
    assert run.stdout.splitlines() == back, show(run)
    if depth == 1:
        check_as_digests(pverify(area / "a", area / "b", ranks=2), area / "a", area / "b", ranks=2)


@pytest.mark.parametrize("change", [name for name in CHANGES if "socket" not in name and "FIFO" not in name])
def test_status_is_that_of_diff(area: Path, change: str) -> None:
    for side in "ab":
        deepest = tree_with_items(area / side, 1)
        for path in (*deepest.rglob("socket"), *deepest.rglob("fifo")):
            path.unlink()
    CHANGES[change][0](deepest)
    diff = subprocess.run(["diff", "-rq", "--no-dereference", area / "a", area / "b"], check=False, capture_output=True)
    run = pverify("-q", area / "a", area / "b", ranks=2)
    assert run.returncode == diff.returncode, (show(run), diff.stdout)


def test_devices_are_compared_by_number(area: Path) -> None:
    require_root("to make devices")
    for side in "ab":
        (area / side / "d/e").mkdir(parents=True)
        for name, kind, minor in (("same", stat.S_IFCHR, 3), ("other", stat.S_IFBLK, 3 if side == "a" else 4)):
            os.mknod(area / side / "d/e" / name, 0o600 | kind, os.makedev(1, minor))
        os.mknod(area / side / "d/e/kind", 0o600 | (stat.S_IFCHR if side == "a" else stat.S_IFBLK), os.makedev(1, 3))
    run = pverify(area / "a", area / "b", ranks=2)
    assert run.stdout.splitlines() == differences(area / "a", area / "b") == [b"changed d/e/kind", b"changed d/e/other"]
    check_as_digests(run, area / "a", area / "b", ranks=2)


# Random pairs of trees


def change_at_random(top: Path, seed: int, changes: int) -> None:
    """Change items of a tree, as programs and people may."""
    chance = random.Random(seed)
    for number in range(changes):
        items = sorted(top.rglob("*"))
        path = chance.choice(items)
        status, name = path.lstat(), f"new-{number}"
        action = chance.randrange(6)
        if action == 0 and stat.S_ISDIR(status.st_mode):
            (path / name / "inner").mkdir(parents=True)
            for each in range(chance.choice((0, 2, 700))):
                (path / name / f"inner/{each}").write_bytes(b"x" * chance.randrange(50))
        elif action == 1:
            shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()
        elif action == 2 and stat.S_ISREG(status.st_mode) and status.st_size:
            flip(path, chance.randrange(status.st_size))
        elif action == 3 and not stat.S_ISDIR(status.st_mode):
            path.unlink()
            chance.choice((os.mkdir, os.mkfifo, bind, Path.touch, lambda new: new.symlink_to("x")))(path)
        elif action == 4 and stat.S_ISDIR(status.st_mode):
            path.rename(path.with_name(name))
        elif action == 5 and stat.S_ISREG(status.st_mode):
            os.truncate(path, chance.randrange(3 * status.st_size + 1))


@pytest.mark.c_backend
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_trees_differ_as_their_digests_do(area: Path, seed: int) -> None:
    random_tree(area / "a", 700 + seed, files=120, directories=30, largest=3 << 20, privileged=is_root())
    subprocess.run(["cp", "-a", area / "a", area / "b"], check=True)
    for side in "ab":
        change_at_random(area / side, 10 * seed + ord(side), 12)
    wanted = differences(area / "a", area / "b")
    assert len(wanted) > 3
    for ranks in (1, 2, 5):
        run = pverify(area / "a", area / "b", ranks=ranks)
        assert run.stdout.splitlines() == wanted, show(run)
    check_as_digests(run, area / "a", area / "b", ranks=2)
    for env in ({"PCOPY_BACKEND": "python"}, {}):
        words = () if env else ("--in-flight", "8")  # neither has calls that compare several directories
        run = pverify(*words, area / "a", area / "b", ranks=2, env=env)
        assert run.stdout.splitlines() == wanted, show(run)


@pytest.mark.parametrize("names", [1100, 3000])
@pytest.mark.parametrize("sorts", [False, True])
def test_large_directories_are_compared(area: Path, names: int, sorts: bool) -> None:
    """Also if the names are so many that they are sorted."""
    for side in "ab":
        (area / side / "d/e").mkdir(parents=True)
        for number in range(names):
            (area / side / f"d/e/{number}").write_text(str(number))
    for number in range(0, names, 7):
        (area / f"a/d/e/{number}").unlink()
        (area / f"b/d/e/{number + 1}").unlink(missing_ok=True)
        (area / f"b/d/e/{number + 2}").write_text("x" * len(str(number + 2)))
    (area / "a/d/e/directory").mkdir()
    (area / "b/d/e/directory").touch()
    program = "import sys\nfrom pcopy.cli.pverify import main\nfrom pcopy.tasks.compare import compare_pairs\n"
    program += f"compare_pairs.MAX_NAMES_IN_SETS = {100 if sorts else 1 << 17}\nsys.exit(main())"
    command = [sys.executable, "-c", program, "-n", "2", str(area / "a"), str(area / "b")]
    run = subprocess.run(command, check=False, capture_output=True, cwd=REPOSITORY)
    wanted = differences(area / "a", area / "b")
    assert run.stdout.splitlines() == wanted and len(wanted) > 3 * (names // 7 - 1), show(run)
    assert f"{contents(area / 'a')[0].total():,} items of" in run.stderr.decode()


# Errors


def hide_file(top: Path) -> None:
    (top / "d/small").chmod(0)


def hide_directory(top: Path) -> None:
    (top / "d/directory").chmod(0)


def hide_names(top: Path) -> None:
    (top / "d/directory").chmod(0o444)


def hide_listing(top: Path) -> None:
    (top / "d/directory").chmod(0o111)


def hide_added(top: Path) -> None:
    (top / "d/added/deep").mkdir(parents=True)
    (top / "d/added/file").write_text("x")
    (top / "d/added/file").chmod(0)
    (top / "d/added/deep").chmod(0)


@pytest.mark.parametrize("sides", ["a", "b", "ab"])
@pytest.mark.parametrize("hide", [hide_file, hide_directory, hide_names, hide_listing, hide_added])
def test_unreadable_item_makes_the_result_unknown(area: Path, hide: Callable[[Path], None], sides: str) -> None:
    """No difference is listed, not even one elsewhere, and each error has its line."""
    require_root("become somebody else")
    for side in "ab":
        tree_with_items(area / side, 1)
    for side in sides:
        hide(area / side)
    (area / "b/d/more/small").unlink()
    for ranks in (1, 3):
        run = pverify(area / "a", area / "b", ranks=ranks, user=NOBODY)
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        failed = (2 if hide in (hide_added, hide_names) else 1) * len(sides)
        assert run.stderr.count(b"Permission denied") == failed, show(run)
        assert f"pverify: {failed} of ".encode() in run.stderr
        check_as_digests(run, area / "a", area / "b", ranks=ranks, user=NOBODY)


@pytest.mark.parametrize(("calls", "name"), [(READS, "d/small"), (READS, "d/large"), (("getdents64",), "d/directory")])
def test_error_of_the_system_makes_the_result_unknown(area: Path, calls: tuple[str, ...], name: str) -> None:
    for side in "ab":
        tree_with_items(area / side, 1)
    (area / "b/d/more/small").unlink()
    fault = Fault(area / "log", calls, area / "b" / name, "EREMOTEIO", when="1+")
    run = pverify(area / "a", area / "b", ranks=1, wrap=fault.wrap())
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert f"{area}/b/{name}: " in run.stderr.decode() and b"Remote I/O error" in run.stderr, show(run)
    fault = Fault(area / "log", calls, area / "b" / name, "EREMOTEIO", when="1+")
    check_as_digests(run, area / "a", area / "b", ranks=1, wrap=fault.wrap())


# Special cases of signatures


def test_file_that_marks_another_one_as_incomplete_is_an_error(area: Path) -> None:
    name = ".pcopy-incomplete-0123456789abcdef"
    for side in "ab":
        (area / side / "d").mkdir(parents=True)
        (area / side / "d" / name).write_text("the same")
    run = pverify(area / "a", area / "b", ranks=2)
    assert run.stderr.count(b"it marks another file in this directory as incomplete") == 2, show(run)
    check_as_digests(run, area / "a", area / "b", ranks=2)


def test_mark_of_an_incomplete_file_is_ignored(area: Path) -> None:
    for side in "ab":
        (area / side / "d").mkdir(parents=True)
        (area / side / "d/file").write_text("the same")
    os.setxattr(area / "b/d/file", "user.pcopy.incomplete", b"{}")
    run = pverify("-q", area / "a", area / "b", ranks=2)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)


def test_names_that_are_listed_twice_are_compared_once(area: Path) -> None:
    for side in "ab":
        tree_with_items(area / side, 1)
    (area / "b/d/more/small").unlink()
    with quirky(area / "b", "twice") as mounted:
        for first, second in ((area / "a", mounted), (mounted, area / "a")):
            run = pverify(first, second, ranks=2)
            word = b"missing" if second is mounted else b"extra"
            assert run.stdout.splitlines() == [word + b" d/more/small"], show(run)
            check_as_digests(run, first, second, ranks=2)


@pytest.mark.c_backend
@pytest.mark.parametrize("ranks", [1, 2])
def test_equal_small_files_are_only_opened(area: Path, ranks: int) -> None:
    """The calls that compare trees open each file once on each side. For a digest it would be examined before. A call
    that takes too long leaves a file, so that the tree is small, and the fastest of five runs counts.
    """
    for side in "ab":
        for number in range(4):
            (area / side / f"{number}/below").mkdir(parents=True)
            (area / side / f"{number}/below/file").write_text("same")
    traced = "trace=openat,openat2,newfstatat,statx"
    wrap = ("strace", "-f", "--seccomp-bpf", "-qq", "-e", traced, "-o", str(area / "trace"))
    opened = list[int]()
    while 2 * 4 not in opened and len(opened) < 5:
        run = pverify("-q", area / "a", area / "b", ranks=ranks, wrap=wrap)
        assert (run.returncode, run.stdout) == (0, b""), show(run)
        opened.append((area / "trace").read_text().count('"file"'))
    assert min(opened) == 2 * 4


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_progress_ends_with_no_directory_left(area: Path, ranks: int, hidden: bool) -> None:
    """Directories that the calls have not entered count as not read yet, until they are read or have failed."""
    require_root("become somebody else")
    for side in "ab":
        deepest = tree_with_items(area / side, 80)
        (deepest / "many").mkdir()
        for number in range(1100):
            (deepest / f"many/{number}").mkdir()
    if hidden:
        (deepest / "directory").chmod(0)
    progress = ("--progress", "json", "--progress-interval", "0.000001")  # each change is shown, also the last one
    run = pverify(*progress, area / "a", area / "b", ranks=ranks, user=NOBODY)
    assert run.returncode == (2 if hidden else 0), show(run)
    lines = [json.loads(line) for line in run.stderr.splitlines() if line.startswith(b"{")]
    assert min(line["unscanned"] for line in lines) == lines[-1]["unscanned"] == 0, show(run)
    found = 2 * (contents(area / "a")[0].total() + len([*(area / "a").rglob("socket")]))
    assert lines[-1]["found"] == found - (1 + 2 if hidden else 0), show(run)
    assert lines[-1]["copied"] + lines[-1]["skipped"] + lines[-1]["failed"] == lines[-1]["found"]


@pytest.mark.parametrize(
    ("options", "output"), [((), b"changed d/23\n"), (("--compare", "content"), b"differ in content: d/23\n")]
)
def test_many_files_of_a_directory_are_opened_once(
    tmp_path: Path, options: tuple[Argument, ...], output: bytes
) -> None:
    """On each side, although one row reads only 8 MiB of a directory."""
    contents = os.urandom(512 << 10)
    for side in "ab":
        (tmp_path / side / "d").mkdir(parents=True)
        for number in range(24):
            (tmp_path / side / f"d/{number:02}").write_bytes(contents)
    subprocess.run(["touch", "-d", "2001-01-01", *tmp_path.glob("[ab]/d/*")], check=True)
    with (tmp_path / "b/d/23").open("r+b") as file:
        file.seek(1000)
        file.write(b"another")
    os.utime(tmp_path / "b/d/23", (978303600, 978303600))
    trace = Trace(tmp_path / "trace", "openat", "openat2")
    run = pverify("-q", *options, tmp_path / "a", tmp_path / "b", ranks=2, wrap=trace.wrap())
    assert (run.returncode, run.stdout) == (1, output), show(run)
    for path in [*tmp_path.glob("a/d/*"), *tmp_path.glob("b/d/*")]:
        assert [call.split("(")[0] for calls in trace.on(path) for call in calls] == ["openat"], path
