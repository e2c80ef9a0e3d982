"""A low limit of open files: a run that starts keeps few enough files open, so that no item fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.latency import can_mount, mounted_slow
from tests.support import native
from tests.support.command import Argument, pcopy, pverify, show
from tests.support.faults import Fault
from tests.support.filesystems import scratch
from tests.support.oracle import differences

ENOUGH = 64
"""A limit of open files (``ulimit -n 64``) with which two ranks can always start."""


def _make_tree(source: Path) -> None:
    """Create more directories than may be open at a time, both side by side and nested."""
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
def test_run_that_starts_under_a_descriptor_limit_succeeds(limit: int, ranks: int) -> None:
    with scratch() as place:
        _make_tree(place / "source")
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
"""Microseconds that each operation of a server takes: slow enough that many threads would be useful."""


def backend_of(name: str) -> dict[str, str]:
    if name == "c":
        native.require()
    return {"PCOPY_BACKEND": name}


SLOW: dict[str, tuple[str, Callable[[Path, Path, Path], list[Argument]]]] = {
    "copy": ("pcopy", lambda source, copy, new: ["-T", source, new]),
    "mirror": ("psync", lambda source, copy, new: [f"{source}/", new]),
    "compare": ("pverify", lambda source, copy, new: [source, copy]),
    "archive": ("ptar", lambda source, copy, new: ["-c", "-f", new, "-C", copy.parent, copy.name]),
    "mode": ("pchmod", lambda source, copy, new: ["u+rwX", copy]),
    "list": ("pwalk", lambda source, copy, new: [copy]),
    "remove": ("prm", lambda source, copy, new: ["-f", copy]),
}


@pytest.mark.parametrize(
    ("how", "in_flight"), [("copy", "auto"), *(pytest.param(how, "64", marks=pytest.mark.c_backend) for how in SLOW)]
)
def test_number_of_threads_follows_the_descriptor_limit(area: Path, how: str, in_flight: str) -> None:
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    source, below = area / "source", area / "below"
    below.mkdir()
    for number in range(20):
        (source / f"{number}/inner").mkdir(parents=True)
        for file in "abcdef":
            (source / f"{number}/inner/{file}").write_bytes(b"%d" % number)
    shutil.copytree(source, below / "copy")
    program, words = SLOW[how]
    with mounted_slow(below, WAITS) as server:
        made = words(source, server.path / "copy", server.path / "new")
        limit = ["prlimit", f"--nofile={ENOUGH}:{ENOUGH}"]
        run = pcopy("--in-flight", in_flight, *made, program=program, ranks=2, wrap=limit)
    assert run.returncode == 0, show(run)
    assert b"Too many open files" not in run.stderr, show(run)
    if program in ("pcopy", "psync"):
        assert differences(source, below / "new") == []


class Shortage(NamedTuple):
    """A range of failing opens in one directory, counted from 1, and the program that performs them."""

    directory: str
    """Opens of items in it count, and opens of the directory itself by its full path."""
    first: int
    last: int
    program: str
    words: Callable[[Path], list[Argument]]


SHORTAGES = {
    # An attempt to process an item tries four times to open a file, after one more try in C; copies may have a second
    # attempt. Without these retries each row fails, and without the second attempt the first three rows fail.
    "copy": Shortage("source/inner", 1, 12, "pcopy", lambda area: ["-T", area / "source", area / "new"]),
    "mirror": Shortage("source/inner", 1, 12, "psync", lambda area: [f"{area}/source/", area / "new"]),
    "copy to": Shortage("new/inner", 1, 7, "pcopy", lambda area: ["-T", area / "source", area / "new"]),
    "mirror to": Shortage("copy/inner", 1, 3, "psync", lambda area: [f"{area}/source/", area / "copy"]),
    "in place": Shortage("copy/inner", 1, 3, "pcopy", lambda area: ["--inplace", "-T", area / "source", area / "copy"]),
    "compare": Shortage("source/inner", 1, 8, "pverify", lambda area: [area / "source", area / "like"]),
    "archive": Shortage("source/inner", 1, 3, "ptar", lambda area: ["-c", "-f", area / "new", "-C", area, "source"]),
    "unpack": Shortage("new/inner", 1, 3, "ptar", lambda area: ["-x", "-f", area / "archive", "-C", area / "new"]),
    "mode": Shortage("copy/inner", 1, 3, "pchmod", lambda area: ["go=", area / "copy"]),
    "list": Shortage("copy/outer", 1, 3, "pwalk", lambda area: [area / "copy"]),
    "remove": Shortage("copy/outer", 1, 3, "prm", lambda area: ["-f", area / "copy"]),
    "broadcast": Shortage("empty", 1, 3, "pbcast", lambda area: [area / "source/inner/file", area / "empty"]),
    "broadcast, new file": Shortage("empty", 3, 5, "pbcast", lambda area: [area / "source/inner/file", area / "empty"]),
    "measure": Shortage("empty", 4, 6, "pdbench", lambda area: ["--time", "0.1", area / "empty"]),
}


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("number", ["EMFILE", "ENFILE"])
@pytest.mark.parametrize("which", SHORTAGES)
def test_temporary_descriptor_shortage_fails_no_item(area: Path, which: str, number: str, backend: str) -> None:
    source = area / "source"
    for directory in ("inner", "outer/below"):
        (source / directory).mkdir(parents=True)
    (source / "outer/below/other").write_bytes(b"other")
    (source / "inner/file").write_bytes(b"contents")
    for copy in ("like", "copy"):
        shutil.copytree(source, area / copy)
    (area / "copy/inner/file").write_bytes(b"old")
    (area / "empty").mkdir()
    if which == "unpack":
        (area / "new").mkdir()
        subprocess.run(["tar", "--format=posix", "-cf", area / "archive", "-C", source, "inner"], check=True)
    within, first, last, program, words = SHORTAGES[which]
    fault = Fault(area / "log", ["openat", "openat2"], area / within, number, f"{first}..{last}")
    ranks = None if program == "pbcast" else 1
    done = pcopy(*words(area), program=program, ranks=ranks, wrap=fault.wrap(), env=backend_of(backend))
    assert done.returncode == 0, show(done)
    assert (area / "log").read_text().count("(INJECTED)") >= last - first + 1
    if which in ("copy", "copy to", "mirror", "mirror to", "in place", "unpack"):
        made = area / ("copy" if within.startswith("copy") else "new")
        inner = "inner" if which == "unpack" else ""
        assert differences(source / inner, made / inner) == []


def test_capabilities_are_read_despite_a_descriptor_shortage(area: Path) -> None:
    """A process reads its capabilities once; they decide how each item gets its metadata."""
    (area / "source").mkdir()
    (area / "source/file").write_bytes(b"contents")
    fault = Fault(area / "log", ["openat"], Path("/proc/self/status"), "EMFILE", "1..3")
    done = pcopy("-T", area / "source", area / "new", ranks=1, wrap=fault.wrap(), real=True)
    assert done.returncode == 0, show(done)
    fault.check()
    assert differences(area / "source", area / "new") == []
