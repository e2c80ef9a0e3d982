"""A program that is started while signals are blocked or ignored can be stopped, and ends after its caller. It has the
options of Python by which the caller is isolated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import pcopy
from tests.api.conftest import processes_with
from tests.support.command import REPOSITORY, command
from tests.support.processes import HANGS, PROMPT, wait_until
from tests.support.warm import TOKEN

STATES = {
    "SIGTERM blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
    "all blocked": "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())",
    "SIGTERM ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
}
"""What the caller does before it starts a program."""
CALLER = """
import signal, sys, threading, time
import pcopy

def start():
    {state}
    jobs.append(pcopy.start(pcopy.copy, sys.argv[1], sys.argv[2], bwlimit="4M", progress_interval=0.1, ranks=2))

jobs = []
thread = threading.Thread(target=start)
thread.start() if {in_thread} else start()
if {in_thread}:
    thread.join()
for event in jobs[0]:
    if isinstance(event, pcopy.Progress) and event.moved:
        break
print(jobs[0].pid, flush=True)
"""
STOP = """
jobs[0].stop()
try:
    jobs[0].wait({seconds})
except pcopy.Stopped as stopped:
    print(stopped.status, flush=True)
"""


@pytest.mark.parametrize("way", ["stop", "SIGKILL"])
@pytest.mark.parametrize(
    ("state", "in_thread"), [*((state, False) for state in STATES), ("SIGTERM blocked", True)], ids=str
)
def test_caller(area: Path, large: Path, state: str, in_thread: bool, way: str) -> None:
    code = CALLER.format(state=STATES[state], in_thread=in_thread)
    code += STOP.format(seconds=PROMPT) if way == "stop" else "time.sleep(1000)"
    words = [sys.executable, "-c", code, str(large), str(area / "copy")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as caller:
        assert caller.stdout
        program = int(caller.stdout.readline())
        try:
            if way == "SIGKILL":
                caller.kill()
            else:
                assert caller.stdout.readline() == b"75\n"
            assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)
        finally:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)
    (job,) = pcopy.jobs()
    assert job.state == "stopped"
    pcopy.discard(job)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["end of input", "signal"])
def test_command(area: Path, large: Path, state: str, way: str) -> None:
    line, environment = command(
        *("--stop-at-eof", "--bwlimit", "4M", "--progress", "json", "--progress-interval", "0.1", large, area / "copy")
    )
    code = f"import os, signal, sys\n{STATES[state]}\nos.execvp(sys.argv[1], sys.argv[1:])"
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", code, *line]
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stderr
        try:
            assert process.stderr.readline().startswith(b"{")
            process.stdin.close() if way == "end of input" else process.terminate()
            assert process.wait(HANGS) == 75
        finally:
            process.kill()


@pytest.mark.parametrize("state", STATES)
def test_caller_that_has_ended_before_the_program_is_loaded(area: Path, large: Path, state: str) -> None:
    """Its input ends before the program handles signals."""
    line, environment = command("--stop-at-eof", large, area / "copy")
    code = f"import os, signal, sys\n{STATES[state]}\nos.execvp(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", code, *line]
    null = subprocess.DEVNULL
    run = subprocess.run(words, check=False, env=environment, stdin=null, capture_output=True, timeout=HANGS)
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGTERM, b"", b"")
    assert not (area / "copy").exists()


FLAGS = [
    *("isolated", "ignore_environment", "no_user_site", "dont_write_bytecode", "dev_mode", "utf8_mode"),
    *("safe_path", "optimize"),
]
PRINT_FLAGS = f"import json, sys; print(json.dumps([int(getattr(sys.flags, name)) for name in {FLAGS}]))"


@pytest.mark.parametrize(
    "options",
    ["-I", "-E", "-s", "-B", "-X dev", "-X utf8", "-X utf8=0", "-P", "-E -s -B -X utf8=1", "-O", ""],
    ids=lambda options: options or "none",
)
def test_options_of_python(area: Path, options: str) -> None:
    (area / "child.py").write_text(PRINT_FLAGS)
    code = f"""
import sys
sys.path.insert(0, {os.fspath(REPOSITORY)!r})
from pcopy.api import process
process.CHILD = {str(area / "child.py")!r}
child = process.start_process("pcopy", [], [], None)
print(child.stdout.read().decode(), end="")
child.stdout.close(), child.stderr.close(), child.stdin.close(), child.wait()
{PRINT_FLAGS}
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    run = subprocess.run(
        [sys.executable, *options.split(), "-c", code], check=True, capture_output=True, env=environment, timeout=HANGS
    )
    assert run.stderr == b""
    child, caller = (dict(zip(FLAGS, json.loads(line), strict=True)) for line in run.stdout.splitlines())
    assert child == {**caller, "safe_path": 1, "optimize": 0}


@pytest.mark.parametrize("encoding", ["utf-16", "ascii:strict", "cp500"])
def test_encoding_of_the_standard_streams_of_the_caller(
    area: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    (area / "größe").write_bytes(b"contents")
    (area / "copy").mkdir()
    assert pcopy.copy(area / "größe", area / "copy").copied == 1
    assert {entry.path for entry in pcopy.walk(area / "copy")} == {
        os.fsencode(area / name) for name in ("copy", "copy/größe")
    }
    with pytest.raises(pcopy.Refused, match="größte"):
        pcopy.copy(area / "größte", area / "copy")
