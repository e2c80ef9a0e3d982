"""A low limit of open files: what is kept open follows it, so that no item fails where the start was allowed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.latency import is_possible, slow
from tests.support import native
from tests.support.command import Argument, pcopy, pverify, show
from tests.support.faults import Fault
from tests.support.filesystems import scratch
from tests.support.oracle import differences

ENOUGH = 64
"""Open files with which two ranks may always start: ``ulimit -n 64``."""


def _tree(source: Path) -> None:
    """More directories than may be open at once, beside one another and within one another."""
    deep = source
    for level in range(40):
        deep = deep / f"level{level}"
        deep.mkdir(parents=True)
        (deep / "file").write_bytes(b"deep %d" % level)
    for number in range(80):
        (source / f"wide{number}/inner").mkdir(parents=True)
        (source / f"wide{number}/inner/file").write_bytes(b"wide %d" % number)
    for number in range(80):
        os.link(source / f"wide{number}/inner/file", source / f"wide{79 - number}/link{number}")
    (source / "large").write_bytes(b"0123456789abcdef" * (5 << 16))


@pytest.mark.in_turn(1)
@pytest.mark.parametrize(("limit", "ranks"), [(44, 1), (64, 1), (64, 2)])
def test_what_may_start_under_a_limit_ends_well(limit: int, ranks: int) -> None:
    with scratch() as place:
        _tree(place / "source")
        words: list[Argument] = ["--verify", "--signature", place / "signature", "--manifest", place / "manifest"]
        words += ["--checkpoint", place / "job", "--checkpoint-interval", "0.1", "--chunk-size", "1M"]
        wrap = ["prlimit", f"--nofile={limit}:{limit}"]
        run = pcopy(*words, "-T", place / "source", place / "target", ranks=ranks, wrap=wrap)
        if run.returncode == 2:
            needed = re.search(rb"need (\d+) open files, the limit is", run.stderr)
            assert needed, show(run)
            assert int(needed[1]) > limit, show(run)
            assert limit < ENOUGH, show(run)
            return
        assert run.returncode == 0, show(run)
        assert differences(place / "source", place / "target") == []
        proved = pverify(place / "source", place / "target", ranks=ranks, wrap=wrap)
        assert proved.returncode == 0, show(proved)


WAITS = {"all": 200}
"""Microseconds that each operation of a server takes: so many threads would be of use."""


def kernel_of(name: str) -> dict[str, str]:
    if name == "c":
        native.require()
    return {"PCOPY_KERNEL": name}


SLOW: dict[str, tuple[str, Callable[[Path, Path, Path], list[Argument]]]] = {
    "copy": ("pcopy", lambda source, copy, new: ["-T", source, new]),
    "mirror": ("psync", lambda source, copy, new: [f"{source}/", new]),
    "compare": ("pverify", lambda source, copy, new: [source, copy]),
    "archive": ("ptar", lambda source, copy, new: ["-c", "-f", new, "-C", copy.parent, copy.name]),
    "mode": ("pchmod", lambda source, copy, new: ["u+rwX", copy]),
    "list": ("pwalk", lambda source, copy, new: [copy]),
    "remove": ("prm", lambda source, copy, new: ["-f", copy]),
}


@pytest.mark.parametrize(("how", "in_flight"), [("copy", "auto"), *((how, "64") for how in SLOW)])
def test_threads_follow_the_limit_of_open_files(area: Path, how: str, in_flight: str) -> None:
    if not is_possible():
        pytest.skip("it takes root and libfuse3-dev")
    source, below = area / "source", area / "below"
    below.mkdir()
    for number in range(20):
        (source / f"{number}/inner").mkdir(parents=True)
        for file in "abcdef":
            (source / f"{number}/inner/{file}").write_bytes(b"%d" % number)
    shutil.copytree(source, below / "copy")
    program, words = SLOW[how]
    with slow(below, WAITS) as server:
        made = words(source, server.path / "copy", server.path / "new")
        limit = ["prlimit", f"--nofile={ENOUGH}:{ENOUGH}"]
        run = pcopy("--in-flight", in_flight, *made, program=program, ranks=2, wrap=limit)
    assert run.returncode == 0, show(run)
    assert b"Too many open files" not in run.stderr, show(run)
    if program in ("pcopy", "psync"):
        assert differences(source, below / "new") == []


FAILURES = {"copy": 6, "compare": 3, "archive": 3}
"""How often the one file cannot be opened: an attempt tries four times, and a copy is attempted twice."""


@pytest.mark.parametrize("kernel", ["c", "python"])
@pytest.mark.parametrize("number", ["EMFILE", "ENFILE"])
@pytest.mark.parametrize("which", FAILURES)
def test_too_many_open_files_for_a_moment_fail_no_item(area: Path, which: str, number: str, kernel: str) -> None:
    source, copy = area / "source", area / "copy"
    (source / "inner").mkdir(parents=True)
    (source / "inner/file").write_bytes(b"contents")
    shutil.copytree(source, copy)
    program, words = SLOW[which]
    read = (copy if which == "archive" else source) / "inner"  # strace takes a file for one of the open directory
    fault = Fault(area / "log", ["openat", "openat2"], read, number, f"1..{FAILURES[which]}")
    done = pcopy(*words(source, copy, area / "new"), program=program, ranks=1, wrap=fault.wrap(), env=kernel_of(kernel))
    assert done.returncode == 0, show(done)
    assert (area / "log").read_text().count("(INJECTED)") == FAILURES[which]
