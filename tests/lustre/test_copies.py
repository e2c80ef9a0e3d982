"""Layouts of files that pcopy copies between file systems that look like Lustre.

The oracle of contents and metadata is rsync; layouts are read by the parser of the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lustre.conftest import POOLS, Lustre
from tests.lustre.standin import DELAYED, END, ORACLE, composite, plain
from tests.support import native
from tests.support.command import Completed, pcopy, show
from tests.support.faults import require_strace
from tests.support.processes import background, wait_for_temporary
from tests.support.traces import whole_lines
from tests.support.users import NOBODY, require_root

MIB = 1 << 20
TWO, FOUR = plain(2, MIB), plain(4, MIB)
GROWING = composite((64 * MIB, plain(1, MIB)), (END, plain(4, MIB)))
KINDS = {
    "one": plain(1, MIB),
    "four": FOUR,
    "pool": plain(2, MIB, "fast"),
    "growing": GROWING,
    "mirrored": composite((END, plain(1, MIB)), (END, plain(2, MIB)), mirrors=2),
    "on the MDT": composite((MIB, plain(0, MIB, pattern=0x100)), (END, plain(1, MIB))),
}
MAKE = (
    "path, blob, size, delayed = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])\n"
    "made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | (delayed if blob else 0), 0o640)\n"
    "if blob: os.setxattr(made, 'lustre.lov', blob)\n"
    "while size > 0: size -= os.write(made, os.urandom(min(size, 1 << 20)))\n"
)


def make(lustre: Lustre, path: Path, blob: bytes = b"", size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lustre.asked(MAKE, path, blob.hex(), str(size), str(DELAYED), pools=POOLS)


def run(
    lustre: Lustre, *words: Any, pools: str = POOLS, osts: int = 8, program: str = "pcopy", **more: Any
) -> Completed:
    environment = lustre.environment(pools=pools, osts=osts, refuse=more.pop("refuse", ()), mdts=more.pop("mdts", 1))
    said = [word if isinstance(word, Path) else str(word) for word in words]
    return pcopy(*said, env=environment, program=program, **more)


def done(lustre: Lustre, *words: Any, **more: Any) -> Completed:
    """Run a program that must succeed."""
    run_ = run(lustre, *words, **more)
    assert run_.returncode == 0, show(run_)
    return run_


def same(source: Path, target: Path) -> None:
    command = ["rsync", "-aHAXn", "--checksum", "--itemize-changes", "--delete", *ORACLE, f"{source}/", f"{target}/"]
    reported = subprocess.run(command, check=True, capture_output=True, text=True)
    assert not reported.stdout, reported.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_files_keep_their_layouts(lustre: Lustre, ranks: int) -> None:
    """Small and split files; a layout is set only if the inherited one differs."""
    source, target = lustre.first / "source", lustre.second / "target"
    for name, blob in KINDS.items():
        make(lustre, source / "small" / name, blob)
        make(lustre, source / "large" / name, blob, 30 * MIB)
    make(lustre, source / "default")
    make(lustre, source / "empty", FOUR, 0)
    lustre.log.write_text("")
    done(lustre, "-n", ranks, source, target, "--chunk-size", "4M")
    for path in source.rglob("*"):
        if path.is_file():
            wanted, got = lustre.shown(path), lustre.shown(target / path.relative_to(source))
            assert wanted is not None and got is not None
            for one, other in zip(wanted.components, got.components, strict=True):
                assert (one.count, one.size, one.pool, one.pattern, one.start, one.end) == (
                    (other.count, other.size, other.pool, other.pattern, other.start, other.end)
                ), path
            assert wanted.mirrors == got.mirrors
    same(source, target)
    given = len(lustre.events("setlayout"))
    anchors = sum(
        event.numbers["components"] == 1 and event.numbers["count"] == 8 for event in lustre.events("setlayout")
    )
    looked_for_pool = given - anchors - 2 * (len(KINDS) - 1) - 1
    assert 1 <= looked_for_pool <= ranks  # a rank that meets the pool makes a file in it, once


def test_directories_keep_their_own_default_layouts(lustre: Lustre) -> None:
    """The default of the file system, which each directory reports, is not copied."""
    lustre.need_standin("the root of a real one is for others, too")
    source, target = lustre.first / "source", lustre.second / "target"
    source.mkdir()
    for name in ("own", "none"):
        (source / name).mkdir()
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", source / "own", TWO.hex())
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", lustre.first, FOUR.hex())
    make(lustre, source / "none" / "file")
    make(lustre, source / "own" / "file")
    done(lustre, source, target)
    of_own, of_none = lustre.shown(target / "own"), lustre.shown(target / "none")
    assert of_own is not None and (of_own.count, of_none) == (2, None)
    for name, count in (("own", 2), ("none", 4)):
        of_file = lustre.shown(target / name / "file")
        assert of_file is not None and of_file.count == count
    same(source, target)


def test_files_without_a_pool_get_none_below_a_default_with_a_pool(lustre: Lustre) -> None:
    """Lustre would put the files into the pool, and so on fewer OSTs."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "wide", plain(7, 65536))
    make(lustre, source / "growing", composite((MIB, plain(1, MIB)), (END, plain(6, MIB))), 3 * MIB)
    make(lustre, source / "slow", plain(2, MIB, "slow"))
    pool = plain(3, MIB, "fast").hex()
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", source, pool, pools=POOLS)
    make(lustre, source / "own")
    reported = done(lustre, "--json", source, target)
    assert json.loads(reported.stdout)["warnings"] == 0, show(reported)
    shown = {path.name: got for path in target.iterdir() if (got := lustre.shown(path)) is not None}
    assert {name: (got.components[-1].count, got.pool) for name, got in shown.items()} == {
        "wide": (7, ""), "growing": (6, ""), "slow": (2, "slow"), "own": (3, "fast"),
    }  # fmt: skip


