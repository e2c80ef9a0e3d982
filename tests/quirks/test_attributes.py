"""Attributes that one side cannot read, set or represent: the item is copied with all other metadata, and without wider
permissions."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcopy.jobs import lifecycle
from tests.support.attributes import ACCESS_ACL, acl
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.files import write
from tests.support.oracle import differences
from tests.support.quirks import quirky
from tests.support.users import NOBODY, require_root

BACKENDS = pytest.mark.parametrize("backend", ["c", "python"])
MOMENT = 1_600_000_000
SIZES = {"small": 10, "below/small": 3000, "below/large": 6 << 20, "below/deeper/small": 1}

Run = Callable[..., Completed]


def tree(root: Path) -> None:
    """Create files of all methods of copying, directories, a symbolic link, a FIFO and a hard link, all with the same
    time."""
    for name, size in SIZES.items():
        write(root / name, b"x" * size)
    os.symlink("small", root / "link")
    os.mkfifo(root / "below/fifo")
    os.link(root / "small", root / "below/further")
    dated(root)


def dated(root: Path) -> None:
    for path in (*root.rglob("*"), root):
        os.utime(path, (MOMENT, MOMENT), follow_symlinks=False)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def totals(run: Completed, *, last: bool = False) -> dict[str, Any]:
    """Return the JSON object of any program, with 0 for missing counts; ``last``: it follows other output."""
    reported: dict[str, Any] = json.loads(run.stdout.splitlines()[-1] if last else run.stdout)
    return defaultdict(int, reported)


def by_pcopy(run: Run, source: Path, target: Path) -> Completed:
    return run("--json", f"{source}/", target)


def by_psync(run: Run, source: Path, target: Path) -> Completed:
    return run("--json", f"{source}/", target, program="psync")


def by_ptar(run: Run, source: Path, target: Path) -> Completed:
    """Archive with ptar and unpack with GNU tar; return the run of ptar."""
    archive = target.parent / "archive.tar"
    made = run("-c", "--json", "-f", archive, "-C", source, ".", program="ptar")
    target.mkdir()
    subprocess.run(["tar", "-x", "-p", "-f", archive, "-C", target], check=True)
    return made


def by_unpacking(run: Run, source: Path, target: Path) -> Completed:
    archive = target.parent / "archive.tar"
    subprocess.run(["tar", "-c", "--acls", "--xattrs", "-f", archive, "-C", source, "."], check=True)
    target.mkdir()
    return run("-x", "--json", "-f", archive, "-C", target, program="ptar")


def by_pbcast(run: Run, source: Path, target: Path) -> Completed:
    target.mkdir()
    return run("--json", source / "below/small", source / "below/large", target, program="pbcast")


TREES = {"pcopy": by_pcopy, "psync": by_psync, "ptar": by_ptar, "pbcast": by_pbcast}
WRITERS = {"pcopy": by_pcopy, "psync": by_psync, "unpacking": by_unpacking, "pbcast": by_pbcast}


def with_backend(backend: str, *wrap: str) -> Run:
    def run(*words: Any, **options: Any) -> Completed:
        ranks = None if options.get("program") == "pbcast" else 2
        return pcopy(*words, ranks=ranks, env={"PCOPY_BACKEND": backend}, wrap=wrap, **options)

    return run


@BACKENDS
@pytest.mark.parametrize("way", TREES)
@pytest.mark.parametrize("quirk", ["listxattr=E2BIG", "getxattr=EPERM"])
def test_item_with_unreadable_attributes_is_copied_and_counted_as_failed(
    area: Path, quirk: str, way: str, backend: str
) -> None:
    tree(area / "source")
    if quirk.startswith("getxattr"):
        for path in (area / "source/below", area / "source/below/small"):
            os.setxattr(path, "user.name", b"value")
            os.utime(path, (MOMENT, MOMENT))
    with quirky(area / "source", quirk) as source:
        run = TREES[way](with_backend(backend), source, area / "copy")
    reported = totals(run)
    assert (run.returncode, reported["exit_status"]) == (1, 1), show(run)
    assert reported["failed"] > 0, show(run)
    assert reported["found"] == reported["failed"] + reported["skipped"] + sum(
        reported[kind] for kind in ("files", "directories", "symlinks", "special", "hardlinks")
    ), show(run)
    assert quirk.partition("=")[0].encode() in run.stderr, show(run)
    if way == "pbcast":
        expected = {name: (area / "source/below" / name).read_bytes() for name in ("small", "large")}
        assert contents(area / "copy") == expected
        return
    assert contents(area / "copy") == contents(area / "source")
    for name in ("", "below", "below/deeper", "below/small", "below/large", "link", "below/fifo"):
        one, other = (os.lstat(area / side / name) for side in ("source", "copy"))
        kind = (one.st_mode, one.st_mtime)
        assert kind == (other.st_mode, other.st_mtime), name


@BACKENDS
def test_comparison_continues_below_unreadable_attributes(area: Path, backend: str) -> None:
    tree(area / "source")
    tree(area / "copy")
    write(area / "source/below/deeper/new", b"x")
    with quirky(area / "source", "listxattr=EPERM") as source:
        options = ("--json", "--compare", "size,content,xattr")
        run = with_backend(backend)(*options, source, area / "copy", program="pverify")
    assert run.returncode == 2, show(run)
    reported = totals(run, last=True)
    assert (reported["found"], reported["only_a"], reported["common"], reported["failed"]) == (11, 1, 0, 10), show(run)
    assert b"listxattr: Operation not permitted" in run.stderr, show(run)


@BACKENDS
@pytest.mark.parametrize("way", WRITERS)
def test_acl_that_cannot_be_set_does_not_affect_other_metadata(area: Path, way: str, backend: str) -> None:
    """The mode grants the group the permissions of its own ACL entry, not those of the mask."""
    tree(area / "source")
    names = ["below/small", "below/large"] + (["below", "below/fifo"] if way != "pbcast" else [])
    for name in names:
        path = area / "source" / name
        mode = 7 if path.is_dir() else 6
        os.setxattr(path, ACCESS_ACL, acl(mode, 4, 4, {NOBODY: 6}))
        os.utime(path, (MOMENT, MOMENT))
    (area / "backing").mkdir()
    with quirky(area / "backing", "setxattr=EOPNOTSUPP") as mounted:
        run = WRITERS[way](with_backend(backend), area / "source", mounted / "copy")
        reported = totals(run)
        assert (run.returncode, reported["failed"]) == (1, len(names)), show(run)
        for name in names:
            status = os.stat(mounted / "copy" / (Path(name).name if way == "pbcast" else name))
            assert stat.S_IMODE(status.st_mode) == (0o744 if name == "below" else 0o644), name
            assert status.st_mtime == MOMENT, name
    assert all(each in contents(area / "source").values() for each in contents(area / "backing/copy").values())


@BACKENDS
@pytest.mark.parametrize("words", [("xattr,acl",), ("acl",), ("acl,mode",)])
def test_copy_without_acl_grants_no_wider_permissions(area: Path, words: tuple[str], backend: str) -> None:
    tree(area / "source")
    lent = {"below/small": (4, {NOBODY: 6}), "below/large": (4, {NOBODY: 6}), "below/fifo": (4, {NOBODY: 6})}
    denied = {"small": (6, {NOBODY: 0})}
    for name, (group, users) in {**lent, **denied, "below": (4, {NOBODY: 7})}.items():
        os.setxattr(area / "source" / name, ACCESS_ACL, acl(7 if name == "below" else 6, group, 4, users))
    run = with_backend(backend)("--json", "--no-preserve", *words, f"{area}/source/", area / "copy")
    assert run.returncode == 0, show(run)
    modes = {name: stat.S_IMODE(os.stat(area / "copy" / name).st_mode) for name in (*lent, *denied, "below")}
    assert modes == {**dict.fromkeys(lent, 0o644), "small": 0o600, "below": 0o744}


@BACKENDS
def test_mode_that_was_copied_too_wide_is_corrected(area: Path, backend: str) -> None:
    write(area / "source/file", b"x")
    os.setxattr(area / "source/file", ACCESS_ACL, acl(6, 4, 4, {NOBODY: 6}))
    shutil.copytree(area / "source", area / "copy")
    os.removexattr(area / "copy/file", ACCESS_ACL)
    (area / "copy/file").chmod(0o674)
    run = with_backend(backend)("--json", "--no-preserve", "acl", f"{area}/source/", area / "copy", program="psync")
    assert run.returncode == 0, show(run)
    assert stat.S_IMODE(os.stat(area / "copy/file").st_mode) == 0o644


@BACKENDS
@pytest.mark.parametrize("way", ["pcopy", "psync", "pbcast"])
@pytest.mark.parametrize("name", ["com.apple.FinderInfo", "gpfs.WinAttrs"])
def test_attribute_of_another_system_causes_one_warning(area: Path, name: str, way: str, backend: str) -> None:
    tree(area / "source")
    with quirky(area / "source", f"foreign={name}") as source:
        run = WRITERS[way](with_backend(backend), source, area / "copy")
    reported = totals(run)
    assert (run.returncode, reported["failed"], reported["warnings"]) == (0, 0, int(way != "pbcast")), show(run)
    assert (
        reported["excused"] == reported["files"] + reported["directories"] + reported["symlinks"] + reported["special"]
    ), show(run)
    assert run.stderr.count(name.encode()) == 1, show(run)
    if way != "pbcast":
        assert differences(area / "source", area / "copy") == []


@BACKENDS
@pytest.mark.parametrize("quirk", ["fixed_mode=0755", "fixed_owner=65534"])
def test_special_files_are_copied_where_the_server_fixes_modes_or_owners(area: Path, quirk: str, backend: str) -> None:
    require_root("make devices")
    (area / "source").mkdir()
    os.mkfifo(area / "source/fifo")
    os.mknod(area / "source/socket", stat.S_IFSOCK | 0o600)
    os.mknod(area / "source/device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (area / "backing").mkdir()
    with quirky(area / "backing", quirk) as mounted:
        run = with_backend(backend)("--json", f"{area}/source/", mounted / "copy")
        assert (run.returncode, totals(run)["special"]) == (0, 3), show(run)
    kinds = {path.name: stat.S_IFMT(os.lstat(path).st_mode) for path in (area / "backing/copy").iterdir()}
    assert kinds == {"fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK, "device": stat.S_IFCHR}


@BACKENDS
def test_symlink_times_that_cannot_be_set_cause_one_warning(area: Path, backend: str) -> None:
    (area / "source").mkdir()
    for name in ("one", "two", "three"):
        os.symlink("nowhere", area / "source" / name)
    (area / "backing").mkdir()
    with quirky(area / "backing", "utimens=EOPNOTSUPP") as mounted:
        run = with_backend(backend)("--json", f"{area}/source/", mounted / "copy")
    reported = totals(run)
    assert (reported["symlinks"], reported["excused"], reported["warnings"], reported["failed"]) == (3, 3, 1, 1), show(
        run
    )
    assert run.stderr.count(b"symbolic links is left out") == 1, show(run)


@BACKENDS
@pytest.mark.parametrize("program", ["pcopy", "psync", "ptar"])
def test_summary_counts_excused_items_and_warnings(area: Path, program: str, backend: str) -> None:
    (area / "source").mkdir()
    for name in ("one", "two", "three"):
        os.symlink("nowhere", area / "source" / name)
    (area / "backing/copy").mkdir(parents=True)
    subprocess.run(["tar", "-cf", area / "archive.tar", "-C", area / "source", "one", "two", "three"], check=True)
    with quirky(area / "backing", "utimens=EOPNOTSUPP") as mounted:
        words = ["-x", "-f", area / "archive.tar", "-C"] if program == "ptar" else ["-T", f"{area}/source/"]
        run = with_backend(backend)(*words, mounted / "copy", program=program)
    remark = b"  besides: 3 excused (owner, group or attributes that cannot be set), 1 warning"
    assert remark in run.stdout.splitlines(), show(run)


@BACKENDS
@pytest.mark.parametrize("program", ["psync", "pcopy"])
def test_second_run_changes_no_ctime_of_files(area: Path, program: str, backend: str) -> None:
    """FUSE, like NFS and CIFS, has no unnamed files."""
    tree(area / "source")
    os.setxattr(area / "source/below/small", ACCESS_ACL, acl(6, 4, 4, {NOBODY: 6}))
    dated(area / "source")
    (area / "backing").mkdir()
    with quirky(area / "backing", "setxattr=EOPNOTSUPP") as mounted:
        policy = ("--existing", "changed") if program == "pcopy" else ()
        words = ("--json", *policy, f"{area}/source/", mounted / "copy")
        ctimes = []
        for _ in range(2):
            run = with_backend(backend)(*words, program=program)
            assert run.returncode == 1, show(run)
            files = [path for path in (mounted / "copy").rglob("*") if not path.is_dir()]
            ctimes.append({path: os.lstat(path).st_ctime_ns for path in files})
    assert ctimes[0] == ctimes[1]


def test_destination_clock_is_read_without_changing_the_destination(area: Path) -> None:
    (area / "backing/copy").mkdir(parents=True)
    with quirky(area / "backing") as mounted:
        before = os.stat(mounted / "copy").st_ctime_ns
        root = SimpleNamespace(target=os.fsencode(mounted / "copy"))
        job: Any = SimpleNamespace(options=SimpleNamespace(sequential=False), roots=[root], name="job")
        assert lifecycle._destination_clock_time(job) >= before
        assert os.stat(mounted / "copy").st_ctime_ns == before
        left = area / "backing/.pcopy-job-clock"  # by a run that was killed before it had removed the file
        left.touch()
        created = os.stat(left).st_ctime_ns
        assert lifecycle._destination_clock_time(job) > created
        assert os.listdir(area / "backing") == ["copy"]


IN_NAMESPACE = ("unshare", "--user", "--mount", "--map-root-user")


@BACKENDS
@pytest.mark.parametrize("way", WRITERS)
def test_ids_that_a_user_namespace_lacks_are_excused(area: Path, way: str, backend: str) -> None:
    require_root("give files to others")
    tree(area / "source")
    for path in (area / "source").rglob("*"):
        os.chown(path, 1234, 0, follow_symlinks=False)
    dated(area / "source")
    run = with_backend(backend, *IN_NAMESPACE)
    done = WRITERS[way](run, area / "source", area / "copy")
    reported = totals(done)
    assert (done.returncode, reported["failed"]) == (0, 0), show(done)
    assert reported["excused"] == (2 if way == "pbcast" else 8), show(done)
    if way != "pbcast":
        assert differences(area / "source", area / "copy", ownership=False) == []
    if way == "psync":
        before = {path: os.lstat(path).st_ctime_ns for path in (area / "copy").rglob("*")}
        again = by_psync(run, area / "source", area / "copy")
        assert (again.returncode, totals(again)["mended"]) == (0, 0), show(again)
        assert before == {path: os.lstat(path).st_ctime_ns for path in (area / "copy").rglob("*")}


@BACKENDS
def test_owner_is_set_under_fakeroot(area: Path, backend: str) -> None:
    require_root("drop capabilities")
    if shutil.which("fakeroot") is None:
        pytest.skip("there is no fakeroot here")
    tree(area / "source")
    wrap = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "fakeroot", "-s", str(area / "owners"))
    words = ("--json", "--chown", "1234:77", f"{area}/source/", area / "copy")
    run = pcopy(*words, ranks=2, env={"PCOPY_BACKEND": backend}, wrap=wrap)
    assert (run.returncode, totals(run)["failed"]) == (0, 0), show(run)
    paths = map(str, (area / "copy").rglob("*"))
    asked = ["fakeroot", "-i", str(area / "owners"), "stat", "-c", "%u:%g", *paths]
    owners = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert set(owners) == {"1234:77"}


UNMAPPED = {
    "pcopy": (["--chown", "5"], "user 5", "uid_map"),
    "psync": (["--chown", "0:7"], "group 7", "gid_map"),
    "pchmod": (["--owner", "5:7"], "user 5", "uid_map"),
    "pchmod, group": (["--group", "7"], "group 7", "gid_map"),
}


@pytest.mark.parametrize("which", UNMAPPED)
def test_owner_that_a_user_namespace_lacks_is_refused_at_the_start(area: Path, which: str) -> None:
    require_root("give files to others")
    tree(area / "source")
    words, named, file = UNMAPPED[which]
    program = which.partition(",")[0]
    paths: list[Argument] = [area / "source"] if program == "pchmod" else [f"{area}/source/", area / "copy"]
    before = {path: os.lstat(path).st_ctime_ns for path in (area / "source").rglob("*")}
    run = pcopy(*words, *paths, program=program, ranks=1, wrap=IN_NAMESPACE)
    assert run.returncode == 2, show(run)
    assert run.stderr.count(b"\n") == 1, show(run)
    assert f"the user namespace does not map {named}; name one that /proc/self/{file} has".encode() in run.stderr
    assert not (area / "copy").exists()
    assert before == {path: os.lstat(path).st_ctime_ns for path in (area / "source").rglob("*")}


@pytest.mark.parametrize("wrap", [(), ("fakeroot",)], ids=["mapped", "fakeroot"])
def test_owner_that_can_be_set_in_a_user_namespace_is_accepted(area: Path, wrap: tuple[str, ...]) -> None:
    require_root("use a user namespace as root")
    if wrap and shutil.which("fakeroot") is None:
        pytest.skip("there is no fakeroot here")
    tree(area / "source")
    owner = "5:7" if wrap else "0:0"
    words = ("--json", "--chown", owner, f"{area}/source/", area / "copy")
    run = pcopy(*words, ranks=1, wrap=(*IN_NAMESPACE, *wrap))
    assert (run.returncode, totals(run)["failed"]) == (0, 0), show(run)
