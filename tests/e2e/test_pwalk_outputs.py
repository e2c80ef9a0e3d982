"""Output files and standard output of ``pwalk``, and damaged listings."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from pcopy.tasks.base.job import ProgressSink
from pcopy.tools.walk_outputs import ItemListsSink, OutputListTarget
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.sorting import ItemSorter
from tests.e2e.test_pwalk import found, listed, pwalk
from tests.faults.test_real import bindfs
from tests.support.command import show, start
from tests.support.faults import Fault
from tests.support.filesystems import mounted
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root


def test_only_an_older_list_is_replaced_without_force(area: Path) -> None:
    """Other existing files are kept."""
    (area / "thesis.txt").write_text("mine")
    run = pwalk("--output", "thesis.txt", ".", cwd=area)
    assert run.returncode == 2
    assert b"is not recognised as an older file of this kind; name another file, or use --force" in run.stderr
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


def test_closed_pipe_ends_the_walk(many: Path) -> None:
    with start("-n", "2", many, program="pwalk") as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline().startswith(os.fsencode(many))
        run.stdout.close()
        assert run.wait(60) == 75
        assert run.stderr.read() == b""


def test_full_disk_is_reported(many: Path) -> None:
    with open("/dev/full", "wb") as full, start("-n", "2", many, program="pwalk", stdout=full) as run:
        assert run.stderr is not None
        assert run.wait(60) == 75
        assert run.stderr.read() == b"pwalk: standard output cannot be written: No space left on device\n"


FORMS = ((), ("--json-lines",), ("--sort", "size"), ("--sort=-mtime", "--json-lines"))
SUMMARIES = (("--summary",), ("--summary", "--json"), ("--output", "list.csv", "--sort", "name"))


@pytest.mark.parametrize("words", FORMS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_reader_may_close_the_pipe_after_the_first_line(
    many: Path, area: Path, words: tuple[str, ...], ranks: int
) -> None:
    """The output exceeds a pipe buffer. Sorting leaves no temporary file."""
    (area / "temporary").mkdir()
    with start(
        "-n", str(ranks), *words, many, program="pwalk", cwd=area, env={"TMPDIR": str(area / "temporary")}
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(60) == 75
        assert run.stderr.read() == b""
    assert sorted(os.listdir(area)) == ["many", "temporary"] and os.listdir(area / "temporary") == []


@pytest.mark.parametrize("words", [*FORMS, *SUMMARIES])
@pytest.mark.parametrize("ranks", [1, 2])
def test_full_or_closed_standard_output_is_an_error(area: Path, words: tuple[str, ...], ranks: int) -> None:
    """The status is 75 for an incomplete list and 1 for a lost summary. find reports the error as well."""
    (area / "tree").mkdir()
    oracle = subprocess.run(["sh", "-c", "find tree >&-"], check=False, cwd=area, capture_output=True)
    assert oracle.returncode == 1 and oracle.stderr.count(b"Bad file descriptor")
    for where, error in (("> /dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")):
        run = pwalk(*words, "tree", cwd=area, ranks=ranks, wrap=("sh", "-c", f'exec "$@" {where}', "sh"))
        assert run.returncode == (75 if words in FORMS else 1), show(run)
        assert run.stderr == b"pwalk: standard output cannot be written: %s\n" % error, show(run)


@pytest.mark.parametrize("words", [("--output", "list.txt"), ("--output", "list.csv", "--sort", "size"), ()])
def test_full_file_system_of_an_output_is_an_error(many: Path, area: Path, words: tuple[str, ...]) -> None:
    """The output is a list, a sorted list or a page."""
    with mounted("tmpfs", area, size=64 << 10) as place:
        page = () if words else ("--page", "page.html")
        if page:
            (place / "taken").write_bytes(bytes((64 << 10) - 4096))
        run = pwalk(*words, *page, "-q", many, cwd=place, ranks=2)
        assert run.returncode == (75 if words else 1), show(run)
        reported = rb"pwalk: \S*(list.txt|list.csv|page.html): cannot be written: No space left on device\n"
        assert re.fullmatch(reported, run.stderr), show(run)
        assert not page or run.stdout.endswith(b"\nincomplete: the page was not written (status 1)\n"), show(run)
        assert os.listdir(place) == (["taken"] if page else [])


@pytest.mark.parametrize("more", [(), ("--output", "../other.txt")], ids=["one list", "two lists"])
def test_error_about_a_short_list_names_its_file(area: Path, more: tuple[str, ...]) -> None:
    """A short list is written only when it is closed."""
    (area / "tree").mkdir()
    with mounted("tmpfs", area, size=4096) as place:
        (place / "taken").write_bytes(bytes(4096))
        run = pwalk(*more, "--output", "list.txt", "-q", area / "tree", cwd=place, ranks=1)
        assert run.returncode == 75, show(run)
        assert run.stderr == b"pwalk: list.txt: cannot be written: No space left on device\n", show(run)
        assert os.listdir(place) == ["taken"] and sorted(os.listdir(area)) == [place.name, "tree"]


def test_sorted_items_are_not_read_after_the_pipe_closed(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def in_order(self: ItemSorter) -> Iterator[DirectoryItems]:
        for number in range(10):
            asked.append(number)
            yield DirectoryItems(-1, b"", [b"name"], b"f")

    def write(descriptor: int, part: bytes) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(ItemSorter, "sorted_batches", in_order)
    outputs = ItemListsSink(cast(ProgressSink, None), [OutputListTarget("lines")], (), "name", None, "pwalk-test")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        outputs.complete_lists()
    assert (asked, outputs.is_output_closed, outputs.status) == ([0], True, 75)


def writes_below(directory: Path, process: int) -> bool:
    """Return True if the process has an open file below the directory, named or unnamed."""
    links = []
    with suppress(OSError):
        for each in os.scandir(f"/proc/{process}/fd"):
            with suppress(OSError):
                links.append(os.readlink(each.path))
    return any(link.startswith(f"{directory}/") for link in links)


@pytest.mark.parametrize(
    ("number", "rank", "status"), [(signal.SIGINT, 0, 75), (signal.SIGKILL, 1, 70), (signal.SIGKILL, 0, 137)]
)
def test_stopped_walk_leaves_no_list(many: Path, area: Path, number: signal.Signals, rank: int, status: int) -> None:
    """The run ends by a signal or by the death of a rank."""
    (area / "out").mkdir()
    words = ("--oplimit", "100", "--output", area / "out/list.jsonl", many)
    with background(*words, program="pwalk", ranks=2) as run:
        assert wait_until(lambda: len(run.processes()) > 1 and writes_below(area / "out", run.process.pid))
        os.kill(run.ranks()[0] if rank else run.process.pid, number)
        assert run.end(30) == status
    assert os.listdir(area / "out") == []


@pytest.mark.parametrize("error", ["EIO", "ENOENT"])
def test_item_without_a_status_counts_once_and_a_vanished_one_never(area: Path, error: str) -> None:
    for name in ("kept", "lost", "inner/kept"):
        (area / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (area / "tree" / name).touch()
    fault = Fault(area / "log", ["statx", "newfstatat"], area / "tree/lost", error)
    wrap = fault.wrap()
    wrap[1:1] = ["-P", "lost"]  # the name relative to its directory
    run = pwalk("--json", "--output", "list.txt", "tree", "-size", "-9", cwd=area, ranks=1, wrap=wrap)
    fault.check()
    failed = int(error == "EIO")
    numbers = json.loads(run.stdout)
    assert run.returncode == failed, show(run)
    counted = [numbers[key] for key in ("found", "files", "directories", "skipped", "failed")]
    assert counted == [4 + failed, 2, 2, 0, failed]
    assert sorted((area / "list.txt").read_text().split()) == ["tree", "tree/inner", "tree/inner/kept", "tree/kept"]


EXPRESSIONS = ("", "-type f", "-type d", "-size -9", "-mindepth 2", "-name s*", "-name o*", "! -empty", "-print -print")


def check_numbers(numbers: dict[str, int], reported: set[str], unlisted: set[str], everything: set[str]) -> None:
    """Check that each item counts once: as listed (``reported``), failed (``unlisted``) or skipped."""
    assert numbers["found"] == len(everything)
    assert numbers["failed"] == len(unlisted)
    kinds = ("files", "directories", "symlinks", "special")
    assert sum(numbers[kind] for kind in kinds) == len(reported - unlisted)
    assert numbers["skipped"] == len(everything - reported - unlisted)
    assert numbers["exit_status"] == 1


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_directory_without_read_permission_fails_once(area: Path, expression: str, ranks: int) -> None:
    """As with find, the directory itself is listed."""
    require_root("become another user")
    tree = area / "tree"
    for number in range(20):  # the C backend reads several neighbouring directories in one call
        (tree / f"open{number}/below").mkdir(parents=True)
        (tree / f"shut{number}/below").mkdir(parents=True)
        (tree / f"open{number}/file").touch()
    for shut in ("shut3", "shut7", "open5/below"):
        (tree / shut).chmod(0)
    area.chmod(0o777)
    line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "find", "tree"]
    every = subprocess.run(line, check=False, capture_output=True, text=True, cwd=area)
    once = expression.removesuffix(" -print").split()  # with two -print each item counts once
    oracle = subprocess.run([*line, *once], check=False, capture_output=True, text=True, cwd=area)
    unlisted = {f"tree/{shut}" for shut in ("shut3", "shut7", "open5/below")}
    assert every.returncode == oracle.returncode == 1
    assert every.stderr.count(": Permission denied") == len(unlisted)
    words = ("--json", "--output", "list.lst", "tree", *expression.split())
    run = pwalk(*words, cwd=area, ranks=ranks, user=NOBODY)
    assert run.returncode == 1 and run.stderr.count(b"\n") == 3, show(run)
    listed = (area / "list.lst").read_text().splitlines()
    reported = set(oracle.stdout.splitlines())
    assert set(listed) == reported and len(listed) == len(reported) * (2 if "-print" in expression else 1)
    check_numbers(json.loads(run.stdout), reported, unlisted, set(every.stdout.splitlines()))


@pytest.mark.parametrize("expression", ["", "-type f", "-size -9"])
@pytest.mark.parametrize("where", ["tree", "tree/inner"])
def test_directory_with_a_read_error_fails_once(area: Path, expression: str, where: str) -> None:
    for name in ("tree/file", "tree/inner/file", "tree/other/file"):
        (area / name).parent.mkdir(parents=True, exist_ok=True)
        (area / name).touch()
    everything = set(subprocess.check_output(["find", "tree"], cwd=area, text=True).splitlines())
    reported = set(subprocess.check_output(["find", "tree", *expression.split()], cwd=area, text=True).splitlines())
    for names in (everything, reported):  # its contents are not found
        names -= {each for each in names if each.startswith(f"{where}/")}
    fault = Fault(area / "log", ["getdents64"], area / where, "EIO")
    words = ("--json", "--output", "list.lst", "tree", *expression.split())
    run = pwalk(*words, cwd=area, ranks=1, wrap=fault.wrap())
    fault.check()
    assert run.stderr.decode() == f"pwalk: {where}: readdir: Input/output error (EIO)\n", show(run)
    assert set((area / "list.lst").read_text().splitlines()) == reported
    check_numbers(json.loads(run.stdout), reported, {where}, everything)


def test_list_is_removed_where_temporary_files_need_a_name(area: Path) -> None:
    """If a rank is lost, rank 0 removes the list."""
    with bindfs(area) as (_, out):
        words = ("--oplimit", "1", "--output", out / "list.lst", "/usr/share")
        with background(*words, program="pwalk", ranks=2) as run:
            assert wait_until(lambda: len(run.processes()) > 1 and len(os.listdir(out)) == 1)
            os.kill(run.ranks()[-1], signal.SIGKILL)
            assert run.end(30) == 70
        assert os.listdir(out) == []


def test_symlink_as_output_is_refused(area: Path) -> None:
    (area / "link.lst").symlink_to("target.lst")
    run = pwalk("--force", "--output", area / "link.lst", area, ranks=1)
    assert (run.returncode, run.stdout) == (2, b"")
    assert run.stderr == f"pwalk: {area}/link.lst: is a symbolic link; name the file itself\n".encode()


def test_truncated_listing_is_refused(area: Path) -> None:
    whole = pwalk("--json-lines", area, ranks=1).stdout
    (area / "cut.jsonl").write_bytes(whole[:-1])
    run = pwalk("--from", area / "cut.jsonl", "--output", area / "new.lst", ranks=2)
    assert run.returncode == 2 and b": line 2: has no end: the listing was cut off" in run.stderr, show(run)
    assert os.listdir(area) == ["cut.jsonl"]


def test_error_late_in_a_listing_marks_the_output_as_incomplete(area: Path) -> None:
    """A truncated listing is refused before anything is printed."""
    whole = pwalk("--json-lines", area, ranks=1).stdout
    head, line = whole.splitlines(keepends=True)[:2]
    (area / "broken.jsonl").write_bytes(head + line * 30000 + b"nonsense\n")
    run = pwalk("--from", area / "broken.jsonl", ranks=2)
    assert run.returncode == 2 and b": line 30002: is not a JSON object" in run.stderr, show(run)
    assert run.stdout and run.stderr.endswith(b"; the list on standard output is incomplete\n")
    (area / "cut.jsonl").write_bytes(head + line * 30000 + line[:-1])
    run = pwalk("--from", area / "cut.jsonl", ranks=2)
    assert (run.returncode, run.stdout) == (2, b"") and b": line 30002: has no end" in run.stderr, show(run)


def test_times_beyond_64_bits_are_exact(area: Path) -> None:
    """Times are exact in tests, in lists and when a list is read again."""
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
        reported = {item["path"]: item for item in map(json.loads, text.splitlines()[1:])}
        assert {name: item["mtime_ns"] for name, item in reported.items()} == {
            name: seconds * 10**9 for name, seconds in moments.items()
        }
        assert all(item["size"] == 0 for item in reported.values())
    with (area / "list.csv").open() as file:
        assert {row["path"]: row["mtime_ns"] for row in csv.DictReader(file)} == {
            name: f"{seconds}000000000" for name, seconds in moments.items()
        }
    other = pwalk("--from", "list.jsonl", "-newermt", "2280-01-01", cwd=area, ranks=1)
    assert (other.returncode, other.stdout) == (0, b"late\n"), show(other)
