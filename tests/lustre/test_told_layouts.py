"""The layouts of files that a copy reports: ``layouts`` of ``--json``, and ``-v``."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.lustre.conftest import POOLS, Lustre
from tests.lustre.standin import END, composite, plain
from tests.lustre.test_copies import FOUR, MIB, done, make, run
from tests.support.command import show


@pytest.mark.parametrize("wish", ["8", "-1"])
def test_copy_to_a_pool_with_fewer_osts_reports_the_actual_stripes(lustre: Lustre, wish: str) -> None:
    """The file lies on all OSTs of the pool, and the actual layout is reported."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "file", FOUR, 3 * MIB)
    target.mkdir()
    slow = plain(1, MIB, "slow").hex()
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", target, slow, pools=POOLS)
    reported = json.loads(done(lustre, "--json", "--stripe", wish, "-T", source, target).stdout)
    assert (reported["warnings"], reported["layouts"]) == (
        0,
        [{"layout": "2 stripes of 1 MiB in the pool slow", "files": 1}],
    )
    got = lustre.shown(target / "file")
    assert got is not None and (got.count, got.pool) == (2, "slow")


@pytest.mark.parametrize("wish", ["preserve", "4", "inherit"])
def test_small_and_split_files_with_one_layout_are_reported_together(lustre: Lustre, wish: str) -> None:
    """Also if a component requests all OSTs, and files with data list their actual number."""
    source, target = lustre.first / "source", lustre.second / "target"
    growing = composite((MIB, plain(1, MIB)), (END, plain(0xFFFF, MIB)))
    for name, size in (("small", 10), ("whole", 2 * MIB), ("split", 9 * MIB)):
        make(lustre, source / name, growing, size)
    target.mkdir()
    default = composite((MIB, plain(1, MIB)), (END, plain(0xFFFF if wish == "inherit" else 2, MIB)))
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", target, default.hex())
    words = ("--json", "-n", 2, "--chunk-size", "1M", "--stripe", wish)
    layouts = json.loads(done(lustre, *words, "-T", source, target).stdout)["layouts"]
    reported = {each["layout"]: each["files"] for each in layouts}
    begins = "to 1 MiB 1 stripe of 1 MiB, then"
    if wish == "preserve":  # files with data list the number of their OSTs
        shown = [lustre.shown(source / name) for name in ("small", "whole", "split")]
        counts = Counter(0 if got is None else got.components[-1].count for got in shown)
        texts = {0xFFFF: "all OSTs", **{count: f"{count} stripes" for count in range(2, 9)}}
        assert reported == {f"{begins} {texts[count]} of 1 MiB": files for count, files in counts.items()}
    else:
        assert reported == {"4": {"4 stripes": 3}, "inherit": {f"{begins} all OSTs of 1 MiB": 3}}[wish]


def test_layouts_of_failed_files_are_not_counted(lustre: Lustre) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "large", FOUR, 9 * MIB)
    make(lustre, source / "small", FOUR)
    words = ("--json", "--group-lock", "--chunk-size", "1M", "-T", source, target)
    reported = run(lustre, *words, refuse=("grouplock",))
    found = json.loads(reported.stdout)
    assert (reported.returncode, found["files"], found["failed"]) == (1, 1, 1), show(reported)
    assert found["layouts"] == [{"layout": "4 stripes of 1 MiB", "files": 1}]
