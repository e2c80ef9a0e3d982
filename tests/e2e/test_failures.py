"""Failed items: each is reported with path, operation and errno, all others are copied, and the exit status is 1."""

from __future__ import annotations

import base64
import errno
import importlib.util
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import REPOSITORY, Completed, pcopy, pverify, show, succeed, summary
from tests.support.faults import READS, WRITES, Fault
from tests.support.files import noise
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.users import NOBODY, is_root, require_root
from tests.support.walk import paths, temporaries


def failures(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an ``--errors`` file, after checking each against the documented format."""
    reported = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for line in reported:
        assert line.keys() >= {"path", "path_b64", "operation", "errno", "message"}
        assert isinstance(line["errno"], int) and line["operation"] and line["message"], line
        assert line["path"].isprintable(), line
        base64.b64decode(line["path_b64"], validate=True)
    return reported


def assert_single_failure(run: Completed, errors: Path, name: bytes, number: int) -> dict[str, Any]:
    """Assert status 1 and a single failure of ``name`` with errno ``number``, shown on stderr as well; return it."""
    assert run.returncode == 1, show(run)
    reported = failures(errors)
    assert len(reported) == 1, reported
    path = base64.b64decode(reported[0]["path_b64"])
    assert path.rsplit(b"/", 1)[-1] == name, reported
    assert reported[0]["errno"] == number, reported
    assert name in run.stderr and os.strerror(number).encode() in run.stderr, show(run)
    assert reported[0]["operation"].encode() in run.stderr, show(run)
    assert summary(run)["failed"] == 1
    return reported[0]


@pytest.fixture
def source(area: Path) -> Path:
    """Thirty small files in three directories, and one more file ``victim``."""
    for number in range(30):
        path = area / f"source/{number % 3}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number * 100)
    (area / "source/1/victim").write_bytes(b"victim" * 1000)
    return area / "source"


def assert_only_lost(source: Path, copy: Path, *lost: str) -> None:
    """Assert that ``copy`` is faithful except for ``lost`` items; their directories still have the right metadata."""
    reported = differences(source, copy)
    assert [line for line in reported if not any(name in line for name in lost)] == []


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_item_unreadable_for_an_ordinary_user_fails(area: Path, source: Path, kind: str, ranks: int) -> None:
    if kind == "directory":
        (source / "1/victim").unlink()
        (source / "1/victim").mkdir()
        (source / "1/victim/inside").write_bytes(b"x")
    (source / "1/victim").chmod(0)
    into = area / "into"
    into.mkdir()
    into.chmod(0o777)
    try:
        run = pcopy("--json", "--errors", into / "errors", source, into / "copy", ranks=ranks, user=NOBODY)
        assert_single_failure(run, into / "errors", b"victim", errno.EACCES)
        reported = summary(run)
        assert (reported["files"], reported["directories"]) == (30, 4)
        assert not (into / "copy/1/victim/inside").exists()
        if is_root():  # an ordinary user cannot read the item to compare it
            unlike = differences(source, into / "copy", ownership=False)
            assert [line for line in unlike if "victim" not in line] == []
    finally:
        (source / "1/victim").chmod(0o700)


@pytest.mark.parametrize("ranks", [1, 2])
def test_read_error_fails_the_file(area: Path, source: Path, ranks: int) -> None:
    fault = Fault(area / "trace", READS, source / "1/victim", "EIO")
    run = pcopy("--json", "--errors", area / "e", source, area / "copy", ranks=ranks, wrap=fault.wrap())
    fault.check()
    assert_single_failure(run, area / "e", b"victim", errno.EIO)
    assert not (area / "copy/1/victim").exists()
    assert_only_lost(source, area / "copy", "victim")


def test_temporary_read_error_is_retried(area: Path, source: Path) -> None:
    """A file server returns EIO once during a failover."""
    fault = Fault(area / "trace", READS, source / "1/victim", "EIO", when="1")
    succeed(source, area / "copy", ranks=1, wrap=fault.wrap())
    fault.check()
    assert differences(source, area / "copy") == []


def test_read_error_fails_the_large_file(area: Path, source: Path) -> None:
    (source / "1/victim").write_bytes(noise(40 << 20))
    fault = Fault(area / "trace", READS, source / "1/victim", "EIO", when="2+")
    run = pcopy(
        "--json", "--errors", area / "e", "--chunk-size", "16M", source, area / "copy", ranks=2, wrap=fault.wrap()
    )
    fault.check()
    assert_single_failure(run, area / "e", b"victim", errno.EIO)
    assert not (area / "copy/1/victim").exists()
    assert temporaries(os.fsencode(area / "copy")) == []
    assert_only_lost(source, area / "copy", "victim")


@pytest.mark.parametrize("when", ["1+", "2+"])
def test_error_while_reading_a_directory_fails_it(area: Path, source: Path, when: str) -> None:
    """An error is not the end of the directory: an incomplete copy must not look complete."""
    fault = Fault(area / "trace", ("getdents64", "getdents"), source / "1", "EIO", when=when)
    run = pcopy("--json", "--errors", area / "e", source, area / "copy", ranks=1, wrap=fault.wrap())
    fault.check()
    assert_single_failure(run, area / "e", b"1", errno.EIO)
    for number in ("0", "2"):
        assert differences(source / number, area / "copy" / number) == []


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        (("close",), "EIO"),
        (("close",), "EDQUOT"),
        (("fchmod", "fchmodat", "fchmodat2"), "EPERM"),
        (("utimensat",), "EPERM"),
        (("fchown", "fchownat"), "EIO"),
        (WRITES, "EIO"),
        (WRITES, "ENOSPC"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_error_at_the_destination_fails_the_file(area: Path, source: Path, calls: tuple[str, ...], error: str) -> None:
    """None of these errors may be ignored: close reports an exceeded quota, and a missing mode may expose the file."""
    copy = area / "copy"
    if "fchown" in calls:
        require_root("own files of others")
        os.chown(source / "1/victim", NOBODY, NOBODY)
    fault = Fault(area / "trace", calls, copy / "1/victim", error)
    run = pcopy("--json", "--errors", area / "e", source, copy, ranks=2, wrap=fault.wrap())
    fault.check()
    assert_single_failure(run, area / "e", b"victim", getattr(errno, error))
    assert_only_lost(source, copy, "victim")
    # A file under the final name is complete.
    if (copy / "1/victim").exists():
        assert (copy / "1/victim").read_bytes() == (source / "1/victim").read_bytes()
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("sizes", [[100_000] * 300, [60 << 20], [5 << 20] * 10], ids=["small", "large", "middle"])
def test_full_destination_leaves_no_partial_files(area: Path, sizes: list[int], ranks: int) -> None:
    source = area / "source"
    source.mkdir()
    for number, size in enumerate(sizes):
        (source / str(number)).write_bytes(os.urandom(size))
    with mounted("tmpfs", area, size=20 << 20) as full:
        run = pcopy("--force", "--errors", area / "errors", source, full / "copy", ranks=ranks)
        assert run.returncode in (1, 75), show(run)
        assert os.strerror(errno.ENOSPC).encode() in run.stderr, show(run)
        assert {line["errno"] for line in failures(area / "errors")} <= {0, errno.ENOSPC}
        assert_complete_or_absent(source, full / "copy")


@pytest.mark.parametrize("ranks", [1, 3])
def test_full_destination_stops_a_job_with_hard_links(area: Path, ranks: int) -> None:
    """The job stops and reports why. Items in progress on other ranks at that moment are not counted."""
    source = area / "source"
    source.mkdir()
    for number in range(200):
        (source / f"{number}").write_bytes(os.urandom(100_000))
        os.link(source / f"{number}", source / f"{number}-again")
    with mounted("tmpfs", area, size=10 << 20) as full:
        run = pcopy("--force", "--json", "--errors", area / "errors", source, full / "copy", ranks=ranks)
        assert run.returncode == 75, show(run)
        assert {line["errno"] for line in failures(area / "errors")} == {errno.ENOSPC}
        reported = json.loads(run.stdout)
        there = len(os.listdir(full / "copy"))
        assert reported["files"] + reported["hardlinks"] == there or (ranks > 1 and 0 < reported["files"] < there), (
            show(run)
        )
        assert_complete_or_absent(source, full / "copy")


def test_full_destination_keeps_the_old_content(area: Path) -> None:
    source = area / "source"
    source.mkdir()
    with mounted("tmpfs", area, size=20 << 20) as full:
        (full / "copy").mkdir()
        for name in ("small", "large"):
            (full / "copy" / name).write_bytes(b"old content")
        (full / "fill").write_bytes(b"x" * (12 << 20))
        (source / "large").write_bytes(noise(40 << 20))
        run = pcopy("--force", f"{source}/", full / "copy", ranks=2)
        assert run.returncode in (1, 75), show(run)
        assert (full / "copy/large").read_bytes() == b"old content"
        assert temporaries(os.fsencode(full)) == []


def test_destination_without_free_inodes_leaves_no_partial_files(area: Path, source: Path) -> None:
    with mounted("tmpfs", area, options="nr_inodes=20") as full:
        run = pcopy("--force", source, full / "copy", ranks=2)
        assert run.returncode in (1, 75), show(run)
        assert_complete_or_absent(source, full / "copy")


def assert_complete_or_absent(source: Path, copy: Path) -> None:
    """Assert that each file under a final name is complete, and that no temporary file remains."""
    assert temporaries(os.fsencode(copy)) == []
    for path in paths(os.fsencode(copy)):
        name = os.fsdecode(path)
        if stat.S_ISREG((copy / name).lstat().st_mode):
            assert (copy / name).read_bytes() == (source / name).read_bytes(), name


def test_errors_file_holds_unprintable_names(area: Path) -> None:
    (area / "copy").mkdir()
    (area / "source").mkdir()
    name = b"line\nbreak \xff\x1b[2J"
    for tree in ("source", "copy"):
        with open(os.path.join(os.fsencode(area / tree), name), "wb") as file:
            file.write(tree.encode())
    run = pcopy("--json", "--existing", "fail", "--errors", area / "e", f"{area}/source/", area / "copy")
    assert run.returncode == 1, show(run)
    (reported,) = failures(area / "e")
    assert base64.b64decode(reported["path_b64"]).endswith(b"/" + name)
    assert b"\x1b" not in run.stderr and b"line\nbreak" not in run.stderr, show(run)


def test_errors_file_is_empty_or_absent_after_success(area: Path, source: Path) -> None:
    succeed("--errors", area / "errors", source, area / "copy")
    assert not (area / "errors").exists() or (area / "errors").read_bytes() == b""


@pytest.fixture
def conflicts(area: Path) -> Path:
    """300 files that exist in the target: with ``--existing fail`` each of them fails."""
    for tree in ("source", "copy"):
        (area / tree).mkdir()
        for number in range(300):
            (area / tree / str(number)).write_bytes(tree.encode())
    return area


def test_first_hundred_errors_are_printed_and_all_are_written_to_the_file(conflicts: Path) -> None:
    errors = conflicts / "errors"
    run = pcopy("--existing", "fail", "--errors", errors, f"{conflicts}/source/", conflicts / "copy", ranks=2)
    assert run.returncode == 1, show(run)
    reported = failures(errors)
    assert len({line["path_b64"] for line in reported}) == len(reported) == 300
    shown = [line for line in run.stderr.splitlines() if b"source/" in line or b"copy/" in line]
    assert 100 <= len(shown) <= 105, show(run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_max_errors_stops_the_job(conflicts: Path, ranks: int) -> None:
    # The remaining files would take long; the job must stop without waiting for them.
    run = pcopy(
        "--json", "--existing", "fail", "--max-errors", "5", f"{conflicts}/source/", conflicts / "copy", ranks=ranks
    )
    assert run.returncode == 75, show(run)
    assert b"error" in run.stderr, show(run)


def test_fewer_errors_than_max_errors_do_not_stop_the_job(conflicts: Path) -> None:
    run = pcopy(
        "--json", "--existing", "fail", "--max-errors", "301", f"{conflicts}/source/", conflicts / "copy", ranks=2
    )
    assert run.returncode == 1, show(run)
    assert summary(run)["failed"] == 300


def test_errors_file_needs_no_codec_module(area: Path, source: Path) -> None:
    """If the module of a codec is inaccessible, Python reports an unknown encoding."""
    codec = importlib.util.find_spec("encodings.ascii")
    assert codec is not None and codec.origin is not None
    fault = Fault(area / "trace", ["stat", "newfstatat", "statx"], Path(codec.origin), "EACCES")
    run = pcopy("--errors", area / "errors", source, area / "copy", wrap=fault.wrap())
    assert run.returncode == 0, show(run)


@pytest.mark.parametrize(
    "part", ["cli/program", "report/streams", "launch/launcher", "launch/run", "tools/copy", "text"]
)
@pytest.mark.parametrize("module", ["pcopy", "pverify"])
def test_unloadable_program_module_is_reported_in_one_line(area: Path, source: Path, part: str, module: str) -> None:
    """If a module's file is inaccessible, Python reports that there is no such module."""
    if module == "pverify" and part == "tools/copy":
        pytest.skip("pverify does not load it")
    fault = Fault(area / "trace", ["stat", "newfstatat", "statx"], REPOSITORY / f"pcopy/{part}.py", "EIO")
    words = (source, area / "copy") if module == "pcopy" else (source, source)
    run = (pcopy if module == "pcopy" else pverify)(*words, wrap=fault.wrap(), real=True)
    fault.check()
    assert run.returncode == 2, show(run)
    (line,) = run.stderr.decode().splitlines()
    begin = "" if part == "text" else f"cannot begin: {REPOSITORY}/pcopy: "
    advice = "install pcopy again" if part == "text" else "check the directory, or install pcopy again"
    assert line == f"{module}: {begin}files of pcopy are missing or cannot be read; {advice}", show(run)
    assert not (area / "copy").exists()


INTERRUPTED = {
    "mkdir": ["mkdir", "mkdirat"],
    "link": ["linkat"],
    "symlink": ["symlinkat"],
    "rename": ["rename", "renameat", "renameat2"],
    "chmod": ["chmod", "fchmod", "fchmodat"],
    "utimensat": ["utimensat"],
}


@pytest.mark.parametrize("calls", INTERRUPTED)
def test_interrupted_system_calls_are_retried(area: Path, calls: str) -> None:
    """Each of the calls occurs: one file is replaced, a directory is created, and all other items are new."""
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    (source / "file").write_bytes(b"file")
    (source / "directory/file").write_bytes(b"file")
    for name in ("one name", "other name"):
        os.link(source / "directory/file", source / name)
    (source / "symlink").symlink_to("file")
    copy.mkdir(mode=0o700)
    (copy / "file").write_bytes(b"older")
    fault = Fault(area / "log", INTERRUPTED[calls], copy, "EINTR", when="1")
    succeed("--checkpoint", "none", f"{source}/", copy, ranks=1, wrap=fault.wrap())
    fault.check()
    assert differences(source, copy) == []
