"""Closed or full standard streams: every file is copied, and the exit status is right."""

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
    """Run the command followed by ``redirections`` or a pipe. Return the status of the command itself."""
    line, environment = command(*arguments, ranks=ranks, program=program)
    environment.pop("PYTHONUNBUFFERED", None)  # buffered output is written only at exit
    script = f"{shlex.join(str(os.fsdecode(word)) for word in line)} {redirections}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "redirections",
    ["| head -0", "2>&1 | head -0", ">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full", "2>&1 --progress plain | head -c 1"],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_closed_or_full_standard_streams_do_not_affect_the_copy(
    area: Path, source: Path, redirections: str, ranks: int
) -> None:
    run = shell(redirections, source, area / "copy", ranks=ranks)
    assert run.returncode == 0, run
    assert b"Traceback" not in run.stderr and b"Exception" not in run.stderr, run
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_lost_summary_is_an_error(area: Path, source: Path, options: list[str]) -> None:
    run = shell(">/dev/full", *options, source, area / "copy")
    assert run.returncode == 1, run
    assert run.stderr.splitlines()[-1] == b"pcopy: standard output cannot be written: No space left on device"
    assert b"Traceback" not in run.stderr
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_lost_differences_are_an_error(area: Path, source: Path, options: list[str]) -> None:
    (area / "empty").mkdir()
    run = shell(">/dev/full", "-q", *options, area / "empty", source, program="pverify")
    assert run.returncode == 2, run
    assert run.stderr == b"pverify: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("redirections", [">&-", ">/dev/full"])
@pytest.mark.parametrize("question", ["--jobs", "--version", "--help"])
def test_lost_answer_is_an_error(question: str, redirections: str) -> None:
    run = shell(redirections, question, ranks=None)
    assert run.returncode == 1
    assert run.stderr.startswith(b"pcopy: standard output cannot be written: ")


def test_exit_status_is_kept_without_standard_error(area: Path, source: Path) -> None:
    assert shell("2>&-", area / "missing", area / "copy").returncode == 2
    assert shell(">&- 2>/dev/full", area / "missing", area / "copy").returncode == 2
    (area / "copy").mkdir()
    (area / "copy/source").mkdir()
    (area / "copy/source/7").write_bytes(b"here")
    assert shell("2>&-", "--existing", "fail", source, area / "copy").returncode == 1


def test_closed_standard_descriptors_are_not_reused() -> None:
    program = (
        "import os\n"
        "from pcopy.report.streams import tolerant_standard_streams\n"
        "with tolerant_standard_streams():\n"
        "    os._exit(os.open('/', os.O_RDONLY))\n"
    )
    script = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], cwd=REPOSITORY, check=False).returncode >= 3


def test_messages_are_never_written_into_a_copied_file(area: Path, source: Path) -> None:
    """A file opened while descriptor 2 is closed would get that number."""
    (area / "copy/7").mkdir(parents=True)
    (area / "copy/7/full").write_bytes(b"")
    run = shell(">&- 2>&- <&-", f"{source}/", area / "copy", ranks=1)
    assert run.returncode == 1
    for number in set(range(FILES)) - {7}:
        assert (area / f"copy/{number}").read_bytes() == b"x" * number


@pytest.mark.parametrize("kept", [True, False])
def test_closed_terminal_stops_the_job_in_order(area: Path, kept: bool) -> None:
    with open(area / "large", "wb") as file:
        for _ in range(160):
            file.write(b"x" * (1 << 20))
    (area / "copy").mkdir()
    options = ["--chunk-size", "16M", *([] if kept else ["--checkpoint", "none"])]
    state = {"XDG_STATE_HOME": str(area / "state")}
    slow = slowed("pwrite64", 12, "-DDD")  # strace runs in another session, so that the command has the terminal
    line, environment = command(*options, area / "large", area / "copy", ranks=2, env=state, wrap=slow)
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(os.fsencode(line[0]), [os.fsencode(word) for word in line], {**environment, "TERM": "xterm"})
    try:
        while not temporaries(os.fsencode(area / "copy")):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(terminal)  # the operating system sends SIGHUP
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if kept:  # the job is stored although no message can be printed
        assert status == 75
        succeed("--resume", env=state)
        assert os.listdir(area / "copy") == ["large"]
    else:
        assert status == 128 + signal.SIGHUP
        assert os.listdir(area / "copy") == []


def test_job_under_nohup_ignores_sighup(area: Path) -> None:
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
