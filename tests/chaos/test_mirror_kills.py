"""A mirror that is killed while it deletes is resumed and ends with the result of an uninterrupted one."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path
from random import Random

import pytest

from tests.chaos.unfinished import BUSY, check_equal, listed, stopped
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import READS, Fault, slowed
from tests.support.files import write
from tests.support.processes import background, wait_until

DIRECTORIES, FILES = 12, 25


@pytest.fixture
def trees(area: Path) -> Path:
    """A source, and a copy with three times as many items."""
    for number in range(DIRECTORIES):
        for file in range(FILES):
            write(area / f"source/{number}/{file}", b"content")
    succeed(f"{area}/source/", area / "copy")
    for number in range(DIRECTORIES):
        for file in range(FILES):
            write(area / f"copy/{number}/extra {file}", b"extra")
            write(area / f"copy/{number}/extra/{file % 5}/{file}", b"extra")
    return area


IN_FLIGHT = 2
"""Removals that a killed run with two ranks may not have counted: one for each that was between the call and the count.
"""


def is_count_of(counted: int, deleted: int, number: int, runs: int = 1) -> bool:
    """True if ``counted`` is the number of items that ``runs`` ended by the signal ``number`` have deleted."""
    return deleted - (IN_FLIGHT * runs if number == signal.SIGKILL else 0) <= counted <= deleted


def extras(copy: Path) -> int:
    walked = ((top, [*directories, *files]) for top, directories, files in os.walk(copy))
    return sum("extra" in f"{top[len(str(copy)) :]}/{name}" for top, names in walked for name in names)


@pytest.mark.parametrize(("first", "then", "kills"), [(1, 3, 1), (3, 1, 1), (3, 2, 3)])
def test_mirror_killed_during_deletion_is_completed_by_resume(trees: Path, first: int, then: int, kills: int) -> None:
    env = {"XDG_STATE_HOME": str(trees / "state")}
    copy, random = trees / "copy", Random(first * 10 + kills)
    words: list[Argument] = ["--mirror", f"{trees}/source/", copy]
    all_extras = left = extras(copy)
    for kill in range(kills):
        limit = left - random.randrange(20, left // 2)
        name = stopped(
            trees,
            env,
            *words,
            ranks=first,
            number=signal.SIGKILL,
            until=lambda limit=limit: extras(copy) < limit,  # type: ignore[misc]
            slow=("unlinkat", 8),
        )
        left = extras(copy)
        assert 0 < left < all_extras
        if kill + 1 < kills:
            pcopy("--discard", name, env=env)
    for number in range(DIRECTORIES):  # all directories are compared again, including completed ones
        write(copy / f"{number}/late", b"extra")
    totals = summary(succeed("--json", "--resume", name, ranks=then, env=env))
    check_equal(trees / "source", copy)
    assert totals["failed"] == 0 and left <= totals["deleted"] <= all_extras + DIRECTORIES
    assert totals["found"] == totals["copied"] + totals["skipped"]
    assert listed(env) == []


def test_nothing_is_deleted_until_a_resume_has_copied_the_failed_item(trees: Path) -> None:
    env = {"XDG_STATE_HOME": str(trees / "state")}
    copy, before = trees / "copy", extras(trees / "copy")
    write(trees / "source/3/new", b"new")
    fault = Fault(trees / "trace", READS, trees / "source/3/new", "EIO")
    run = pcopy("--mirror", f"{trees}/source/", copy, env=env, wrap=fault.wrap())
    fault.check()
    assert run.returncode == 1 and extras(copy) == before, show(run)
    assert b"nothing was deleted: 1 item has failed" in run.stderr, show(run)
    totals = summary(succeed("--json", "--resume", env=env))
    check_equal(trees / "source", copy)
    assert totals["deleted"] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_items_removed_from_the_source_between_runs_count_for_max_delete(trees: Path, number: int) -> None:
    """A resumed job counts the items to delete again: it never deletes more than ``--max-delete``."""
    env = {"XDG_STATE_HOME": str(trees / "state")}
    copy, most = trees / "copy", extras(trees / "copy")
    words: list[Argument] = ["--mirror", "--max-delete", str(most), f"{trees}/source/", copy]
    slow = ("unlinkat", 20)
    stopped(trees, env, *words, ranks=2, number=number, until=lambda: extras(copy) < most - 20, slow=slow)
    for directory in range(1, DIRECTORIES):
        shutil.rmtree(trees / f"source/{directory}")
    left, lost = extras(copy), (DIRECTORIES - 1) * (1 + FILES)
    assert left + lost > most
    run = pcopy("--json", "--resume", env=env)
    assert (run.returncode, extras(copy), (copy / "7/7").exists()) == (1, left, True), show(run)
    line = rb"the source lacks %d items and earlier runs of the job have deleted (\d+), which is more" % (left + lost)
    reported = re.search(line, run.stderr)
    assert reported and is_count_of(int(reported[1]), most - left, number), show(run)


def test_mirror_stopped_while_counting_deletions_can_be_resumed(trees: Path) -> None:
    """The resumed job counts again from the beginning."""
    env = {"XDG_STATE_HOME": str(trees / "state")}
    copy, most = trees / "copy", extras(trees / "copy")
    words: list[Argument] = ["--mirror", "--max-delete", str(most), f"{trees}/source/", copy]

    def counts() -> bool:
        return any(b'"phase": "count"' in path.read_bytes() for path in trees.glob("state/pcopy/*/progress"))

    stopped(trees, env, *words, ranks=1, until=counts, slow=("getdents64", 40))
    assert extras(copy) == most
    succeed("--resume", env=env)
    check_equal(trees / "source", copy)


def test_items_counted_by_killed_runs_do_not_count_again_for_max_delete(trees: Path) -> None:
    """Items counted by earlier runs do not count against ``--max-delete``, however often the job is killed."""
    env = {"XDG_STATE_HOME": str(trees / "state")}
    copy, most = trees / "copy", extras(trees / "copy")
    words: list[Argument] = ["--mirror", "--max-delete", str(most), f"{trees}/source/", copy]
    slow = ("unlinkat", 20)
    stopped(trees, env, *words, ranks=2, number=signal.SIGKILL, until=lambda: extras(copy) < most - 20, slow=slow)
    left = extras(copy)
    with background(*BUSY[:2], "--resume", ranks=2, env=env, wrap=slowed(*slow)) as run:
        assert wait_until(lambda: run.process.poll() is not None or extras(copy) < left - 40)
        run.kill_all()
    assert 0 < extras(copy) < left
    totals = summary(succeed("--json", "--resume", env=env))
    check_equal(trees / "source", copy)
    assert totals["failed"] == 0 and is_count_of(totals["deleted"], most, signal.SIGKILL, runs=2) and listed(env) == []


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("words", "slow"), [((), "unlinkat"), (("--backup",), "linkat,unlinkat")])
def test_limit_and_count_of_deletions_cover_all_runs(
    trees: Path, backend: str, number: int, words: tuple[str, ...], slow: str
) -> None:
    """This includes a run that was killed between two records."""
    env = {"XDG_STATE_HOME": str(trees / "state"), "PCOPY_BACKEND": backend}
    copy, most = trees / "copy", extras(trees / "copy")
    mirror: list[Argument] = ["--mirror", "--max-delete", str(most), "--checkpoint-interval", "30"]
    mirror += (*words, trees / "kept") if words else ()
    paths: list[Argument] = [f"{trees}/source/", copy]
    with background(*mirror, *paths, ranks=2, env=env, wrap=slowed(slow, 10)) as run:
        assert wait_until(lambda: run.process.poll() is not None or extras(copy) < most - 30)
        run.send_signal(number) if number != signal.SIGKILL else run.kill_all()
        run.process.communicate(timeout=60)
    left = extras(copy)
    assert 0 < left < most - 29
    for late in range(3):
        write(copy / f"1/late {late}", b"extra")
    refused = pcopy("--json", "--resume", env=env)
    counted = summary(refused)["deleted"]
    assert (refused.returncode, extras(copy)) == (1, left), show(refused)
    assert is_count_of(counted, most - left, number), show(refused)
    assert b"and earlier runs of the job have deleted %d, which" % counted in refused.stderr, show(refused)
