"""Options and variables that name a directory: only trusted links on the path are followed (``fsio.named_file``)."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.cli.programs import PROGRAMS
from pcopy.fsio.named_file import real_path, rename_proof_directory_path
from tests.e2e.test_named_files import OTHER_USER, options_of
from tests.support.command import Completed, pcopy, show
from tests.support.processes import background, wait_until
from tests.support.users import require_root


class Row(NamedTuple):
    """A command line, in which DIR stands for the directory, and its environment variables.

    ``is_job`` is true if the directory must contain an unfinished job.
    """

    program: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = {}
    is_job: bool = False


COPIES = {"pcopy": ("-T", "src", "dst"), "psync": ("src/", "dst")}

ROWS = {
    **{
        f"{program} {option}": Row(program, (option, "DIR", *words))
        for program, words in COPIES.items()
        for option in ("--checkpoint", "--spool", "--backup")
    },
    **{
        f"{program} {option}": Row(program, (option, "DIR", *words), is_job=True)
        for program in COPIES
        for option, words in (("--resume", ("--bwlimit", "0")), ("--discard", ()), ("--control", ("bwlimit=0",)))
    },
    **{
        f"{program} {variable}": Row(program, words, {"XDG_STATE_HOME": "", variable: "DIR"})
        for program, words in COPIES.items()
        for variable in ("XDG_STATE_HOME", "HOME")
    },
    "pcopy --jobs XDG_STATE_HOME": Row("pcopy", ("--jobs",), {"XDG_STATE_HOME": "DIR"}),
    "pcopy TMPDIR": Row("pcopy", ("--files-from", "list", "src/", "dst"), {"TMPDIR": "DIR"}),
    "pcopy --spool, list": Row("pcopy", ("--spool", "DIR", "--files-from", "list", "src/", "dst")),
    "prm TMPDIR": Row("prm", ("--yes", "--from", "list"), {"TMPDIR": "DIR"}),
    "pchmod TMPDIR": Row("pchmod", ("--from", "list", "u+x"), {"TMPDIR": "DIR"}),
    "ptar TMPDIR": Row("ptar", ("-cf", "a.tar", "-T", "list"), {"TMPDIR": "DIR"}),
}

DESTINATIONS = {("ptar", "--directory"): "it is a DST: docs/operations/security.md, possible attackers"}
"""Options that name a directory and follow other rules."""


def command_line(row: Row, directory: str) -> tuple[list[str], dict[str, str]]:
    environment = {name: value.replace("DIR", directory) for name, value in row.environment.items()}
    return [word.replace("DIR", directory) for word in row.words], environment


def test_table_covers_every_path_option() -> None:
    named = {
        (program, option)
        for program in PROGRAMS
        for option, value in options_of(program)
        if value.partition("|")[0] in ("DIR", "JOB")
    }
    assert named == {tuple(name.split()) for name in ROWS if name.count(" ") == 1 and "--" in name} | {*DESTINATIONS}


@pytest.fixture
def place(area: Path) -> Path:
    os.chmod(area, 0o777)
    for name in ("src", "dst", "real"):
        (area / name).mkdir()
    (area / "real/dir").mkdir(mode=0o700)
    os.symlink("real", area / "link")
    (area / "src/a").write_text("a")
    (area / "list").write_text("a\n")
    (area / "a").write_text("a")
    return area


def leave_unfinished_job(place: Path) -> None:
    """Stop a job and leave it in ``real/dir``."""
    words = ("--bwlimit", "64K", "--checkpoint", place / "real/dir", "--checkpoint-interval", "0.1")
    (place / "src/large").write_bytes(os.urandom(4 << 20))
    with background(*words, f"{place}/src/", place / "dst", ranks=1) as run:
        assert wait_until(lambda: (place / "real/dir/job").exists() and (place / "real/dir/current").exists())
        run.send_signal(signal.SIGTERM)
        assert run.end(20) == 75


def run_row(place: Path, row: Row, directory: str, *more: str) -> Completed:
    words, environment = command_line(row, f"{place}/{directory}")
    return pcopy(*more, *words, program=row.program, cwd=place, env=environment)


def paths_below(directory: Path) -> Iterator[str]:
    return (str(path.relative_to(directory)) for path in sorted(directory.rglob("*")))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("last", ["dir", ""])
def test_link_of_another_user_is_not_followed(place: Path, name: str, last: str) -> None:
    """The link is the last component or one above it. A job directory itself may not be a link of any user."""
    require_root("make a link of another user")
    row = ROWS[name]
    if row.is_job:
        leave_unfinished_job(place)
    os.chown(place / "link", OTHER_USER, -1, follow_symlinks=False)
    if "--jobs" in name:
        for directory in ("real/pcopy", "real/dir/pcopy"):
            (place / directory).mkdir(mode=0o700)
    before = [*paths_below(place / "real")]
    run = run_row(place, row, f"link/{last}".rstrip("/"))
    assert run.returncode == 2 and b"Traceback" not in run.stderr, show(run)
    is_own = not last and (row.is_job or "--checkpoint" in name)
    assert (b"symbolic link" if is_own else b"is not followed") in run.stderr, show(run)
    assert [*paths_below(place / "real")] == before and (place / "a").exists()
    if not row.is_job:
        assert [*paths_below(place / "dst")] == []


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("case", ["own", "stranger's, insecure"])
def test_trusted_link_is_followed(place: Path, name: str, case: str) -> None:
    row = ROWS[name]
    words: tuple[str, ...] = ()
    if case != "own":
        require_root("make a link of another user")
        os.chown(place / "link", OTHER_USER, -1, follow_symlinks=False)
        words = ("--insecure-links",)
    if row.is_job:
        leave_unfinished_job(place)
    run = run_row(place, row, "link/dir", *words)
    assert b"is not followed" not in run.stderr, show(run)
    if "--control" in name:
        assert run.returncode == 2 and b"the job is not running" in run.stderr, show(run)
    else:
        assert run.returncode == 0, show(run)


@pytest.mark.parametrize("name", ["pcopy --checkpoint", "pcopy XDG_STATE_HOME", "pcopy HOME"])
def test_state_directories_are_accessible_only_to_their_owner(place: Path, name: str) -> None:
    """A job creates directories with mode 0700 and files with mode 0600, whatever the umask is."""
    words, environment = command_line(ROWS[name], f"{place}/real/dir/new/deeper")
    (place / "src/large").write_bytes(os.urandom(4 << 20))
    old = os.umask(0)
    try:
        with background("--bwlimit", "64K", *words, env=environment, cwd=place, ranks=1) as run:
            assert wait_until(lambda: [*(place / "real/dir").rglob("run-1/facts-0")] != [])
            found = [*(place / "real/dir").rglob("*")]
            modes = {stat.filemode(path.lstat().st_mode) for path in found}
            run.send_signal(signal.SIGTERM)
            assert run.end(20) == 75
    finally:
        os.umask(old)
    assert modes == {"drwx------", "-rw-------"}
    assert {path.lstat().st_uid for path in (place / "real/dir").rglob("*")} == {os.geteuid()}


def test_stable_path_still_leads_to_a_directory_replaced_by_a_link(area: Path) -> None:
    (area / "dir").mkdir()
    (area / "other").mkdir()
    with rename_proof_directory_path(os.fsencode(area / "dir")) as held:
        (area / "dir").rename(area / "moved")
        os.symlink("other", area / "dir")
        Path(os.fsdecode(held), "file").touch()
    assert [*paths_below(area)] == ["dir", "moved", "moved/file", "other"]


def test_real_path_keeps_missing_components(area: Path) -> None:
    (area / "real").mkdir()
    os.symlink("real", area / "link")
    path = os.fsencode(area)
    for given, real in (
        (b"link/new/deeper/", b"real/new/deeper"),
        (b"link/new/../other", b"real/other"),
        (b"link", b"real"),
    ):
        assert real_path(os.path.join(path, given)) == os.path.join(path, real)