def test_ordinary_user_keeps_layouts(lustre: Lustre) -> None:
    require_root("another user copies")
    for place in (lustre.first, lustre.second):
        place.chmod(0o777)
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "own" / "four", FOUR)
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", source / "own", TWO.hex())
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", lustre.first, FOUR.hex())
    subprocess.run(["chown", "-R", str(NOBODY), source], check=True)
    done(lustre, source, target, user=NOBODY)
    of_file, of_own, of_root = (lustre.shown(target / name) for name in ("own/four", "own", ""))
    assert of_file is not None and of_own is not None
    assert (of_file.count, of_own.count, of_root) == (4, 2, None)


@pytest.mark.parametrize("size", [1000, 9 * MIB])
@pytest.mark.parametrize(
    ("blob", "pools", "osts", "refuse", "expected"),
    [
        (plain(2, MIB, "fast"), "slow:4", 8, (), ("its own: there is no pool fast", 1)),
        (plain(6, MIB), "", 4, (), ("files: wanted: 6 stripes of 1 MiB; Lustre gave 4 stripes of 1 MiB", 4)),
        (plain(8, MIB), "", 8, ("ost5",), ("files: wanted: 8 stripes of 1 MiB; Lustre gave 7 stripes of 1 MiB", 7)),
        (FOUR, "", 8, ("setxattr",), ("its own: Operation not permitted", 1)),
    ],
    ids=["pool", "count", "one OST", "permission"],
)
def test_unavailable_layout_is_reported_once_and_counted(
    lustre: Lustre, size: int, blob: bytes, pools: str, osts: int, refuse: tuple[str, ...], expected: tuple[str, int]
) -> None:
    why, stripes = expected
    source, target = lustre.first / "source", lustre.second / "target"
    for number in range(3):
        make(lustre, source / str(number), blob, size)
    reported = done(lustre, "--json", "-n", 2, source, target, pools=pools, osts=osts, refuse=refuse)
    refused = refuse == ("setxattr",)  # then not every server can be synced, which is one more warning
    totals = json.loads(reported.stdout)
    assert totals["warnings"] == 3 + refused
    assert reported.stderr.decode().count(why) == 1, show(reported)
    words = f"{stripes} stripe{'s' if stripes > 1 else ''} of 1 MiB"
    assert [(each["layout"], each["files"]) for each in totals["layouts"]] == [(words, 3)]
    for number in range(3):
        got = lustre.shown(target / str(number))
        assert got is not None and (got.count, got.pool) == (stripes, "")
    same(source, target)


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("wish", ["-1", "8", "8:2M", "preserve", "pstripe", "pstripe 8"])
def test_ost_that_accepts_no_new_files_is_left_out(lustre: Lustre, backend: str, wish: str) -> None:
    """The other OSTs have the file, as with lfs setstripe, and the default layout of the directory is not used
    instead."""
    source, target = lustre.first / "source", lustre.second / "target"
    sizes = {"small": 1000, "whole": 3 * MIB, "split": 9 * MIB}
    refuse = ("ost3",)
    for name, size in sizes.items():
        make(lustre, source / name, plain(8, MIB) if wish == "preserve" else b"", size)
    words: list[Any] = ["--json", "-n", 2]
    os.environ["PCOPY_BACKEND"] = backend
    try:
        if wish.startswith("pstripe"):
            words += ["--stripe", wish.partition(" ")[2] or "-1"]
            reported = done(lustre, *words, source, program="pstripe", refuse=refuse)
            again = done(lustre, *words, source, program="pstripe", refuse=refuse)
            assert json.loads(reported.stdout)["restriped"] == 3 and json.loads(again.stdout)["restriped"] == 0, show(
                again
            )
        else:
            done(lustre, *words, "--stripe", wish, "--chunk-size", "2M", source, target, refuse=refuse)
    finally:
        del os.environ["PCOPY_BACKEND"]
    for name in sizes:
        path = (source if wish.startswith("pstripe") else target) / name
        got = lustre.shown(path)
        assert got is not None and sorted(got.osts) == [0, 1, 2, 4, 5, 6, 7], (name, got)
        assert got.size == (2 * MIB if wish.endswith("2M") else MIB)


