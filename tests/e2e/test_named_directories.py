"""Each option and variable that names a directory: which links on the way to it are followed (``named_file``)."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.cli.config_keys import PROGRAMS
from pcopy.fsio.named_file import real_path, stable_directory_path
from tests.e2e.test_named_files import STRANGER, options_of
from tests.support.command import Completed, pcopy, show
from tests.support.processes import background, wait_until
from tests.support.users import require_root


class Row(NamedTuple):
    """A command line in which DIR is the directory, and the variables of its environment.

    ``is_job``: the directory must hold an unfinished job.
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
"""Options that name directories for which other rules hold."""


def line(row: Row, directory: str) -> tuple[list[str], dict[str, str]]:
    environment = {name: value.replace("DIR", directory) for name, value in row.environment.items()}
    return [word.replace("DIR", directory) for word in row.words], environment


def test_no_option_is_missing() -> None:
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


def unfinished(place: Path) -> None:
    """Leave a job in ``real/dir`` that has been stopped."""
    words = ("--bwlimit", "64K", "--checkpoint", place / "real/dir", "--checkpoint-interval", "0.1")
    (place / "src/large").write_bytes(os.urandom(4 << 20))
    with background(*words, f"{place}/src/", place / "dst", ranks=1) as run:
        assert wait_until(lambda: (place / "real/dir/job").exists() and (place / "real/dir/current").exists())
        run.send_signal(signal.SIGTERM)
        assert run.end(20) == 75


def run_of(place: Path, row: Row, directory: str, *more: str) -> Completed:
    words, environment = line(row, f"{place}/{directory}")
    return pcopy(*more, *words, program=row.program, cwd=place, env=environment)


def below(directory: Path) -> Iterator[str]:
    return (str(path.relative_to(directory)) for path in sorted(directory.rglob("*")))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("last", ["dir", ""])
def test_a_strangers_link_is_not_followed(place: Path, name: str, last: str) -> None:
    """Above the last component, and (a job's own directory is no link, whatever user owns that) as the last one."""
    require_root("make a link of another user")
    row = ROWS[name]
    if row.is_job:
        unfinished(place)
    os.chown(place / "link", STRANGER, -1, follow_symlinks=False)
    if "--jobs" in name:
        for directory in ("real/pcopy", "real/dir/pcopy"):
            (place / directory).mkdir(mode=0o700)
    before = [*below(place / "real")]
    run = run_of(place, row, f"link/{last}".rstrip("/"))
    assert run.returncode == 2 and b"Traceback" not in run.stderr, show(run)
    is_own = not last and (row.is_job or "--checkpoint" in name)
    assert (b"symbolic link" if is_own else b"is not followed") in run.stderr, show(run)
    assert [*below(place / "real")] == before and (place / "a").exists()
    if not row.is_job:
        assert [*below(place / "dst")] == []


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("case", ["own", "stranger's, insecure"])
def test_a_trusted_link_is_followed(place: Path, name: str, case: str) -> None:
    row = ROWS[name]
    words: tuple[str, ...] = ()
    if case != "own":
        require_root("make a link of another user")
        os.chown(place / "link", STRANGER, -1, follow_symlinks=False)
        words = ("--insecure-links",)
    if row.is_job:
        unfinished(place)
    run = run_of(place, row, "link/dir", *words)
    assert b"is not followed" not in run.stderr, show(run)
    if "--control" in name:
        assert run.returncode == 2 and b"the job is not running" in run.stderr, show(run)
    else:
        assert run.returncode == 0, show(run)


@pytest.mark.parametrize("name", ["pcopy --checkpoint", "pcopy XDG_STATE_HOME", "pcopy HOME"])
def test_state_directories_are_for_their_owner_alone(place: Path, name: str) -> None:
    """All that a job creates on the way to its directory has mode 0700, whatever the umask is."""
    words, environment = line(ROWS[name], f"{place}/real/dir/new/deeper")
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


def test_a_directory_that_is_replaced_leads_nowhere_else(area: Path) -> None:
    (area / "dir").mkdir()
    (area / "other").mkdir()
    with stable_directory_path(os.fsencode(area / "dir")) as held:
        (area / "dir").rename(area / "moved")
        os.symlink("other", area / "dir")
        Path(os.fsdecode(held), "file").touch()
    assert [*below(area)] == ["dir", "moved", "moved/file", "other"]


def test_what_is_missing_of_a_path_stays(area: Path) -> None:
    (area / "real").mkdir()
    os.symlink("real", area / "link")
    path = os.fsencode(area)
    for given, real in (
        (b"link/new/deeper/", b"real/new/deeper"),
        (b"link/new/../other", b"real/other"),
        (b"link", b"real"),
    ):
        assert real_path(os.path.join(path, given)) == os.path.join(path, real)
