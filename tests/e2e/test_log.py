"""``--log`` and ``-vv`` write one line for each item, with its action."""

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


def relative_path(line: dict[str, Any], source: Path) -> bytes:
    path = os.path.relpath(base64.b64decode(line["path_b64"], validate=True), os.fsencode(source))
    return b"" if path == b"." else path


def actions_by_path(log: Path, source: Path) -> dict[bytes, str]:
    """Return the action of each path; assert that each path has one line."""
    reported = lines(log)
    found = {relative_path(line, source): line["action"] for line in reported}
    assert len(found) == len(reported)
    return found


def shown_items(run: Completed) -> list[bytes]:
    """Return the item lines of ``-vv``, sorted."""
    actions = {b"copy", b"replace", b"meta", b"delete", b"skip"}
    return sorted(line for line in run.stderr.split(b"\n") if line.partition(b" ")[0] in actions)


@pytest.mark.parametrize("policy", POLICIES)
def test_log_has_one_line_for_each_item(area: Path, policy: str) -> None:
    source, copy, log = area / "source", area / "copy", area / "log"
    mixed(source, copy)
    wanted = expected(source, copy, policy)
    words = ("-vv", "--progress", "none", "--json", "--log", log, "--existing", policy, "-T", source, copy)
    run = pcopy(*words, ranks=2)
    assert run.returncode == (1 if policy == "fail" else 0), show(run)
    assert actions_by_path(log, source) == wanted
    reported, by_path = lines(log), {relative_path(line, source): line for line in lines(log)}
    parts = [(line["action"], line.get("change", ""), line["path"]) for line in reported if line["action"] != "fail"]
    shown = [" ".join(filter(None, each)).encode() for each in parts]
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


def test_single_file_and_several_sources(area: Path) -> None:
    write(area / "one", b"1")
    write(area / "tree/two", b"22")
    (area / "copy").mkdir()
    run = pcopy("-vv", "--progress", "none", "one", "tree", "copy", cwd=area)
    assert shown_items(run) == [b"copy one", b"copy tree", b"copy tree/two"], show(run)
    run = pcopy("-vv", "--progress", "none", "--existing", "skip", "one", "copy/one", cwd=area)
    assert shown_items(run) == [b"skip one"], show(run)


SLOW_RANK_0 = """
import os, sys
from pcopy.tasks import report_items
from pcopy.tasks.base import report_window
report_items.ItemSendWindow.total_limit, report_items.ItemSendWindow.min_share = 8, 4
run = report_items.ReportItems.run
def slowly(task, rank, result):
    import time
    time.sleep(0.01)
    run(task, rank, result)
report_items.ReportItems.run = slowly
class RecordingTicket(report_window.SendWindowTicket):
    def __init__(self, window):
        super().__init__(window)
        with open(os.environ["WAITED"], "ab") as file:
            file.write(b"waits")
report_window.SendWindowTicket = RecordingTicket
from pcopy.cli.pcopy import main
sys.exit(main(sys.argv[1:]))
"""
"""pcopy with a rank 0 that writes item lines slowly, and with other ranks that soon wait for it."""


def test_ranks_wait_for_a_slow_rank_0_and_no_log_line_is_lost(area: Path) -> None:
    source, copy, log = area / "source", area / "copy", area / "log"
    for directory in range(40):
        for name in range(8):
            write(source / f"{directory}/{name}", b"contents")
    command = [sys.executable, "-c", SLOW_RANK_0, "-q", "-n", "3", "--log", *map(str, (log, source, copy))]
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state"), "WAITED": str(area / "waited")}
    subprocess.run(command, check=True, cwd=REPOSITORY, env=environment, timeout=60)
    assert (area / "waited").stat().st_size
    reported = [relative_path(line, source) for line in lines(log)]
    assert Counter(reported) == Counter([b"", *(path for path in paths(bytes(source)) if path)])


def test_logs_of_stopped_and_resumed_run_together_list_all_items(area: Path) -> None:
    """Each run logs the items that it copies; both logs together list all items."""
    source, copy, env = area / "source", area / "copy", {"XDG_STATE_HOME": str(area / "state")}
    for number in range(8):
        write(source / f"large{number}", bytes(24 << 20))
    given = ("--reflink", "never", "--no-preserve", "sparse", "--log", area / "first", source, copy)
    with start(*given, ranks=2, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not any(copy.glob("large*")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
    assert process.returncode in (0, 75)
    first = actions_by_path(area / "first", source)
    second = {}
    if process.returncode == 75:
        succeed("--resume", "--log", area / "second", env=env, ranks=3)
        second = actions_by_path(area / "second", source)
        assert not (b"" in first and b"" in second)
    assert first.keys() | second.keys() == {b"", *(b"large%d" % number for number in range(8))}
    assert {*first.values(), *second.values()} == {"copy"}


def test_full_log_device_is_reported_once(area: Path) -> None:
    write(area / "source/file", b"contents")
    run = pcopy("--log", "/dev/full", area / "source", area / "copy")
    assert run.returncode == 0 and run.stderr.count(b"cannot write the log") == 1, show(run)
    assert (area / "copy/file").read_bytes() == b"contents"


@pytest.mark.parametrize("path", ["source/log", "copy/log", "directory", "source/file"])
def test_invalid_log_paths_are_refused(area: Path, path: str) -> None:
    write(area / "source/file", b"contents")
    (area / "directory").mkdir()
    run = pcopy("--log", area / path, area / "source", area / "copy")
    assert run.returncode == 2 and run.stderr.count(b"\n") == 1, show(run)
    assert (area / "source/file").read_bytes() == b"contents" and not (area / "copy").exists()
    same = area / "same"
    run = pcopy("--log", same, "--errors", same, area / "source", area / "copy")
    assert run.returncode == 2 and b"cannot be the same file" in run.stderr, show(run)