@pytest.mark.parametrize("ranks", [1, 2])
def test_source_layouts_that_cannot_be_read_are_reported(lustre: Lustre, ranks: int) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    for number in range(3):
        make(lustre, source / str(number), FOUR)
    reported = done(lustre, "--json", "-n", ranks, source, target, refuse=("getxattr",))
    assert json.loads(reported.stdout)["warnings"] >= 3
    assert b"its own: the source's layout cannot be read: Input/output error" in reported.stderr, show(reported)
    same(source, target)


def test_pool_is_used_if_the_library_cannot_look_it_up(lustre: Lustre) -> None:
    """If the library fails, for instance without space, the pool is used and not reported as missing."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "file", plain(2, MIB, "fast"))
    reported = done(lustre, "--json", source, target, refuse=("llapi",))
    assert json.loads(reported.stdout)["warnings"] == 0, show(reported)
    got = lustre.shown(target / "file")
    assert got is not None and (got.count, got.pool) == (2, "fast")


def test_default_layout_with_a_missing_pool_is_reported_and_not_set(lustre: Lustre) -> None:
    """Lustre would accept the name of the pool, but no files could be created there."""
    source, target = lustre.first / "source", lustre.second / "target"
    (source / "own").mkdir(parents=True)
    blob = plain(2, MIB, "fast").hex()
    lustre.asked(
        "os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", source / "own", blob, pools=POOLS
    )
    reported = done(lustre, "--json", source, target, pools="slow:4")
    assert b"there is no pool fast" in reported.stderr, show(reported)
    assert json.loads(reported.stdout)["warnings"] == 1
    assert lustre.shown(target / "own") is None
    same(source, target)


def test_copies_between_lustre_and_another_file_system(lustre: Lustre, area: Path) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "file", FOUR)
    done(lustre, source, area / "outside")
    assert os.listxattr(area / "outside" / "file") == []
    reported = done(lustre, "--stripe", "preserve", "-v", area / "outside", target)
    assert b"--stripe preserve has no effect: SRC is not on Lustre" in reported.stderr
    got = lustre.shown(target / "file")
    assert got is not None and got.count == 1


@pytest.mark.parametrize(
    ("wish", "small", "large"),
    [
        ("2", (2, MIB), (2, MIB)), ("2:4M", (2, 4 * MIB), (2, 4 * MIB)), ("-1", (8, MIB), (8, MIB)),
        ("inherit", None, None), ("100:64K", (8, 65536), (8, 65536)),
    ],
)  # fmt: skip
def test_stripe_option_sets_the_layout_of_copies(lustre: Lustre, wish: str, small: Any, large: Any) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "small", FOUR)
    make(lustre, source / "large", b"", 9 * MIB)
    reported = done(lustre, "-v", "-n", 2, "--stripe", wish, source, target)
    for name, wanted in (("small", small), ("large", large)):
        got = lustre.shown(target / name)
        assert got is not None and (got.count, got.size) == (wanted or (1, MIB))
    assert reported.stdout.count(b"layout of 2 files: ") == 1
    same(source, target)


def test_stripe_auto_chooses_stripes_by_file_size(lustre: Lustre) -> None:
    """One stripe for each 8 GB, and at most as many as ranks; the apparent size of a sparse file counts."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "small", FOUR)
    make(lustre, source / "large", b"", 0)
    os.truncate(source / "large", 20 * 10**9)
    done(lustre, "-n", 2, "--stripe", "auto", source, target)
    counts = {name: got.count for name in ("small", "large") if (got := lustre.shown(target / name))}
    assert counts == {"small": 1, "large": 2}
    done(lustre, "-n", 2, "--stripe", "auto", "--stripe-table", "1,1K=3,1G=6", source, lustre.second / "table")
    counts = {name: got.count for name in ("small", "large") if (got := lustre.shown(lustre.second / "table" / name))}
    assert counts == {"small": 1, "large": 6}


