"""Standard streams that are closed, full or gone: every file is copied, and the status tells the truth."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, command, succeed
from tests.support.faults import slowed
from tests.support.oracle import differences
from tests.support.processes import background, wait_for_temporary
from tests.support.walk import temporaries

FILES = 300


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source").mkdir()
    for number in range(FILES):
        (area / f"source/{number}").write_bytes(b"x" * number)
    return area / "source"


def shell(
    redirections: str, *arguments: str | Path, ranks: int | None = 2, program: str = "pcopy"
) -> subprocess.CompletedProcess[bytes]:
    """The command with ``redirections`` or a pipe behind it; the status is the command's own."""
    line, environment = command(*arguments, ranks=ranks, program=program)
    environment.pop("PYTHONUNBUFFERED", None)  # with a buffer there is something left to write at exit
    script = f"{shlex.join(str(os.fsdecode(word)) for word in line)} {redirections}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "redirections",
    ["| head -0", "2>&1 | head -0", ">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full", "2>&1 --progress plain | head -c 1"],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_streams_that_are_gone_do_not_matter(area: Path, source: Path, redirections: str, ranks: int) -> None:
    run = shell(redirections, source, area / "copy", ranks=ranks)
    assert run.returncode == 0, run
    assert b"Traceback" not in run.stderr and b"Exception" not in run.stderr, run
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_summary_that_is_lost_is_no_success(area: Path, source: Path, options: list[str]) -> None:
    run = shell(">/dev/full", *options, source, area / "copy")
    assert run.returncode == 1, run
    assert run.stderr.splitlines()[-1] == b"pcopy: standard output cannot be written: No space left on device"
    assert b"Traceback" not in run.stderr
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_differences_that_are_lost_are_trouble(area: Path, source: Path, options: list[str]) -> None:
    (area / "empty").mkdir()
    run = shell(">/dev/full", "-q", *options, area / "empty", source, program="pverify")
    assert run.returncode == 2, run
    assert run.stderr == b"pverify: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirections", [">&-", ">/dev/full"])
@pytest.mark.parametrize("question", ["--jobs", "--version", "--help"])
def test_an_answer_that_is_lost_is_no_success(question: str, redirections: str) -> None:
    run = shell(redirections, question, ranks=None)
    assert run.returncode == 1
    assert run.stderr.startswith(b"pcopy: standard output cannot be written: ")


def test_errors_keep_their_status_without_a_standard_error(area: Path, source: Path) -> None:
    assert shell("2>&-", area / "missing", area / "copy").returncode == 2
    assert shell(">&- 2>/dev/full", area / "missing", area / "copy").returncode == 2
    (area / "copy").mkdir()
    (area / "copy/source").mkdir()
    (area / "copy/source/7").write_bytes(b"here")
    assert shell("2>&-", "--existing", "fail", source, area / "copy").returncode == 1


def test_closed_descriptors_are_taken_by_no_other_file() -> None:
    program = (
        "import os\n"
        "from pcopy.report.streams import standard_streams\n"
        "with standard_streams():\n"
        "    os._exit(os.open('/', os.O_RDONLY))\n"
    )
    script = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], cwd=REPOSITORY, check=False).returncode >= 3


def test_what_is_meant_for_the_user_never_lands_in_a_copy(area: Path, source: Path) -> None:
    """A closed descriptor 2 is the first that an open file gets."""
    (area / "copy/7").mkdir(parents=True)
    (area / "copy/7/full").write_bytes(b"")
    run = shell(">&- 2>&- <&-", f"{source}/", area / "copy", ranks=1)
    assert run.returncode == 1
    for number in set(range(FILES)) - {7}:
        assert (area / f"copy/{number}").read_bytes() == b"x" * number


@pytest.mark.parametrize("kept", [True, False])
def test_a_terminal_that_is_closed_stops_the_job_in_order(area: Path, kept: bool) -> None:
    with open(area / "large", "wb") as file:
        for _ in range(160):
            file.write(b"x" * (1 << 20))
    (area / "copy").mkdir()
    options = ["--chunk-size", "16M", *([] if kept else ["--checkpoint", "none"])]
    state = {"XDG_STATE_HOME": str(area / "state")}
    slow = slowed("pwrite64", 12, "-DDD")  # strace in another session: the command is the one with the terminal
    line, environment = command(*options, area / "large", area / "copy", ranks=2, env=state, wrap=slow)
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(os.fsencode(line[0]), [os.fsencode(word) for word in line], {**environment, "TERM": "xterm"})
    try:
        while not temporaries(os.fsencode(area / "copy")):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(terminal)  # the kernel sends SIGHUP
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if kept:  # though nobody can be told so
        assert status == 75
        succeed("--resume", env=state)
        assert os.listdir(area / "copy") == ["large"]
    else:
        assert status == 128 + signal.SIGHUP
        assert os.listdir(area / "copy") == []


def test_nohup_keeps_a_job_alive(area: Path) -> None:
    with open(area / "large", "wb") as file:
        for _ in range(160):
            file.write(b"x" * (1 << 20))
    (area / "copy").mkdir()
    wrap = [*slowed("pwrite64", 6), "nohup"]
    with background("--chunk-size", "16M", area / "large", area / "copy", ranks=2, wrap=wrap) as run:
        wait_for_temporary(run, os.fsencode(area / "copy"))
        for pid in run.processes():
            os.kill(pid, signal.SIGHUP)
        assert run.end(30) == 0
    assert differences(area / "large", area / "copy/large") == []
