"""What ``pwalk`` does with its outputs, and with lists that are broken."""

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

from pcopy.tasks.base.job import Sink
from pcopy.tools.walk_outputs import ListsSink, ListTarget
from pcopy.walk.matching import Items
from pcopy.walk.sorting import SortedItems
from tests.e2e.test_pwalk import found, listed, pwalk
from tests.faults.test_real import bindfs
from tests.support.command import show, start
from tests.support.faults import Fault
from tests.support.filesystems import mounted
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root


def test_files_that_are_there(area: Path) -> None:
    """A list is replaced, anything else is not."""
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


def test_a_reader_that_goes_ends_it(many: Path) -> None:
    with start("-n", "2", many, program="pwalk") as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline().startswith(os.fsencode(many))
        run.stdout.close()
        assert run.wait(60) == 75
        assert run.stderr.read() == b""


def test_a_full_disk(many: Path) -> None:
    with open("/dev/full", "wb") as full, start("-n", "2", many, program="pwalk", stdout=full) as run:
        assert run.stderr is not None
        assert run.wait(60) == 75
        assert run.stderr.read() == b"pwalk: standard output cannot be written: No space left on device\n"


FORMS = ((), ("--json-lines",), ("--sort", "size"), ("--sort=-mtime", "--json-lines"))
SUMMARIES = (("--summary",), ("--summary", "--json"), ("--output", "list.csv", "--sort", "name"))