def test_stripe_auto_keeps_a_progressive_default_layout(lustre: Lustre) -> None:
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "file", FOUR, 9 * MIB)
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", lustre.second, GROWING.hex())
    done(lustre, "--stripe", "auto", source, target)
    got = lustre.shown(target / "file")
    assert got is not None and got.composite
    done(lustre, "--stripe", "auto", "--stripe-table", "3", source / "file", lustre.second / "table")
    got = lustre.shown(lustre.second / "table")
    assert got is not None and got.composite


@pytest.mark.parametrize("size", [1000, 9 * MIB])
def test_file_without_a_layout_left_by_a_killed_run_is_replaced(lustre: Lustre, size: int) -> None:
    """The file was created and had no layout yet."""
    source, target = lustre.first / "source", lustre.second / "target"
    target.mkdir()
    for name in ("first", "second"):
        make(lustre, source / name, FOUR, size)
    lustre.asked(
        "os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | int(sys.argv[2])))", target / "first", str(DELAYED)
    )
    reported = done(lustre, "--json", "--inplace", "--chunk-size", "4M", "-T", source, target)
    assert json.loads(reported.stdout)["layouts"] == [{"layout": "4 stripes of 1 MiB", "files": 2}]
    for name in ("first", "second"):
        got = lustre.shown(target / name)
        assert got is not None and got.count == 4
    same(source, target)


def test_small_file_needs_no_layout_calls(lustre: Lustre) -> None:
    """If the inherited layout is right, the file is created, and its layout is neither set nor read."""
    native.require()
    source, target = lustre.first / "source", lustre.second / "target"
    for number in range(40):
        make(lustre, source / f"f{number:02d}", b"", 10)
    trace = lustre.log.with_name("trace")
    calls = "lgetxattr,getxattr,fgetxattr,setxattr,fsetxattr,openat,open,newfstatat,fstat,ioctl"
    wrap = ["strace", "-f", "-y", "-o", trace, "-e", f"trace={calls}"]
    done(lustre, "-n", 1, source, target, wrap=wrap)
    lines = trace.read_text().splitlines()
    trace.unlink()
    assert sum('"f20", O_' in line for line in lines) == 2  # of the source and of the copy, by the C backend
    of_one = [line for line in lines if '"f20"' in line or "/f20>" in line or '/f20"' in line]
    of_layouts = sum("xattr(" in line and "lustre.lov" in line for line in of_one)
    assert of_layouts == lustre.is_real  # of the source; the stand-in answers without a call
    assert sum("setxattr" in line for line in of_one) <= 1  # the call of the stand-in that stores the layout


