"""``pstripe`` reports and changes layouts; all other properties of the files are unchanged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pcopy.lustre.restripe import copy_project_id
from tests.lustre.conftest import POOLS, Lustre
from tests.lustre.standin import END, ON_MDT, ORACLE, SERVER, composite, plain
from tests.lustre.test_copies import MIB, make, run
from tests.support.command import Completed, show
from tests.support.faults import require_strace
from tests.support.filesystems import Place
from tests.support.held import held
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root


def pstripe(lustre: Lustre, *words: Any, **more: Any) -> Completed:
    return run(lustre, *words, program="pstripe", **more)


def report(lustre: Lustre, *words: Any, **more: Any) -> dict[str, Any]:
    reported = pstripe(lustre, "--json", *words, **more)
    assert reported.returncode == 0, show(reported)
    found: dict[str, Any] = json.loads(reported.stdout)
    return found


def build(lustre: Lustre) -> Path:
    """Create a tree with files of all layouts, metadata and kinds."""
    tree = lustre.first / "tree"
    make(lustre, tree / "one", plain(1, MIB), 10)
    make(lustre, tree / "below" / "four", plain(4, MIB), 3 * MIB)
    make(lustre, tree / "below" / "growing", composite((MIB, plain(1, MIB)), (END, plain(4, MIB))), 5 * MIB)
    make(lustre, tree / "empty", plain(3, MIB), 0)
    os.link(tree / "below" / "four", tree / "again")
    os.symlink("one", tree / "link")
    os.setxattr(tree / "one", "user.mark", b"value")
    (tree / "one").chmod(0o4751)
    os.chown(tree / "below" / "four", 1000, 1001)
    make(lustre, tree / "holes", plain(2, MIB), 0)
    os.truncate(tree / "holes", 9 * MIB)
    with (tree / "holes").open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"in the middle")
    for path in sorted(tree.rglob("*"), reverse=True):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    return tree


def copied(tree: Path, place: Path) -> Path:
    place.mkdir()
    subprocess.run(["rsync", "-aHAXS", *ORACLE, f"{tree}/", f"{place}/"], check=True)
    return place


def unchanged(tree: Path, copy: Path) -> None:
    words = ["rsync", "-aHAXn", "--checksum", "--itemize-changes", "--delete", *ORACLE, f"{copy}/", f"{tree}/"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == ""


def inodes(tree: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_ino for path in tree.rglob("*")}


@pytest.mark.parametrize(("wish", "stripes"), [("2:2M", (2, 2 * MIB)), ("-1:64K", (8, 65536)), ("inherit", (1, MIB))])
@pytest.mark.parametrize("ranks", [1, 2])
def test_files_get_another_layout_and_nothing_else_changes(
    lustre: Lustre, area: Path, wish: str, stripes: tuple[int, int], ranks: int
) -> None:
    tree = build(lustre)
    before, were = copied(tree, area / "before"), inodes(tree)
    reported = report(lustre, "-n", ranks, "--stripe", wish, tree)
    assert reported["restriped"] == 5 if wish != "inherit" else 4
    unchanged(tree, before)
    assert inodes(tree) == were
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            got = lustre.shown(path)
            assert got is not None and (got.count, got.size) == stripes, path
    again = report(lustre, "--stripe", wish, tree)
    assert (again["restriped"], again["skipped"]) == (0, 7)


def default(lustre: Lustre, directory: Path, blob: bytes) -> None:
    lustre.asked("os.setxattr(sys.argv[1], 'lustre.lov', bytes.fromhex(sys.argv[2]))", directory, blob.hex())


def test_stripe_size_that_was_not_requested_causes_no_restriping(lustre: Lustre) -> None:
    """With --stripe COUNT, and auto, only the stripe count matters."""
    tree = lustre.first / "tree"
    make(lustre, tree / "coarse", plain(1, 4 * MIB), 10)
    make(lustre, tree / "fine", plain(1, MIB), 10)
    make(lustre, tree / "two", plain(2, 4 * MIB), 10)
    for wish, changed in (("1", 1), ("auto", 0), ("2", 3), ("2", 0), ("2:4M", 3), ("2:4M", 0), ("2:1M", 3)):
        assert report(lustre, "--stripe", wish, tree)["restriped"] == changed, wish


def test_grown_file_matches_the_progressive_layout_of_its_directory(lustre: Lustre) -> None:
    """The last component of a file lists its OSTs, where the directory requests all OSTs."""
    tree = lustre.first / "tree"
    tree.mkdir()
    default(lustre, tree, composite((MIB, plain(1, MIB)), (8 * MIB, plain(2, MIB)), (END, plain(0xFFFF, MIB))))
    for name, size in (("small", 10), ("middle", 3 * MIB), ("large", 9 * MIB)):
        make(lustre, tree / name, b"", size)
    make(lustre, tree / "odd", composite((MIB, plain(1, MIB)), (8 * MIB, plain(3, MIB)), (END, plain(4, MIB))), 9 * MIB)
    make(lustre, tree / "plain", plain(1, MIB), 10)
    assert report(lustre, "--stripe", "inherit", tree)["restriped"] == 2
    assert report(lustre, "--stripe", "inherit", tree)["restriped"] == 0


def test_pool_with_fewer_osts_than_requested_stripes_is_used_completely(lustre: Lustre) -> None:
    """A file on all OSTs of the pool has the requested layout."""
    tree = lustre.first / "tree"
    tree.mkdir()
    default(lustre, tree, composite((MIB, plain(1, MIB)), (END, plain(4, MIB, "slow"))))
    make(lustre, tree / "grown", b"", 3 * MIB)
    make(lustre, tree / "plain", plain(1, MIB), 3 * MIB)
    for changed in (1, 0):
        assert report(lustre, "--stripe", "inherit", tree, pools=POOLS)["restriped"] == changed
    default(lustre, tree, composite((MIB, plain(1, MIB)), (END, plain(1, MIB, "slow"))))
    assert report(lustre, "--stripe", "inherit", tree, pools=POOLS)["restriped"] == 2
    default(lustre, tree, plain(1, MIB, "slow"))
    for wish in ("8", "-1"):
        reported = report(lustre, "--stripe", wish, tree, pools=POOLS)
        assert (reported["restriped"], reported["failed"]) == ((2, 0) if wish == "8" else (0, 0))
        assert reported["layouts"] == [{"layout": "2 stripes of 1 MiB in the pool slow", "files": 2, "bytes": 6 * MIB}]


def test_file_restriped_by_another_process_is_not_counted_as_changed(lustre: Lustre, area: Path) -> None:
    """The file was examined, and has the requested layout by now: it does not count as changed."""
    require_strace()
    tree = lustre.first / "tree"
    for number in range(6):
        make(lustre, tree / str(number), plain(1, MIB), MIB)
    words, environment = ("--json", "--stripe", "2", tree), lustre.environment(pools=POOLS)
    with held(area / "log", *words, calls=("fsync",), program="pstripe", ranks=1, env=environment) as run_:
        others = pstripe(lustre, "--json", "--stripe", "2", tree)
        ended = run_.go_on()
    first, second = json.loads(ended.stdout), json.loads(others.stdout)
    assert (first["restriped"], second["restriped"], second["failed"]) == (1, 5, 1), (first, second)
    assert (first["failed"], first["found"]) == (0, first["restriped"] + first["directories"] + first["skipped"])


def test_mirrored_file_fails_and_keeps_its_mirrors(lustre: Lustre, area: Path) -> None:
    tree = build(lustre)
    make(lustre, tree / "twice", composite((END, plain(1, MIB)), (END, plain(2, MIB)), mirrors=2), 3 * MIB)
    before, was = copied(tree, area / "before"), lustre.shown(tree / "twice")
    reported = pstripe(lustre, "--json", "--stripe", "4", tree)
    assert reported.returncode == 1 and b"it has several mirrors" in reported.stderr, show(reported)
    found = json.loads(reported.stdout)
    assert (found["restriped"], found["failed"]) == (4, 1)
    assert found["found"] == found["files"] + found["directories"] + found["skipped"] + found["failed"]
    assert lustre.shown(tree / "twice") == was
    unchanged(tree, before)


def test_data_on_osts_is_not_moved_to_an_mdt(lustre: Lustre, area: Path) -> None:
    """Lustre refuses that, so no data is copied; the reverse direction works."""
    tree, mdt = lustre.first / "tree", (MIB, plain(0, MIB, pattern=ON_MDT))
    make(lustre, tree / "one", plain(1, MIB), 2 * MIB)
    make(lustre, tree / "mdt", composite(mdt, (END, plain(1, MIB))), 2 * MIB)
    make(lustre, tree / "two", composite(mdt, (END, plain(2, MIB))), 2 * MIB)
    default(lustre, tree, composite(mdt, (END, plain(2, MIB))))
    before = copied(tree, area / "before")
    reported = pstripe(lustre, "--json", "--stripe", "inherit", tree)
    assert reported.returncode == 1 and reported.stderr.count(b"can't move data from OSTs to an MDT") == 1, show(
        reported
    )
    found = json.loads(reported.stdout)
    assert (found["restriped"], found["failed"], found["skipped"]) == (1, 1, 1)
    assert report(lustre, "--stripe", "1", tree)["restriped"] == 2
    unchanged(tree, before)


def test_files_on_other_mdts_than_their_directory_are_restriped(lustre: Lustre) -> None:
    """This happens in a striped directory, or after a rename."""
    tree = lustre.first / "tree"
    for number in range(4):
        make(lustre, tree / str(number), plain(1, MIB), MIB)
        os.setxattr(tree / str(number), SERVER, b"%d" % (number % 2))
    reported = run(lustre, "--json", "--stripe", "2", tree, program="pstripe", mdts=2)
    assert reported.returncode == 0, show(reported)
    assert json.loads(reported.stdout)["restriped"] == 4


def test_files_that_an_ordinary_user_cannot_restripe_are_reported(lustre: Lustre, area: Path) -> None:
    """Files of other users, also if they are writable for everybody, and files on another MDT than their directory."""
    require_root("another user changes layouts")
    lustre.need_standin("it says on which MDT each file lies")
    tree = lustre.first / "tree"
    for name, owner, server in (("own", NOBODY, 0), ("foreign", 0, 0), ("elsewhere", NOBODY, 1)):
        make(lustre, tree / name, plain(1, MIB), MIB)
        (tree / name).chmod(0o666)
        os.chown(tree / name, owner, owner)
        os.setxattr(tree / name, SERVER, b"%d" % server)
    os.chown(tree, NOBODY, NOBODY)
    before = copied(tree, area / "before")
    reported = run(lustre, "--json", "--stripe", "2", tree, program="pstripe", mdts=2, user=NOBODY)
    assert reported.returncode == 1, show(reported)
    for name, why in (("foreign", b"you are not in its group, or not its owner"), ("elsewhere", b"it lies on MDT 1")):
        assert reported.stderr.count(b"/%b: " % name.encode()) == reported.stderr.count(why) == 1, show(reported)
    found = json.loads(reported.stdout)
    assert (found["restriped"], found["failed"]) == (1, 2)
    counts = {path.name: got.count for path in tree.iterdir() if (got := lustre.shown(path)) is not None}
    assert counts == {"own": 2, "foreign": 1, "elsewhere": 1}
    unchanged(tree, before)


def test_file_moved_from_an_mdt_keeps_its_times(lustre: Lustre) -> None:
    path = lustre.first / "file"
    make(lustre, path, composite((MIB, plain(0, MIB, pattern=ON_MDT)), (END, plain(1, MIB))), 3 * MIB)
    os.utime(path, (10**9, 10**9 + 5))
    report(lustre, "--stripe", "2", path)
    assert (path.stat().st_atime, path.stat().st_mtime) == (10**9, 10**9 + 5)


def test_project_id_of_a_file_is_copied(on: Place) -> None:
    """This is tested on XFS, which has projects."""
    place = on("xfs")
    one, other = place / "one", place / "other"
    one.touch()
    other.touch()
    subprocess.run(["xfs_io", "-c", "chproj 81", one], check=True)
    with one.open("r+b") as from_, other.open("r+b") as to:
        copy_project_id(from_.fileno(), to.fileno())
    reported = subprocess.run(["xfs_io", "-r", "-c", "lsproj", other], check=True, capture_output=True, text=True)
    assert reported.stdout == "projid = 81\n"


def test_write_after_the_swap_keeps_its_own_modification_time(lustre: Lustre) -> None:
    """A process that waited for the group lock writes as soon as it is released."""
    tree = build(lustre)
    report(lustre, "--stripe", "2:2M", tree / "below" / "four", refuse=("quiet",))
    status = (tree / "below" / "four").stat()
    assert (status.st_size, status.st_mtime > 10**9) == (3 * MIB + 1, True)


def test_stopped_run_reports_the_number_of_restriped_files(lustre: Lustre) -> None:
    tree = lustre.first / "tree"
    tree.mkdir()
    code = "for number in range(300): open(f'{sys.argv[1]}/{number}', 'wb').write(os.urandom(1 << 20))"
    lustre.asked(code, tree)
    environment = lustre.environment(pools=POOLS)
    with background("--json", "--stripe", "2", tree, program="pstripe", ranks=1, env=environment) as run_:
        assert wait_until(lambda: len(lustre.events("swap")) > 3)
        run_.send_signal(signal.SIGTERM)
        out, err = run_.process.communicate(timeout=60)
    assert run_.process.returncode == 75, err
    changed = sum(got.count == 2 for path in tree.iterdir() if (got := lustre.shown(path)) is not None)
    assert 3 < changed < 300
    reported = json.loads(out)
    assert reported["restriped"] == changed
    if changed > 100:  # progress is reported every second
        assert 0 < sum(each["files"] for each in reported["layouts"]) <= changed


def test_a_dry_run_changes_nothing(lustre: Lustre) -> None:
    tree = build(lustre)
    before = {path: lustre.shown(path) for path in tree.rglob("*") if path.is_file()}
    reported = report(lustre, "--stripe", "2:2M", "--dry-run", tree)
    assert (reported["files"], reported["restriped"], reported["dry_run"]) == (5, 0, True)
    assert {path: lustre.shown(path) for path in tree.rglob("*") if path.is_file()} == before


def test_changes_of_layouts_are_listed(lustre: Lustre) -> None:
    """A dry run lists the files that would get another layout, with both layouts; -v of a run lists the same."""
    tree = lustre.first / "tree"
    make(lustre, tree / "one", plain(1, MIB), 10)
    make(lustre, tree / "below" / "four", plain(4, MIB), 3 * MIB)
    make(lustre, tree / "fits", plain(2, 2 * MIB), 10)
    make(lustre, tree / "omitted", plain(1, MIB), 10)
    os.symlink("one", tree / "link")
    words = ("--stripe", "2:2M", "--exclude", "omitted", tree)
    changes = {
        f"{tree}/one": "layout 1 stripe of 1 MiB -> 2 stripes of 2 MiB",
        f"{tree}/below/four": "layout 4 stripes of 1 MiB -> 2 stripes of 2 MiB",
    }
    skipped = [f"{tree}/{name}" for name in ("fits", "link", "omitted")]
    metas = sorted(f"meta {change} {path}" for path, change in changes.items())
    for options in (("--dry-run",), ("--dry-run=all",), ("--dry-run", "-vv")):
        lines = pstripe(lustre, *options, *words).stdout.decode().splitlines()
        assert sorted(line for line in lines if line.startswith("meta ")) == metas
        listed = [line for line in lines if line.startswith("skip ")]
        assert sorted(listed) == ([f"skip {path}" for path in skipped] if len(options[-1]) != 9 else [])
        assert ("  not listed: 3 items that are skipped (--dry-run=all lists all)" in lines) == (not listed)
    done = pstripe(lustre, "-v", *words)
    assert sorted(line for line in done.stderr.decode().splitlines() if line.startswith("meta ")) == metas, show(done)


def test_pstripe_auto_keeps_progressive_layouts(lustre: Lustre) -> None:
    tree = build(lustre)
    reported = report(lustre, "--stripe", "auto", tree)
    assert reported["restriped"] == 3  # the files four, empty and holes
    growing = lustre.shown(tree / "below" / "growing")
    assert growing is not None and growing.composite


def test_file_open_for_writing_is_reported_and_not_restriped(lustre: Lustre, area: Path) -> None:
    tree = build(lustre)
    before = copied(tree, area / "before")
    with (tree / "below" / "four").open("ab"):
        reported = pstripe(lustre, "-n", 2, "--stripe", "2", tree)
    assert reported.returncode == 1, show(reported)
    assert b"another process has it open for writing: its layout is not changed" in reported.stderr
    got, other = lustre.shown(tree / "again"), lustre.shown(tree / "one")
    assert got is not None and got.count == 4 and other is not None and other.count == 2
    unchanged(tree, before)


def test_file_changed_during_restriping_keeps_its_layout(lustre: Lustre, area: Path) -> None:
    """Lustre reports the change when layouts are swapped: here the contents change at the last moment."""
    tree = build(lustre)
    before = copied(tree, area / "before")
    reported = pstripe(lustre, "-n", 1, "--stripe", "2", tree, refuse=("swap",))
    assert reported.returncode == 1, show(reported)
    assert reported.stderr.count(b"it has changed meanwhile: its layout is not changed") == 4, show(reported)
    unchanged(tree, before)


def test_overlapping_paths_are_restriped_once(lustre: Lustre) -> None:
    """Two ranks with the same file would wait for each other, and report that another process writes to it."""
    tree = build(lustre)
    reported = report(lustre, "-n", 3, "--stripe", "2", tree / "one", tree / "below", tree, tree / "below" / "four")
    assert (reported["restriped"], reported["failed"]) == (4, 0)  # holes has 2 already
    got = lustre.shown(tree / "one")
    assert got is not None and got.count == 2


def test_file_with_many_hard_links_is_restriped_once(lustre: Lustre) -> None:
    tree = lustre.first / "names"
    for number in range(4):
        make(lustre, tree / f"file{number}", plain(1, MIB), 10 * MIB)
        for directory in "abc":
            (tree / directory).mkdir(exist_ok=True)
            os.link(tree / f"file{number}", tree / directory / f"link{number}")
    were = inodes(tree)
    reported = report(lustre, "-n", 4, "--stripe", "3", tree)
    assert (reported["restriped"], reported["failed"]) == (4, 0)
    assert reported["layouts"] == [{"layout": "3 stripes of 1 MiB", "files": 4, "bytes": 40 * MIB}]
    assert inodes(tree) == were


def test_killed_pstripe_leaves_files_unchanged_and_nothing_behind(lustre: Lustre, area: Path) -> None:
    """The run is killed when the temporary file is complete and layouts are not swapped yet (which takes several steps
    in the stand-in)."""
    require_strace()
    tree = lustre.first / "tree"
    for number in range(20):
        make(lustre, tree / str(number), plain(1, MIB), MIB)
    for path in (*tree.iterdir(), tree):
        os.utime(path, (10**9, 10**9))
    before, were = copied(tree, area / "before"), inodes(tree)
    words, environment = ("-q", "--stripe", "2", tree), lustre.environment(pools=POOLS)
    for times in (1, 4, 2):
        calls, when = ("fsync",), str(times)
        with held(
            area / f"log{times}", *words, calls=calls, when=when, program="pstripe", ranks=1, env=environment
        ) as run_:
            run_.run.kill_all()
            run_.run.process.communicate(timeout=60)
        assert inodes(tree) == were
        unchanged(tree, before)
    counts = [got.count for path in tree.iterdir() if (got := lustre.shown(path)) is not None]
    assert sorted(counts) == [1] * 16 + [2] * 4
    report(lustre, "--stripe", "2", tree)
    counts = [got.count for path in tree.iterdir() if (got := lustre.shown(path)) is not None]
    assert counts == [2] * 20
    unchanged(tree, before)


def test_target_of_a_symlink_that_replaced_a_file_is_not_restriped(lustre: Lustre, area: Path) -> None:
    """The owner replaces the file by a link to another file after pstripe has opened the directory."""
    require_strace()
    tree, secret = lustre.first / "tree", lustre.first / "secret"
    make(lustre, tree / "file", plain(1, MIB), 9 * MIB)
    make(lustre, secret, plain(1, MIB), 9 * MIB)
    words, environment = ("--json", "--stripe", "2", tree), lustre.environment(pools=POOLS)
    calls = ("openat",)
    with held(area / "log", *words, calls=calls, path=tree, program="pstripe", ranks=1, env=environment) as run_:
        (tree / "file").rename(tree / "other")
        (tree / "file").symlink_to(secret)
        ended = run_.go_on()
    found = json.loads(ended.stdout)
    got = lustre.shown(secret)
    assert got is not None and got.count == 1
    assert found["found"] == found["files"] + found["directories"] + found["skipped"] + found["failed"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("more", [(), ("--in-flight", "4"), ("--exclude", "no such name")])
def test_each_item_of_a_deep_and_wide_tree_is_counted_once(ranks: int, more: tuple[str, ...], lustre: Lustre) -> None:
    """40 levels are more than one call of the backend opens; 300 names are more than it lists of a directory below."""
    tree = lustre.first / "tree"
    deepest = tree / "chain" / "/".join(["d"] * 40)
    deepest.mkdir(parents=True)
    for directory, number in ((deepest, 2), (tree / "wide" / "below", 300), (tree / "wide" / "empty", 0), (tree, 3)):
        directory.mkdir(parents=True, exist_ok=True)
        for each in range(number):
            (directory / f"f{each}").write_bytes(b"x" * each)
    (tree / "wide" / "link").symlink_to("below")
    os.link(tree / "f2", tree / "wide" / "again")
    listed = subprocess.run(["find", tree, "-printf", "%y %s\\n"], check=True, capture_output=True, text=True).stdout
    kinds = [line.split() for line in listed.splitlines()]
    found = report(lustre, "-n", ranks, *more, tree)
    assert found["directories"] == sum(kind == "d" for kind, _ in kinds)
    assert found["found"] == len(kinds)
    assert found["files"] + found["skipped"] == sum(kind != "d" for kind, _ in kinds)
    assert found["bytes"] == sum(int(size) for kind, size in kinds if kind == "f") - 2  # the second name of an inode
    assert found["failed"] == 0
