"""``--log`` and ``-vv``: each item has one line, which tells what becomes of it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import REPOSITORY, Completed, pcopy, show, start, succeed, summary
from tests.support.files import write
from tests.support.mixed import expected, mixed
from tests.support.walk import paths

POLICIES = ("replace", "changed", "newer", "skip", "fail")

TYPES = {"file": os.path.isfile, "directory": os.path.isdir, "symlink": os.path.islink}


def lines(log: Path) -> list[dict[str, Any]]:
    reported = [json.loads(line) for line in log.read_text("ascii").splitlines()]
    for line in reported:
        assert line.keys() >= {"action", "path", "path_b64", "type", "bytes", "seconds"}, line
        assert line["path"].isprintable() and line["seconds"] >= 0, line
    return reported


def below(line: dict[str, Any], source: Path) -> bytes:
    path = os.path.relpath(base64.b64decode(line["path_b64"], validate=True), os.fsencode(source))
    return b"" if path == b"." else path


def words(log: Path, source: Path) -> dict[bytes, str]:
    """What was done by path; each has one line."""
    reported = lines(log)
    found = {below(line, source): line["action"] for line in reported}
    assert len(found) == len(reported)
    return found


def shown_items(run: Completed) -> list[bytes]:
    """The lines of ``-vv``, in order of their paths."""
    actions = {b"copy", b"replace", b"meta", b"delete", b"skip"}
    return sorted(line for line in run.stderr.split(b"\n") if line.partition(b" ")[0] in actions)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_item_has_a_line(area: Path, policy: str) -> None:
    source, copy, log = area / "source", area / "copy", area / "log"
    mixed(source, copy)
    wanted = expected(source, copy, policy)
    words_given = ("-vv", "--progress", "none", "--json", "--log", log, "--existing", policy, "-T", source, copy)
    run = pcopy(*words_given, ranks=2)
    assert run.returncode == (1 if policy == "fail" else 0), show(run)
    assert words(log, source) == wanted
    reported, by_path = lines(log), {below(line, source): line for line in lines(log)}
    shown = [f"{line['action']} {line['path']}".encode() for line in reported if line["action"] != "fail"]
    assert shown_items(run) == sorted(shown)
    totals, sums = summary(run), Counter(line["action"] for line in reported)
    assert sums["fail"] == totals["failed"]
    moved = [line["bytes"] for line in reported if line["action"] in ("copy", "replace") and line["type"] == "file"]
    assert sum(moved) == totals["bytes"]
    assert all(line["seconds"] > 0 for line in reported if line["bytes"] and line["action"] in ("copy", "replace"))
    for path, line in by_path.items():
        kind = next((kind for kind, holds in TYPES.items() if holds(os.path.join(os.fsencode(source), path))), "fifo")
        kind = "symlink" if os.path.islink(os.path.join(os.fsencode(source), path)) else kind
        has_links = os.lstat(os.path.join(os.fsencode(source), path)).st_nlink > 1
        kinds = (kind, "hardlink") if has_links and kind == "file" else (kind,)
        assert line["type"] in ((None,) if line["action"] == "fail" else kinds), line
    assert sum(line["type"] == "hardlink" and line["action"] != "skip" for line in reported) == totals["hardlinks"]


def test_a_single_file_and_several_sources(area: Path) -> None:
    write(area / "one", b"1")
    write(area / "tree/two", b"22")
    (area / "copy").mkdir()
    run = pcopy("-vv", "--progress", "none", "one", "tree", "copy", cwd=area)
    assert shown_items(run) == [b"copy one", b"copy tree", b"copy tree/two"], show(run)
    run = pcopy("-vv", "--progress", "none", "--existing", "skip", "one", "copy/one", cwd=area)
    assert shown_items(run) == [b"skip one"], show(run)


HESITANT = """
import os, sys
from pcopy.tasks import tell_items
from pcopy.tasks.base import unheard
tell_items.UnheardItems.most, tell_items.UnheardItems.least = 8, 4
told = tell_items.TellItems.run
def slowly(task, rank, result):
    import time
    time.sleep(0.002)
    told(task, rank, result)
tell_items.TellItems.run = slowly
class Hearing(unheard.Hearing):
    def __init__(self, told):
        super().__init__(told)
        with open(os.environ["WAITED"], "ab") as file:
            file.write(b"waits")
unheard.Hearing = Hearing
from pcopy.cli.pcopy import main
sys.exit(main(sys.argv[1:]))
"""
"""pcopy, of which rank 0 is slow to tell what was done, and ranks wait for that soon."""


def test_ranks_wait_for_rank_0_and_nothing_is_lost(area: Path) -> None:
    source, copy, log = area / "source", area / "copy", area / "log"
    for directory in range(40):
        for name in range(8):
            write(source / f"{directory}/{name}", b"contents")
    command = [sys.executable, "-c", HESITANT, "-q", "-n", "3", "--log", *map(str, (log, source, copy))]
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state"), "WAITED": str(area / "waited")}
    subprocess.run(command, check=True, cwd=REPOSITORY, env=environment, timeout=60)
    assert (area / "waited").stat().st_size
    reported = [below(line, source) for line in lines(log)]
    assert Counter(reported) == Counter([b"", *(path for path in paths(bytes(source)) if path)])


def test_what_was_settled_before_a_stop_and_after_it(area: Path) -> None:
    """Each run tells what it settles itself; both together tell of all that was copied."""
    source, copy, env = area / "source", area / "copy", {"XDG_STATE_HOME": str(area / "state")}
    for number in range(8):
        write(source / f"large{number}", bytes(24 << 20))
    given = ("--reflink", "never", "--no-preserve", "sparse", "--log", area / "first", source, copy)
    with start(*given, ranks=2, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not any(copy.glob("large*")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
    assert process.returncode in (0, 75)
    first = words(area / "first", source)
    second = {}
    if process.returncode == 75:
        succeed("--resume", "--log", area / "second", env=env, ranks=3)
        second = words(area / "second", source)
        assert not (b"" in first and b"" in second)
    assert first.keys() | second.keys() == {b"", *(b"large%d" % number for number in range(8))}
    assert {*first.values(), *second.values()} == {"copy"}


def test_a_log_that_has_no_room_is_told_of_once(area: Path) -> None:
    write(area / "source/file", b"contents")
    run = pcopy("--log", "/dev/full", area / "source", area / "copy")
    assert run.returncode == 0 and run.stderr.count(b"cannot write the log") == 1, show(run)
    assert (area / "copy/file").read_bytes() == b"contents"


@pytest.mark.parametrize("path", ["source/log", "copy/log", "directory", "source/file"])
def test_where_the_log_cannot_be(area: Path, path: str) -> None:
    write(area / "source/file", b"contents")
    (area / "directory").mkdir()
    run = pcopy("--log", area / path, area / "source", area / "copy")
    assert run.returncode == 2 and run.stderr.count(b"\n") == 1, show(run)
    assert (area / "source/file").read_bytes() == b"contents" and not (area / "copy").exists()
    same = area / "same"
    run = pcopy("--log", same, "--errors", same, area / "source", area / "copy")
    assert run.returncode == 2 and b"cannot be the same file" in run.stderr, show(run)