def test_target_directory_is_not_examined_for_each_file(lustre: Lustre) -> None:
    """Each time would be a request, since a client that creates names in a directory loses its cached attributes."""
    native.require()
    source, target = lustre.first / "source", lustre.second / "target"
    for number in range(40):
        make(lustre, source / f"{number:02d}", FOUR, 10)
    trace = lustre.log.with_name("trace")
    wrap = ["strace", "-f", "-y", "-o", trace, "-e", "trace=fstat,newfstatat,statx,openat"]
    done(lustre, "-n", 1, source, target, wrap=wrap)
    lines = list(whole_lines(trace))
    trace.unlink()
    asked, of_standin = 0, ""  # the stand-in opens the directory itself
    for line in lines:
        if opened := re.search(r"openat\(.*O_PATH.* = (\d+)<[^>]*/target>$", line):
            of_standin = opened[1]
        elif stated := re.search(r'stat[a-z]*\((\d+)<[^>]*/target>, (""|{)', line):
            asked += stated[1] != of_standin
    assert 0 < asked < 20


def test_lustre_options_on_other_file_systems_are_reported_once_as_ineffective(area: Path) -> None:
    (area / "source").mkdir()
    (area / "source" / "file").write_bytes(b"1")
    reported = pcopy("-n", "2", "--stripe", "4", "--stripe-affinity", area / "source", area / "target")
    assert reported.returncode == 0, show(reported)
    assert reported.stderr.count(b"--stripe and --stripe-affinity have no effect: DST is not on Lustre") == 1
    quiet = pcopy("-q", "--stripe", "-1:4M", area / "source", area / "quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"", b""), show(quiet)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("0", "1 to 2000 stripes"), ("2001", "1 to 2000 stripes"), ("many", "not preserve, auto, inherit, or COUNT"),
        ("4:3", "a multiple of 64K"), ("4:", "not a size"), ("4:4G", "below 4G"),
        ("4 --stripe-table 1,1G=8", "can only be given with --stripe auto"),
    ],
)  # fmt: skip
def test_invalid_stripe_values_are_refused(area: Path, word: str, why: str) -> None:
    reported = pcopy("--stripe", *word.split(), area, area / "target")
    assert (reported.returncode, reported.stdout) == (2, b"")
    assert why in reported.stderr.decode() and reported.stderr.count(b"\n") == 1, show(reported)


@pytest.mark.parametrize("words", [[], ["--stripe-affinity"]])
def test_killed_job_keeps_layouts_after_resume(lustre: Lustre, area: Path, words: list[str]) -> None:
    """Half of a split file exists under a temporary name, which has its layout."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "large", FOUR, 96 * MIB)
    for number in range(20):
        make(lustre, source / "small" / str(number), TWO)
    environment = lustre.environment(pools=POOLS)
    job = ["--checkpoint", str(area / "job"), "--checkpoint-interval", "0.05", "--chunk-size", "4M", "--json", *words]
    wrap = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=pwrite64:delay_enter=20000"]
    require_strace()
    with background(*job, "-T", source, target, ranks=2, env=environment, wrap=wrap) as run_:
        wait_for_temporary(run_, os.fsencode(target))
        time.sleep(0.5)
        run_.kill_all()
        run_.process.communicate(timeout=60)
    reported = done(lustre, *job, "-T", source, target, ranks=3)
    assert json.loads(reported.stdout)["files"] == 21
    assert json.loads(reported.stdout)["warnings"] == 0, show(reported)
    counts = {path.name: got.count for path in target.rglob("*") if (got := lustre.shown(path)) is not None}
    assert counts == {"large": 4, **{str(number): 2 for number in range(20)}}
    same(source, target)


def test_compressed_frames_hold_whole_stripes(lustre: Lustre) -> None:
    """A frame contains two stripes of 3 MiB; otherwise it has 4 MiB."""
    source, target = lustre.first / "source", lustre.second / "target"
    make(lustre, source / "odd", plain(2, 3 * MIB), 20 * MIB)
    make(lustre, source / "usual", TWO, 20 * MIB)
    done(lustre, "--compress", "zstd:1", source, target, ranks=1)
    for name, frames in (("odd", 4), ("usual", 5)):
        reported = subprocess.run(["zstd", "-lv", target / f"{name}.zst"], check=True, capture_output=True, text=True)
        assert f"# Zstandard Frames: {frames}\n" in reported.stdout, reported.stdout
