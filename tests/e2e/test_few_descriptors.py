"""A low limit of open files: what is kept open follows it, so that no item fails where the start was allowed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, pverify, show
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
