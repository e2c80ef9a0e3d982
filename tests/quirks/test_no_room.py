"""A directory or a project without space fails only its own items; a file system without space stops the job."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import command, native
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.filesystems import mounted
from tests.support.oracle import differences
from tests.support.quirks import quirky

MIB = 1 << 20
FILES = 12
NO_ROOM = b"No space left on device"


@pytest.fixture(autouse=True, params=["c", "python"])
def backend_of_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c":
        native.require()
    monkeypatch.setattr(command, "backend", request.param)


@pytest.fixture
def source(area: Path) -> Path:
    """Directories of small files, with a large file in each: ``crowded`` and its siblings."""
    source = area / "source"
    for directory in ("before", "crowded", "later"):
        (source / directory).mkdir(parents=True)
        for number in range(FILES):
            (source / directory / f"{number:02}").write_bytes(b"%d" % number * 500)
        (source / directory / "large").write_bytes(os.urandom(2 * MIB))
        (source / directory / "fifo").symlink_to("nowhere")
    return source


def totals(run: Completed) -> dict[str, int]:
    return dict(json.loads(run.stdout))


def test_members_below_a_directory_that_cannot_be_created_do_not_stop_the_job(area: Path) -> None:
    """Only the failure of the directory counts as lack of space; each member below it fails."""
    source, below = area / "source", area / "below"
    below.mkdir()
    (source / "top/deep").mkdir(parents=True)
    for number in range(600):
        (source / f"top/{number:03}").write_bytes(b"some")
        (source / f"top/deep/{number:03}").write_bytes(b"some")
    names = ["zzz", *(f"zz{number}" for number in range(5))]
    for name in names:
        (source / name).write_bytes(b"is unpacked")
    subprocess.run(["tar", "-C", source, "-cf", area / "archive.tar", "top", *names], check=True)
    with quirky(below, "mkdir=ENOSPC") as mounted:
        words: list[Argument] = ["--json", "--errors", area / "errors", "-x", "-f", area / "archive.tar"]
        run = pcopy(*words, "-C", mounted, program="ptar", ranks=2)
    assert (run.returncode, totals(run)["files"], totals(run)["failed"]) == (1, len(names), 1202), show(run)
    assert sorted(os.listdir(below)) == sorted(names)
    failures = list(map(json.loads, (area / "errors").read_text().splitlines()))
    assert len(failures) == 1202
    of_room = {
        failure["path"] for failure in failures if failure["message"].endswith(" are free in the file system now")
    }
    assert of_room == {f"{mounted}/top"}
    others = {(each["operation"], each["message"]) for each in failures if each["path"] not in of_room}
    assert others == {("open", "No space left on device: the directory top could not be created")}


PROGRAMS: dict[str, list[Argument]] = {"pcopy": ["-T"], "psync": [], "ptar": ["-x"]}


def fill(program: str, source: Path, made: Path, *options: Argument) -> Completed:
    """Run ``program`` so that ``made`` gets the contents of ``source``."""
    words: list[Argument] = ["--json", "--errors", source.parent / "errors", *options, *PROGRAMS[program]]
    if program == "ptar":
        archive = source.parent / "archive.tar"
        subprocess.run(["tar", "-C", source, "--format=posix", "-cf", archive, "."], check=True)
        made.mkdir(exist_ok=True)
        return pcopy(*words, "-f", archive, "-C", made, program=program, ranks=2)
    return pcopy(*words, f"{source}/", made, program=program, ranks=2)


def assert_others_were_copied(run: Completed, source: Path, made: Path, failed: int) -> None:
    """Check that only items in ``crowded`` have failed, and each failure names a cause."""
    assert run.returncode == 1, show(run)
    assert totals(run)["failed"] == failed, show(run)
    lines = [json.loads(line) for line in (source.parent / "errors").read_text().splitlines()]
    assert len(lines) == failed
    assert {Path(line["path"]).parent.name for line in lines} == {"crowded"}
    for directory in ("before", "later"):
        assert differences(source / directory, made / directory) == []
    assert list(made.rglob(".pcopy-*")) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_full_directory_fails_its_own_items_only(source: Path, program: str) -> None:
    below = source.parent / "below"
    below.mkdir()
    with quirky(below, "full=crowded") as point:
        run = fill(program, source, point / "made")
    assert_others_were_copied(run, source, below / "made", FILES + 2)
    assert NO_ROOM + b": in directory " in run.stderr, show(run)
    assert re.search(rb"/made/crowded; [0-9.]+ .iB are free in the file system now", run.stderr), show(run)


@pytest.fixture
def quota(area: Path) -> Iterator[Path]:
    """A directory on XFS, in which ``crowded`` belongs to a project with a small quota."""
    if not shutil.which("xfs_quota"):
        pytest.skip("there is no xfs_quota here")
    with mounted("xfs", area, size=320 * MIB, options="prjquota") as point:
        (point / "made/crowded/inner").mkdir(parents=True)
        for words in (f"project -s -p {point}/made/crowded 42", "limit -p bhard=32k 42"):
            subprocess.run(["xfs_quota", "-x", "-c", words, point], check=True, capture_output=True)
        yield point / "made"


@pytest.mark.parametrize("program", PROGRAMS)
def test_full_project_fails_its_own_items_only(source: Path, quota: Path, program: str) -> None:
    for number in range(5):  # more directories than may lack space in a row
        shutil.copytree(source / "before", source / f"crowded/inner/{number}")
    run = fill(program, source, quota)
    assert run.returncode == 1, show(run)
    assert re.search(NO_ROOM + rb": in project 42; [0-9.]+ .iB are free in the file system now", run.stderr), show(run)
    for directory in ("before", "later"):
        assert differences(source / directory, quota / directory) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_full_file_system_stops_the_job(source: Path, program: str) -> None:
    """There is never space for a large file: of two that fail at once, neither would fit after the removal of the
    other.

    The source has no small files: one could fail first, while another rank writes a large file.
    """
    for path in source.glob("*/[0-9]*"):
        path.unlink()
    with mounted("tmpfs", source.parent, size=2 * MIB - (128 << 10)) as point:
        run = fill(program, source, point / "made", *(["--force"] if program != "ptar" else []))
        assert run.returncode == 75, show(run)
        assert b"stopped early: " + NO_ROOM in run.stderr and b"and the item needs 2.00 MiB" in run.stderr, show(run)


def test_three_full_directories_in_a_row_stop_the_job(source: Path) -> None:
    below = source.parent / "below"
    below.mkdir()
    with quirky(below, "create=ENOSPC", "symlink=ENOSPC") as point:
        run = fill("pcopy", source, point / "made", "-n", "1")
    assert run.returncode == 75, show(run)
    assert b"3 directories, projects or owners in a row had no room" in run.stderr, show(run)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_system_without_inodes_stops_the_job(source: Path, program: str) -> None:
    with mounted("tmpfs", source.parent, size=32 * MIB, options=f"nr_inodes={FILES}") as point:
        run = fill(program, source, point / "made", *(["--force"] if program != "ptar" else []))
        assert run.returncode == 75, show(run)
        assert b"stopped early: " + NO_ROOM + b": no inode is free" in run.stderr, show(run)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_quota_is_named_as_the_reason(source: Path, program: str) -> None:
    """The file system of the quota has free space."""
    below = source.parent / "below"
    below.mkdir()
    with quirky(below, "create=EDQUOT") as point:
        run = fill(program, source, point / "made", "-n", "1")
    assert run.returncode in (1, 75), show(run)
    assert b"Disk quota exceeded: in directory " in run.stderr and b"; a quota is used up" in run.stderr, show(run)
    assert b"are free" not in run.stderr, show(run)


def test_a_full_state_directory_is_named(source: Path) -> None:
    with mounted("tmpfs", source.parent, size=16 << 10) as point:
        words: list[Argument] = [
            "--checkpoint-interval",
            "0.1",
            "--oplimit",
            "60",
            "-T",
            source,
            source.parent / "made",
        ]
        run = pcopy(*words, env={"XDG_STATE_HOME": str(point)}, ranks=2)
    assert run.returncode == 0, show(run)
    assert f"{point}/pcopy/".encode() in run.stderr and b"cannot be written: " + NO_ROOM in run.stderr, show(run)
    assert differences(source, source.parent / "made") == []
