"""Too little free space or too few inodes are detected before anything is copied."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pcopy.tasks.base.item_outcomes import PackedItemOutcomes
from pcopy.tasks.base.job import Failure, JobCounters
from pcopy.tools.space import FreeSpaceWarningSink
from pcopy.walk.preliminary_walk import PreliminaryWalk
from tests.support.command import pcopy, show, summary
from tests.support.files import NOW, write
from tests.support.filesystems import mounted
from tests.support.walk import paths

MIB = 1 << 20


@pytest.fixture
def small(area: Path) -> Iterator[Path]:
    """Yield a file system of 4 MiB with few inodes."""
    with mounted("tmpfs", area, 4 * MIB, "nr_inodes=20") as point:
        yield point


def test_too_little_space_is_refused_with_both_figures(area: Path, small: Path) -> None:
    for number in range(6):
        write(area / f"source/{number}", os.urandom(MIB))
    before = os.statvfs(small)
    run = pcopy("source", small, cwd=area)
    assert run.returncode == 2 and b"6.00 MiB are needed and 4.00 MiB are free" in run.stderr, show(run)
    assert run.stderr.count(b"\n") == 1 and run.stdout == b"" and b"--force" in run.stderr
    assert os.listdir(small) == [] and os.statvfs(small).f_bfree == before.f_bfree
    for force, verdict in (([], b": the copy would be refused without --force\n"), (["--force"], b"")):
        dry = pcopy("--dry-run", *force, "source", small, cwd=area)
        assert dry.returncode == 0 and verdict in dry.stdout, show(dry)
        assert (b"6.00 MiB are needed and 4.00 MiB are free" in dry.stdout) == bool(verdict), show(dry)
        assert (b"the copy would stop early" in dry.stdout) == bool(force), show(dry)
    assert summary(pcopy("--dry-run", "--json", "source", small, cwd=area))["fits"] is False
    assert summary(pcopy("--dry-run", "--json", "source/0", small, cwd=area))["fits"] is True
    run = pcopy("--force", "source", small, cwd=area)
    assert run.returncode in (1, 75) and b"No space left" in run.stderr, show(run)


@pytest.mark.parametrize("program", ["pcopy", "psync"])
def test_quiet_dry_run_reports_too_little_space(area: Path, small: Path, program: str) -> None:
    for number in range(6):
        write(area / f"source/{number}", os.urandom(MIB))
    refused = (
        "too little space: about 6.00 MiB are needed and 4.00 MiB are free: the copy would be refused without --force"
    )
    stopped = (
        "6.00 MiB would be copied and 4.00 MiB are free: the copy would stop early, unless files have holes or replace "
        "others"
    )
    for options, forecast in (([], refused), (["--force"], stopped)):
        dry = pcopy("--dry-run", "-q", *options, "source/", small, cwd=area, program=program)
        assert (dry.returncode, dry.stdout, dry.stderr.decode()) == (0, b"", f"{program}: {small}: {forecast}\n")
    (area / "fits").mkdir()
    (area / "source/0").rename(area / "fits/0")
    dry = pcopy("--dry-run", "-q", "fits/", small, cwd=area, program=program)
    assert (dry.returncode, dry.stdout, dry.stderr) == (0, b"", b""), show(dry)


def test_too_few_inodes_are_refused_with_both_figures(area: Path, small: Path) -> None:
    for number in range(30):
        write(area / f"source/{number}", b"")
    free = os.statvfs(small).f_favail
    run = pcopy("source", small, cwd=area)
    reported = f"too few inodes: 31 are needed and {free} are free"
    assert run.returncode == 2 and reported.encode() in run.stderr, show(run)
    assert os.listdir(small) == []


def test_items_that_need_no_space_are_not_counted(area: Path, small: Path) -> None:
    """Holes, hard links, excluded items, and existing items that are kept."""
    write(area / "source/file", os.urandom(MIB))
    for number in range(5):
        os.link(area / "source/file", area / f"source/link{number}")
        write(area / f"source/left{number}.tmp", os.urandom(MIB))
    with open(area / "source/hole", "wb") as file:
        file.truncate(1 << 30)
    run = pcopy("--json", "--exclude", "*.tmp", "source", small, cwd=area)
    assert run.returncode == 0 and summary(run)["hardlinks"] == 5, show(run)
    write(small / "other/one", os.urandom(2 * MIB), NOW)
    write(area / "other/one", (small / "other/one").read_bytes(), NOW)
    write(area / "other/two", os.urandom(MIB // 2))
    run = pcopy("--existing", "changed", "other/", small / "other", cwd=area)
    assert run.returncode == 0, show(run)
    write(area / "other/one", os.urandom(2 * MIB), NOW + 10**10)
    run = pcopy("--inplace", "other/", small / "other", cwd=area)
    assert run.returncode == 0, show(run)


def test_replaced_file_with_a_backup_frees_no_space(area: Path, small: Path) -> None:
    write(small / "file", os.urandom(3 * MIB), NOW)
    write(area / "source/file", os.urandom(3 * MIB), NOW + 10**10)
    run = pcopy("--backup", ".old", "source/", small, cwd=area)
    assert run.returncode == 2 and b"3.00 MiB are needed and 1.00 MiB are free" in run.stderr, show(run)
    (small / "file").write_bytes(os.urandom(2 * MIB))
    write(area / "source/file", os.urandom(2 * MIB), NOW + 10**10)
    run = pcopy("--backup", ".old", "source/", small, cwd=area)
    assert run.returncode == 0, show(run)


def test_single_file_and_several_sources(area: Path, small: Path) -> None:
    write(area / "large", os.urandom(5 * MIB))
    for name in ("one", "two"):
        write(area / name / "file", os.urandom(3 * MIB))
    for sources in (["large"], ["one", "two"]):
        run = pcopy(*sources, small, cwd=area)
        assert run.returncode == 2 and b"are needed and 4.00 MiB are free" in run.stderr, show(run)
    assert os.listdir(small) == []


def test_copy_of_a_file_list_is_not_refused_for_space(area: Path, small: Path) -> None:
    """The total size of listed files is unknown in advance."""
    write(area / "source/file", os.urandom(5 * MIB))
    (area / "list").write_text("file\n")
    run = pcopy("--files-from", "list", "source/", small, cwd=area)
    assert run.returncode == 75 and b"the item needs 5.00 MiB" in run.stderr, show(run)


def test_preliminary_walk_finds_all_items_and_keeps_access_times(area: Path) -> None:
    for name in ("a/b/c/file", "a/other", "skipped/inside", "top"):
        write(area / "tree" / name, b"contents")
    os.utime(area / "tree/a", ns=(0, NOW))
    ahead = PreliminaryWalk()
    found = dict(ahead.selected_items(bytes(area / "tree"), lambda path, _: path != b"skipped"))
    assert ahead.is_complete and (area / "tree/a").stat().st_atime_ns == 0
    assert sorted(found) == sorted(path for path in paths(bytes(area / "tree")) if path and b"skipped" not in path)
    assert all(status == os.lstat(os.path.join(bytes(area / "tree"), path)) for path, status in found.items())


@pytest.mark.parametrize(("entries", "is_complete"), [(3, False), (4, True)])
def test_preliminary_walk_ends_at_its_budget(area: Path, entries: int, is_complete: bool) -> None:
    for number in range(4):
        write(area / f"tree/{number}", b"")
    ahead = PreliminaryWalk(entries)
    assert len(list(ahead.selected_items(bytes(area / "tree")))) == entries
    assert ahead.is_complete == is_complete
    late = PreliminaryWalk(seconds=0.5, clock=iter(range(100)).__next__)
    assert list(late.selected_items(bytes(area / "tree"))) == [] and not late.is_complete


class Notices:
    """Sink that collects the notices of ``FreeSpaceWarningSink``."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Ignore progress."""

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        """Ignore failures: there are none."""

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        """Ignore items: there are none."""

    def receive_notice(self, text: str) -> None:
        self.lines.append(text)


def test_space_warning_is_printed_once_when_the_scan_is_complete(area: Path) -> None:
    notices = Notices()
    watch = FreeSpaceWarningSink(notices, bytes(area))
    room = os.statvfs(area)
    much = room.f_bfree * room.f_frsize + (1 << 40)
    watch.receive_progress("copy", JobCounters(found_bytes=much, unscanned=1), ())
    assert notices.lines == []
    watch.receive_progress("copy", JobCounters(found_bytes=much), ())
    watch.receive_progress("copy", JobCounters(found_bytes=much), ())
    assert len(notices.lines) == 1 and "remain to be copied" in notices.lines[0]
    little = Notices()
    FreeSpaceWarningSink(little, bytes(area)).receive_progress(
        "copy", JobCounters(found_bytes=much, skipped_bytes=much), ()
    )
    assert little.lines == []
