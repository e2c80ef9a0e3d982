"""Refused commands: status 2, one line that names the path, and no changes."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.support.command import pcopy, show
from tests.support.faults import Fault
from tests.support.oracle import changes, snapshot
from tests.support.users import require_root

# Case: (arguments relative to the area, what the message must name).
CASES: dict[str, tuple[list[str], str]] = {
    "missing source": (["missing", "new"], "missing"),
    "missing source into a directory": (["missing", "empty"], "missing"),
    "missing contents": (["missing/", "new"], "missing"),
    "one of two sources missing": (["file", "missing", "empty"], "missing"),
    "file with a slash": (["file/", "new"], "file/"),
    "file with a slash into a directory": (["file/", "empty"], "file/"),
    "symlink to a file, with a slash": (["link-to-file/", "new"], "link-to-file"),
    "dangling symlink with a slash": (["dangling/", "new"], "dangling"),
    "file to an absent directory": (["file", "new/"], "new"),
    "parent of the target is missing": (["source", "no/new"], "no"),
    "parent of a file's target is missing": (["file", "no/new"], "no"),
    "parent is missing, contents": (["source/", "no/new"], "no"),
    "parent of the target is a file": (["source", "file/new"], "file"),
    "several sources, target absent": (["file", "source", "new"], "new"),
    "several sources, target a file": (["source", "other", "file"], "file"),
    "several sources, target dangling": (["file", "source", "dangling"], "dangling"),
    "equal basenames": (["source/inner", "other/inner", "empty"], "inner"),
    "same source twice": (["file", "file", "empty"], "file"),
    "directory to a file": (["source", "file"], "file"),
    "contents to a file": (["source/", "file"], "file"),
    "directory to a symlink to a file": (["source", "link-to-file"], "link-to-file"),
    "directory to a dangling symlink": (["source", "dangling"], "dangling"),
    "contents to a dangling symlink": (["source/", "dangling"], "dangling"),
    "no target directory, to a symlink to a file": (["-T", "source", "link-to-file"], "link-to-file"),
    "no target directory with several sources": (["-T", "file", "source", "empty"], ""),
    "hard link of the target": (["file", "hard-link"], "hard-link"),
    "hard link of the target, in a directory": (["other/file", "."], "file"),
    "source is the target, file": (["file", "file"], "file"),
    "source is the target, by its directory": (["file", "."], "file"),
    "source is the target, directory": (["source", "."], "source"),
    "source is the target, contents": (["source/", "source"], "source"),
    "source is the target, contents of dot": (["source/.", "source/"], "source"),
    "source is the target, -T": (["-T", "source", "source"], "source"),
    "source is the target, spelled otherwise": (["source/", "source/sub/.."], "source"),
    "source is the target, through a symlink": (["source/", "link-to-source"], "link-to-source"),
    "file is the target, through a symlink": (["source/inner", "link-to-source"], "inner"),
    "target inside the source": (["source", "source/new"], "source/new"),
    "target inside the source, existing": (["source", "source/sub"], "source/sub"),
    "target inside the source, deeper": (["source", "source/sub/new"], "source/sub/new"),
    "target inside the source, contents": (["source/", "source/sub"], "source/sub"),
    "target inside the source, contents to new": (["source/", "source/new"], "source/new"),
    "target inside the source, through a symlink": (["source/", "link-to-sub"], "link-to-sub"),
    "target inside the second source": (["other", "source", "source/sub"], "source/sub"),
    "directory into itself": (["source", "source"], "source"),
    "target inside dot": ([".", "source"], "source"),
    "target a FIFO": (["file", "fifo"], "cat file > fifo"),
    "target a FIFO, -T": (["-T", "file", "fifo"], "cat file > fifo"),
    "target a link to a FIFO": (["file", "link-to-fifo"], "cat file > link-to-fifo"),
    "target a FIFO, source one, too": (["other-fifo", "fifo"], "fifo"),
    "target a FIFO, source with a space": (["a file", "fifo"], "cat 'a file' > fifo"),
    "target a FIFO, several sources": (["file", "other", "fifo"], "fifo: a FIFO, which is not replaced; name another"),
    "target a socket": (["file", "socket"], "socket: a socket, which is not replaced; name another DST"),
    "target a FIFO, with a slash": (["file", "fifo/"], "fifo/: not a directory; name another DST"),
    "target on another host": (["file", "ann@host:file"], "ann@host:file: on another host?"),
    "target on another host, deeper": (["source", "ann@host:/srv/data"], "ann@host:/srv/data: on another host?"),
    "source on another host": (["ann@host:file", "new"], "ann@host:file: on another host?"),
    "source on another host, without a user": (["host:/srv", "new"], "host:/srv: does not exist; on another host?"),
    "target on another host, without a user": (["source", "host:/srv"], "host: does not exist; on another host?"),
    "target of rsync's daemon": (["source", "rsync://host/srv"], "on another host?"),
}


@pytest.fixture
def place(area: Path) -> Path:
    for name in ("source/sub", "other", "empty"):
        (area / name).mkdir(parents=True)
    for name in ("file", "a file", "source/inner", "other/inner"):
        (area / name).write_bytes(name.encode())
    os.link(area / "file", area / "hard-link")
    os.link(area / "file", area / "other/file")
    for name in ("fifo", "other-fifo"):
        os.mkfifo(area / name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(area / "socket"))
    (area / "link-to-fifo").symlink_to("fifo")
    targets = {"link-to-file": "file", "dangling": "nowhere", "link-to-source": "source", "link-to-sub": "source/sub"}
    for name, target in targets.items():
        (area / name).symlink_to(target)
    return area


@pytest.mark.parametrize("case", CASES)
def test_refused_command_changes_nothing_and_names_the_cause(place: Path, case: str) -> None:
    arguments, named = CASES[case]
    before = snapshot(place)
    run = pcopy(*arguments, cwd=place)
    assert run.returncode == 2, show(run)
    assert len(run.stderr.strip().splitlines()) == 1, show(run)
    assert named.encode() in run.stderr, show(run)
    assert b"Traceback" not in run.stderr, show(run)
    assert run.stdout == b"", show(run)
    assert changes(before, snapshot(place)) == []


def test_device_as_target_is_refused(place: Path) -> None:
    """The test creates its own device nodes: without the refusal a file would replace them."""
    require_root("make a device")
    os.mknod(place / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 255))
    os.mknod(place / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (place / "by-id").symlink_to("disk")
    before = snapshot(place)
    for source, target, advice in (
        ("file", "disk", b"dd if=file of=disk bs=4M"),
        ("file", "by-id", b"dd if=file of=by-id bs=4M"),
        ("file", "null", b"cat file > null"),
        ("source", "disk", b"disk: "),
    ):
        run = pcopy(source, target, cwd=place)
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert advice in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert changes(before, snapshot(place)) == []


def test_descriptor_link_as_target_is_refused(place: Path) -> None:
    """/dev/stdout is such a link: a copy would replace it for the whole machine."""
    (place / "out").symlink_to("/proc/self/fd/3")
    (place / "to-out").symlink_to(place / "out")
    (place / "fd").symlink_to("/proc/self/fd")
    (place / "kept").touch()
    before = snapshot(place)
    with_descriptor = ("sh", "-c", 'exec "$@" 3>> kept', "sh")
    for target in ("out", "to-out", "fd/3"):
        run = pcopy("file", target, cwd=place, wrap=with_descriptor)
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert b"cat file > %s\n" % target.encode() in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert changes(before, snapshot(place)) == []
    into_directory = ("sh", "-c", 'exec "$@" 3< empty', "sh")
    run = pcopy("file", "out", cwd=place, wrap=into_directory)
    assert run.returncode == 0 and (place / "empty" / "file").read_bytes() == b"file", show(run)


def test_explicit_or_existing_name_with_a_colon_is_local(place: Path) -> None:
    for words in (["file", "./ann@host:file"], ["file", "ann@host:file"], ["ann@host:file", "b"], ["file", "10:30"]):
        assert pcopy(*words, cwd=place).returncode == 0, words
    (place / "bob@host:dir").mkdir()
    assert pcopy("file", "bob@host:dir/new", cwd=place).returncode == 0
    names = ("ann@host:file", "b", "10:30", "bob@host:dir/new")
    assert {(place / name).read_bytes() for name in names} == {b"file"}


@pytest.mark.parametrize("words", [["-n", "4000"], ["--checkpoint", "JOB"]])
def test_refused_command_keeps_the_errors_of_an_earlier_run(place: Path, words: list[str]) -> None:
    """These commands are refused late: too few descriptors, or the job cannot be stored."""
    errors = place / "errors.jsonl"
    errors.write_text("{}\n")
    job = place / "job"
    job.mkdir()
    (job / "thesis").touch()
    words = [os.fspath(job) if word == "JOB" else word for word in words]
    run = pcopy(*words, "--errors", errors, "file", "new", cwd=place, wrap=["prlimit", "--nofile=512"])
    assert run.returncode == 2 and run.stdout == b"" and len(run.stderr.splitlines()) == 1, show(run)
    assert errors.read_text() == "{}\n" and os.listdir(job) == ["thesis"]


def test_refusal_under_mpi_is_printed_once(place: Path) -> None:
    before = snapshot(place)
    run = pcopy("missing", "new", cwd=place, launcher="mpi", ranks=3)
    assert run.returncode == 2, show(run)
    assert run.stderr.count(b"missing") == 1, show(run)
    assert changes(before, snapshot(place)) == []


def test_control_characters_in_names_are_escaped(place: Path) -> None:
    run = pcopy(b"missing\n\x1b[2J\xff", "new", cwd=place)
    assert run.returncode == 2, show(run)
    assert len(run.stderr.strip().splitlines()) == 1, show(run)
    assert b"\x1b" not in run.stderr, show(run)
    assert b"\xff" not in run.stderr, show(run)


def test_failed_fork_of_ranks_leaves_no_job(area: Path) -> None:
    """The job directory, created before the fork, is removed. The errors file of an earlier job is kept."""
    (area / "source").mkdir()
    old = '{"path": "old"}\n'
    (area / "errors").write_text(old)
    fault = Fault(area / "log", ["clone", "fork"], None, "EAGAIN")
    words = ("--checkpoint", area / "job", "--errors", area / "errors", area / "source", area / "copy")
    run = pcopy(*words, ranks=2, wrap=fault.wrap())
    fault.check()
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert b"2 ranks can't be started here" in run.stderr, show(run)
    assert not (area / "job").exists() and not (area / "copy").exists()
    assert (area / "errors").read_text() == old
