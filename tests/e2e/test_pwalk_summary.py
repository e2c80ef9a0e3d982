"""``pwalk --summary`` compared with find; ``--from`` reads lists that ``--output`` has written."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.users import require_root


def pwalk(*arguments: Argument, **options: Any) -> Completed:
    return pcopy(*arguments, **options, program="pwalk")


def printed(form: str, *words: str, cwd: Path) -> list[list[str]]:
    """Return the output of ``find tree words -printf form`` as columns."""
    reported = subprocess.run(
        ["find", "tree", *words, "-printf", form + "\\0"], check=True, capture_output=True, cwd=cwd
    )
    return [os.fsdecode(line).split(" ", form.count("%") - 1) for line in reported.stdout.split(b"\0")[:-1]]


@pytest.fixture
def tree(area: Path) -> Path:
    require_root("give files to others")
    top = area / "tree"
    for number in range(30):
        (top / f"{number % 4}/{number % 3}").mkdir(parents=True, exist_ok=True)
        file = top / f"{number % 4}/{number % 3}/file{number}"
        file.write_bytes(b"x" * (number**4))
        os.chown(file, number % 3 * 1000, number % 2 * 1000)
        os.utime(file, (time.time(), time.time() - number * 30 * 86400 - 3600))
    os.truncate(top / "0/0/file0", 1 << 20)
    (top / "1/1/file1").chmod(0o4755)
    (top / "2/2/file2").chmod(0o666)
    os.utime(top / "2/2/file2", (time.time(), time.time() + 10**6))
    os.link(top / "3/0/file3", top / "further")
    (top / "link").symlink_to("nowhere")
    os.mkfifo(top / "fifo")
    (top / os.fsdecode(b"\xff")).touch()
    (top / "new\nline").mkdir()
    (top / "0/1/2/3").mkdir(parents=True)
    (top / "0/1/2/3/deep").write_bytes(b"x" * 50_000)
    return top


def test_bytes_are_reported_only_if_sizes_were_read(tree: Path) -> None:
    size = sum(int(row[1]) for row in printed("%y %s", "-type", "f", cwd=tree.parent))
    for words, known in ((("--print0",), None), (("--sort=size", "--print0"), size)):
        list_ = ("--output", "paths.lst", "--force", "--json", "tree", "-type", "f")
        run = pwalk(*words, *list_, cwd=tree.parent, ranks=1)
        assert json.loads(run.stdout)["bytes"] == known, show(run)


def check_sums(reported: dict[str, Any], rows: list[list[str]]) -> None:
    """Compare a summary with ``rows`` from find: type, bytes, blocks, depth, user, group, time, path."""
    sums = reported["summary"]
    assert reported["found"] == len(rows)
    letters = {"f": "file", "d": "directory", "l": "symlink", "p": "fifo"}
    assert sums["types"] == Counter(letters[row[0]] for row in rows)
    files = [row for row in rows if row[0] == "f"]
    assert sums["bytes"] == reported["bytes"] == sum(int(row[1]) for row in files)
    assert sums["allocated"] == 512 * sum(int(row[2]) for row in rows)
    assert {row["depth"]: row["items"] for row in sums["depths"]} == Counter(int(row[3]) for row in rows)
    sizes = Counter(1 << int(row[1]).bit_length() for row in files)
    assert {row["below"]: row["files"] for row in sums["sizes"]} == sizes
    assert sum(row["bytes"] for row in sums["sizes"]) == sums["bytes"]
    for column, what in ((4, "users"), (5, "groups")):
        items, size, allocated = Counter[int](), Counter[int](), Counter[int]()
        for row in rows:
            items[int(row[column])] += 1
            size[int(row[column])] += int(row[1]) if row[0] == "f" else 0
            allocated[int(row[column])] += 512 * int(row[2])
        assert {row["id"]: row["items"] for row in sums[what]} == items
        assert {row["id"]: row["bytes"] for row in sums[what]} == size
        assert {row["id"]: row["allocated"] for row in sums[what]} == allocated
    largest = sorted(((int(row[1]), row[7]) for row in files), key=lambda each: (-each[0], each[1]))
    assert [(row["bytes"], row["path"]) for row in sums["largest_files"]] == [
        (size, path.replace("\udcff", "\\xff")) for size, path in largest[:20]
    ]


def test_summary_equals_the_sums_of_find(tree: Path) -> None:
    around = tree.parent
    run = pwalk("--summary", "--json", "tree", cwd=around, ranks=3)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    reported = json.loads(run.stdout)
    sums = reported["summary"]
    rows = printed("%y %s %b %d %U %G %T@ %p", cwd=around)
    check_sums(reported, rows)
    files = [row for row in rows if row[0] == "f"]
    entries = Counter(os.path.dirname(row[7]) for row in rows if row[7] != "tree")
    assert {row["path"].replace("\\n", "\n"): row["entries"] for row in sums["largest_directories"]} == {
        row[7]: entries[row[7]] for row in rows if row[0] == "d"
    }
    below = {
        row[7]: [each for each in rows if each[7].startswith(f"{row[7]}/")]
        for row in rows if row[0] == "d" and int(row[3]) <= 3
    }  # fmt: skip
    assert {row["path"]: (row["items"], row["bytes"], row["allocated"]) for row in sums["largest_trees"]} == {
        path: (len(found), sum(int(row[1]) for row in found if row[0] == "f"), sum(512 * int(row[2]) for row in found))
        for path, found in below.items() if found
    }  # fmt: skip
    assert [row["bytes"] for row in sums["largest_trees"]] == sorted(
        (row["bytes"] for row in sums["largest_trees"]), reverse=True
    )
    assert not sums["trees_folded"]
    young = len(printed("%p", "-type", "f", "-mtime", "0", "!", "-newermt", "now", cwd=around))
    ages = {(row["from_days"], row["to_days"]): row["files"] for row in sums["modified"]}
    assert (ages[0, 1], ages[None, 0], sum(ages.values())) == (young, 1, len(files))
    assert sums["unusual"] == {
        "set_id": len(printed("%p", "-type", "f", "-perm", "/6000", cwd=around)),
        "world_writable": len(printed("%p", "-perm", "-002", "!", "-type", "l", cwd=around)),
        "future": 1,
        "control_characters": 1,
        "not_utf8": 1,
        "sparse": 1,
        "hard_linked": len(printed("%p", "-type", "f", "-links", "+1", cwd=around)),
    }
    assert sums["hole_bytes"] == 1 << 20


@pytest.mark.parametrize("ranks", [1, 3])
def test_summary_of_uniform_and_mixed_directories_equals_find(area: Path, ranks: int) -> None:
    """Uniform directories are summed as a whole; others have one of the largest files or two owners."""
    require_root("give files to others")
    for number in range(600):
        file = area / f"tree/{number // 200}/{number // 10}/{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (number * 7919 % 20011))
        if number % 97 == 0:
            os.chown(file, 1000, 1000)
    for number in range(40):
        (area / f"tree/{number % 3}/{number}/directory").mkdir(parents=True)
        (area / f"tree/{number % 3}/{number}/directory/link").symlink_to("nowhere")
    run = pwalk("--summary", "--json", "tree", cwd=area, ranks=ranks)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    check_sums(json.loads(run.stdout), printed("%y %s %b %d %U %G %T@ %p", cwd=area))


def test_items_of_equal_size_are_ordered_by_path(area: Path) -> None:
    """The order does not depend on the ranks. There are more items of each kind than the summary names."""
    require_root("give files to others")
    for number in range(300):
        file = area / f"tree/{number * 37 % 60}/{number * 7919 % 300}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (5 if number % 100 else 6 + number))
        os.chown(file, number % 30, number % 15)
    around = {"cwd": area, "ranks": 1}
    reported = {}
    for words in (("tree",), ("tree", "-size", "-99"), ("tree", "--json")):
        runs = [pwalk("--summary", *words, **{**around, "ranks": ranks}) for ranks in (1, 3, 3, 2)]
        assert all((run.returncode, run.stderr) == (0, b"") for run in runs), show(runs[0])
        texts = [run.stdout for run in runs]
        if "--json" in words:
            sums = [json.loads(text)["summary"] for text in texts]
            reported = sums[0]
            texts = [json.dumps(each).encode() for each in sums]
        else:  # the last line has the duration
            texts = [text.rsplit(b"\n", 2)[0] for text in texts]
        assert texts == texts[:1] * len(texts)
    files = printed("%s %p", "-type", "f", cwd=area)
    largest = sorted(((int(size), path) for size, path in files), key=lambda each: (-each[0], each[1]))[:20]
    assert [(row["bytes"], row["path"]) for row in reported["largest_files"]] == largest
    entries = Counter(os.path.dirname(path) for _, path in printed("%d %p", "-mindepth", "1", cwd=area))
    most = sorted(entries.items(), key=lambda each: (-each[1], each[0]))[:20]
    assert [(row["path"], row["entries"]) for row in reported["largest_directories"]] == most


def test_summary_of_a_selection_is_printed_as_text(tree: Path) -> None:
    run = pwalk("--summary", "tree", "-name", "file*", cwd=tree.parent, ranks=2)
    assert run.returncode == 0, show(run)
    text = run.stdout.decode()
    for line in (
        "30  file",
        "files by size:",
        "files by age (modified):",
        "largest files:",
        "largest trees:",
        "users:",
        "files with holes",
    ):
        assert line in text
    assert "tree/0/0/file0" in text


def test_saved_listing_is_read_without_the_tree(tree: Path, area: Path) -> None:
    """The tree has been moved: the status of items comes from the listing."""
    (area / "elsewhere").mkdir()
    run = pwalk("--output", "list.jsonl", "--output", "list.lst", "--print0", "tree", cwd=area, ranks=1)
    assert run.returncode == 0, show(run)
    wanted = pwalk("--print0", area / "tree", "-size", "+100k", "-mtime", "+100", "-user", "1000", ranks=1).stdout
    tree.rename(area / "moved")
    words = ("-size", "+100k", "-mtime", "+100", "-user", "1000", "-print0")
    run = pwalk("--from", "../list.jsonl", *words, cwd=area / "elsewhere", ranks=2)
    assert (run.returncode, run.stderr) == (0, b""), show(run)
    assert sorted(run.stdout.split(b"\0")) == sorted(wanted.split(b"\0"))
    again = pwalk("--from", "list.jsonl", "--output", "again.jsonl", "--force", cwd=area, ranks=1)
    assert again.returncode == 0, show(again)
    lines = [(area / name).read_text().splitlines() for name in ("list.jsonl", "again.jsonl")]
    assert sorted(lines[0]) == sorted(lines[1])
    gone = pwalk("--from", "list.lst", "-0", "-size", "+100k", cwd=area, ranks=2)
    assert (gone.returncode, gone.stdout) == (1, b"")
    (area / "moved").rename(tree)
    run = pwalk("--from", "list.lst", "-0", *words, cwd=area, ranks=2)
    found = pwalk("tree", *words, cwd=area, ranks=1)
    assert (run.returncode, sorted(run.stdout.split(b"\0"))) == (0, sorted(found.stdout.split(b"\0")))


def test_page_is_valid_html_and_escapes_names(tree: Path, area: Path) -> None:
    """It contains no script from file names, and replaces an older page."""
    (tree / "<script>alert(1)<").write_bytes(b"x" * 10**7)
    for _ in range(2):
        run = pwalk("--page", "page.html", "-q", "tree", cwd=area, ranks=2)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)
    text = (area / "page.html").read_text(encoding="utf-8")
    files = len(printed("%p", "-type", "f", cwd=area))
    assert f"<dt>Files</dt><dd>{files:,}" in text
    assert "tree/&lt;script&gt;alert(1)&lt;" in text
    assert "<script" not in text
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.seen["svg"] >= 7
    (area / "mine.html").write_text("mine")
    run = pwalk("--page", "mine.html", "tree", cwd=area, ranks=1)
    assert (run.returncode, (area / "mine.html").read_text()) == (2, "mine")


class Balanced(HTMLParser):
    """Parser that counts elements and keeps a stack of open ones."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


REFUSED = {
    ("--page", "x.txt"): "the name must end in .html",
    ("--from", "nowhere"): "--from nowhere: does not exist",
    ("--from", "list", ".", "list"): "name at most one directory",
    ("--from", "list", "list"): "list: is not a directory",
    ("--from", "list", "-maxdepth", "1"): "-maxdepth: no effect with --from, which enters no directory",
    ("--from", "list", "--exclude", "x"): "use a test such as -path instead",
    ("--summary", "--json-lines"): "--summary and --json-lines: both would be printed",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_invalid_requests_are_refused(area: Path, words: tuple[str, ...]) -> None:
    (area / "list").touch()
    run = pwalk(*words, cwd=area)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert REFUSED[words].encode() in run.stderr


def test_damaged_listing_stops_the_walk(area: Path) -> None:
    (area / "list.jsonl").write_text('{"format": "pcopy listing", "version": 1, "directory_b64": "Lw=="}\nnonsense\n')
    run = pwalk("--from", "list.jsonl", cwd=area, ranks=1)
    assert (run.returncode, run.stdout) == (2, b"")
    assert b"list.jsonl: line 2: is not a JSON object" in run.stderr