@pytest.mark.parametrize("words", FORMS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reader_that_wants_the_first_line(many: Path, area: Path, words: tuple[str, ...], ranks: int) -> None:
    """More than a pipe holds; what was sorted leaves no temporary file."""
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
def test_standard_output_that_is_full_or_closed(area: Path, words: tuple[str, ...], ranks: int) -> None:
    """A line says so, as find does, whose status is 1 then; a list has no end, a summary is lost when all is done."""
    (area / "tree").mkdir()
    oracle = subprocess.run(["sh", "-c", "find tree >&-"], check=False, cwd=area, capture_output=True)
    assert oracle.returncode == 1 and oracle.stderr.count(b"Bad file descriptor")
    for where, error in (("> /dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")):
        run = pwalk(*words, "tree", cwd=area, ranks=ranks, wrap=("sh", "-c", f'exec "$@" {where}', "sh"))
        assert run.returncode == (75 if words in FORMS else 1), show(run)
        assert run.stderr == b"pwalk: standard output cannot be written: %s\n" % error, show(run)


@pytest.mark.parametrize("words", [("--output", "list.txt"), ("--output", "list.csv", "--sort", "size"), ()])
def test_a_file_system_that_is_full(many: Path, area: Path, words: tuple[str, ...]) -> None:
    """For a list, for the page, and for what is sorted."""
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
def test_error_of_short_list_names_its_file(area: Path, more: tuple[str, ...]) -> None:
    """A list that is written when it is closed, since it is short."""
    (area / "tree").mkdir()
    with mounted("tmpfs", area, size=4096) as place:
        (place / "taken").write_bytes(bytes(4096))
        run = pwalk(*more, "--output", "list.txt", "-q", area / "tree", cwd=place, ranks=1)
        assert run.returncode == 75, show(run)
        assert run.stderr == b"pwalk: list.txt: cannot be written: No space left on device\n", show(run)
        assert os.listdir(place) == ["taken"] and sorted(os.listdir(area)) == [place.name, "tree"]


def test_what_is_sorted_is_not_read_on_when_nobody_reads_it(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def in_order(self: SortedItems) -> Iterator[Items]:
        for number in range(10):
            asked.append(number)
            yield Items(-1, b"", [b"name"], b"f")

    def write(descriptor: int, part: bytes) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(SortedItems, "sorted_batches", in_order)
    outputs = ListsSink(cast(Sink, None), [ListTarget("lines")], (), "name", None, "pwalk-test")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        outputs.finish()
    assert (asked, outputs.is_output_closed, outputs.status) == ([0], True, 75)


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


@pytest.mark.parametrize("error", ["EIO", "ENOENT"])
def test_what_cannot_be_looked_at_counts_once(area: Path, error: str) -> None:
    """And what has gone meanwhile never was there."""
    for name in ("kept", "lost", "inner/kept"):
        (area / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (area / "tree" / name).touch()
    fault = Fault(area / "log", ["statx", "newfstatat"], area / "tree/lost", error)
    wrap = fault.wrap()
    wrap[1:1] = ["-P", "lost"]  # as it is named below its directory
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
    """Each item counts once: those of ``everything`` that find names, those that it has ``told`` without an error."""
    assert numbers["found"] == len(everything)
    assert numbers["failed"] == len(unlisted)
    kinds = ("files", "directories", "symlinks", "special")
    assert sum(numbers[kind] for kind in kinds) == len(reported - unlisted)
    assert numbers["skipped"] == len(everything - reported - unlisted)
    assert numbers["exit_status"] == 1


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_directory_that_may_not_be_read_is_told_and_has_failed_once(area: Path, expression: str, ranks: int) -> None:
    """As find tells it, and of it."""
    require_root("become another user")
    tree = area / "tree"
    for number in range(20):  # several beside each other, which the kernel gets together
        (tree / f"open{number}/below").mkdir(parents=True)
        (tree / f"shut{number}/below").mkdir(parents=True)
        (tree / f"open{number}/file").touch()
    for shut in ("shut3", "shut7", "open5/below"):
        (tree / shut).chmod(0)
    area.chmod(0o777)
    line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "find", "tree"]
    every = subprocess.run(line, check=False, capture_output=True, text=True, cwd=area)
    once = expression.removesuffix(" -print").split()  # of a doubled -print each item counts once, too
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
def test_a_directory_that_the_disk_cannot_list(area: Path, expression: str, where: str) -> None:
    for name in ("tree/file", "tree/inner/file", "tree/other/file"):
        (area / name).parent.mkdir(parents=True, exist_ok=True)
        (area / name).touch()
    everything = set(subprocess.check_output(["find", "tree"], cwd=area, text=True).splitlines())
    reported = set(subprocess.check_output(["find", "tree", *expression.split()], cwd=area, text=True).splitlines())
    for known in (everything, reported):  # what is in it is not found
        known -= {each for each in known if each.startswith(f"{where}/")}
    fault = Fault(area / "log", ["getdents64"], area / where, "EIO")
    words = ("--json", "--output", "list.lst", "tree", *expression.split())
    run = pwalk(*words, cwd=area, ranks=1, wrap=fault.wrap())
    fault.check()
    assert run.stderr.decode() == f"pwalk: {where}: readdir: Input/output error (EIO)\n", show(run)
    assert set((area / "list.lst").read_text().splitlines()) == reported
    check_numbers(json.loads(run.stdout), reported, {where}, everything)


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
    assert run.stderr == f"pwalk: {area}/link.lst: is a symbolic link; name the file itself\n".encode()


def test_a_listing_that_was_cut_off(area: Path) -> None:
    whole = pwalk("--json-lines", area, ranks=1).stdout
    (area / "cut.jsonl").write_bytes(whole[:-1])
    run = pwalk("--from", area / "cut.jsonl", "--output", area / "new.lst", ranks=2)
    assert run.returncode == 2 and b": line 2: has no end: the listing was cut off" in run.stderr, show(run)
    assert os.listdir(area) == ["cut.jsonl"]


def test_a_list_that_breaks_late(area: Path) -> None:
    """What was printed is not whole, and that is said; one that was cut off is refused before."""
    whole = pwalk("--json-lines", area, ranks=1).stdout
    head, line = whole.splitlines(keepends=True)[:2]
    (area / "broken.jsonl").write_bytes(head + line * 30000 + b"nonsense\n")
    run = pwalk("--from", area / "broken.jsonl", ranks=2)
    assert run.returncode == 2 and b": line 30002: is not a JSON object" in run.stderr, show(run)
    assert run.stdout and run.stderr.endswith(b"; the list on standard output is incomplete\n")
    (area / "cut.jsonl").write_bytes(head + line * 30000 + line[:-1])
    run = pwalk("--from", area / "cut.jsonl", ranks=2)
    assert (run.returncode, run.stdout) == (2, b"") and b": line 30002: has no end" in run.stderr, show(run)


def test_times_that_64_bits_do_not_hold(area: Path) -> None:
    """Tests compare with them, and lists give them exactly, also when they are read again."""
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
