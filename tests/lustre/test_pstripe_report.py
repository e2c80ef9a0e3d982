"""Reports of ``pstripe`` on layouts, and arguments that it refuses."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.lustre.conftest import POOLS, Lustre
from tests.lustre.standin import plain
from tests.lustre.test_copies import MIB, make, run
from tests.lustre.test_pstripe import build, pstripe, report
from tests.support.command import pcopy, show


def test_report_counts_files_by_layout_and_objects_by_ost(lustre: Lustre) -> None:
    reported = report(lustre, "-n", 2, build(lustre))
    assert {each["layout"]: (each["files"], each["bytes"]) for each in reported["layouts"]} == {
        "1 stripe of 1 MiB": (1, 10),
        "4 stripes of 1 MiB": (1, 3 * MIB),
        "to 1 MiB 1 stripe of 1 MiB, then 4 stripes of 1 MiB": (1, 5 * MIB),
        "3 stripes of 1 MiB": (1, 0),
        "2 stripes of 1 MiB": (1, 9 * MIB),
    }
    assert sum(reported["osts"].values()) == 1 + 4 + 5 + 3 + 2
    assert (reported["fewer_stripes"], reported["more_stripes"]) == (0, 3)
    assert reported["found"] == reported["files"] + reported["directories"] + reported["skipped"] + reported["failed"]


def test_errors_file_inside_the_examined_tree_is_refused(lustre: Lustre) -> None:
    tree = build(lustre)
    reported = pstripe(lustre, "--errors", tree / "below" / "failed", tree)
    assert reported.returncode == 2 and b"which is examined; name another" in reported.stderr, show(reported)
    assert not (tree / "below" / "failed").exists()


def test_more_stripes_than_osts_are_reduced_and_reported(lustre: Lustre) -> None:
    tree = build(lustre)
    reported = pstripe(lustre, "--stripe", "20", tree / "one")
    assert reported.stderr == b"pstripe: --stripe 20: the file system has only 8 OSTs, so files get 8 stripes\n", show(
        reported
    )
    copy = run(lustre, "-q", "--stripe", "20", tree, lustre.second / "copy")
    assert (copy.returncode, copy.stderr.count(b"so files get 8 stripes")) == (0, 0), show(copy)
    copy = run(lustre, "--stripe", "20", "-T", tree, lustre.second / "copy")
    assert copy.stderr.count(b"pcopy: --stripe 20: the file system has only 8 OSTs, so files get 8 stripes") == 1, show(
        copy
    )


def test_layouts_that_cannot_be_read_are_reported(lustre: Lustre) -> None:
    """The files are not reported as files without layouts."""
    tree = build(lustre)
    reported = pstripe(lustre, "--json", tree, refuse=("getxattr",))
    assert reported.returncode == 1 and reported.stderr.count(b"getstripe: Input/output error") == 5, show(reported)
    assert json.loads(reported.stdout)["layouts"] == []


def test_report_uses_the_stripe_table(lustre: Lustre) -> None:
    reported = report(lustre, "--stripe", "auto", "--stripe-table", "1,1M=4", "--dry-run", build(lustre))
    assert (reported["fewer_stripes"], reported["more_stripes"]) == (1, 1)  # holes; empty


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "PATH expected"),
        (["--stripe", "preserve", "x"], "pstripe would keep the layout of all files"),
        (["--dry-run", "x"], "can only be given with --stripe"),
        (["--stripe-table", "1", "x"], "can only be given with --stripe auto"),
        (["--stripe", "4", "--stripe-table", "1", "x"], "can only be given with --stripe auto"),
        (["nowhere"], "No such file"),
        (["."], "is not on Lustre"),
        (["-c", "4", "x"], "write --stripe COUNT"),
    ],
)
def test_invalid_arguments_are_refused(area: Path, words: list[str], why: str) -> None:
    reported = pcopy(*words, program="pstripe", cwd=area)
    assert (reported.returncode, reported.stdout) == (2, b""), show(reported)
    assert why in reported.stderr.decode() and reported.stderr.count(b"\n") == 1, show(reported)


def test_report_names_pools(lustre: Lustre) -> None:
    make(lustre, lustre.first / "file", plain(2, MIB, "fast"))
    assert "2 stripes of 1 MiB in the pool fast" in str(report(lustre, lustre.first / "file", pools=POOLS)["layouts"])


def test_setstripe_error_is_reported_with_its_errno(lustre: Lustre, area: Path) -> None:
    tree = build(lustre)
    reported = pstripe(lustre, "--errors", area / "errors", "--stripe", "6", tree / "one", refuse=("setxattr",))
    assert reported.returncode == 1 and b"setstripe: Operation not permitted (EPERM)" in reported.stderr, show(reported)
    (failure,) = map(json.loads, (area / "errors").read_text().splitlines())
    assert (failure["operation"], failure["errno"]) == ("setstripe", errno.EPERM)
