"""``--stop-at-eof``: a program stops in order when the program that has started it closes its input, or ends."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pcopy.cli.filter_options import is_standard_input, may_be_standard_input
from pcopy.cli.pcopy import PCOPY
from pcopy.cli.programs import PROGRAMS
from pcopy.launch import interrupts
from tests.support.command import Argument, command, pcopy, pverify, show
from tests.support.faults import READS, Fault
from tests.support.processes import HANGS, wait_until

SLOWLY = ("--bwlimit", "2M", "--progress", "json", "--progress-interval", "0.1")
MIB = 1 << 20


@contextmanager
def started(*words: Argument, launcher: str | None = None, program: str = "pcopy") -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with a pipe as its standard input, and wait until it has printed a line of progress."""
    ranks = 2 if launcher else None
    line, environment = command("--stop-at-eof", *SLOWLY, *words, launcher=launcher, ranks=ranks, program=program)
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stderr
        for message in process.stderr:
            if message.startswith(b"{"):
                break
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source").mkdir()
    (area / "source/file").write_bytes(os.urandom(40 * MIB))
    return area / "source"


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_copy_stops_when_its_input_ends_and_is_kept(area: Path, source: Path, launcher: str | None) -> None:
    with started("--json", source, area / "copy", launcher=launcher) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.close()
        summary = json.loads(process.stdout.read())
        messages = process.stderr.read().decode()
        assert process.wait(HANGS) == 75, messages
    assert summary["exit_status"] == 75
    assert f"pcopy: to go on: pcopy --resume {summary['job']}\n" in messages
    assert "stopped by SIGTERM" in messages


@pytest.mark.parametrize(
    ("program", "action", "status"),
    [("pcopy", "data", 75), ("pverify", "data", 128 + signal.SIGTERM), ("pverify", "end", 128 + signal.SIGTERM)],
)
def test_input_that_holds_data_or_ends(area: Path, source: Path, program: str, action: str, status: int) -> None:
    (area / "other").mkdir()
    os.link(source / "file", area / "other/file")
    with started(source, area / ("other" if program == "pverify" else "copy"), program=program) as process:
        assert process.stdin
        if action == "data":
            process.stdin.write(b"x")
            process.stdin.flush()
        else:
            process.stdin.close()
        assert process.wait(HANGS) == status


def test_copy_does_not_outlive_a_starter_that_is_killed(area: Path, source: Path) -> None:
    line, environment = command("--stop-at-eof", *SLOWLY, source, area / "copy")
    starter = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stderr=open('messages', 'wb'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    words = [sys.executable, "-c", starter, *(os.fsdecode(word) for word in line)]
    with subprocess.Popen(words, env=environment, cwd=area, stdout=subprocess.PIPE) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        assert wait_until(lambda: b'{"time"' in (area / "messages").read_bytes())
        process.kill()
    assert wait_until(lambda: not Path(f"/proc/{child}").exists())
    assert b"pcopy: to go on: pcopy --resume " in (area / "messages").read_bytes()


def test_input_that_has_ended_before_the_start(area: Path, source: Path) -> None:
    run = pcopy("--stop-at-eof", source, area / "copy", real=True)  # its standard input is /dev/null
    assert run.returncode == -signal.SIGTERM, show(run)
    assert not (area / "copy").exists()


WITH_LISTS = ("pcopy", "ptar", "prm", "pchmod", "pwalk")
READERS = [
    *((program, option) for program in WITH_LISTS for option in ("--from", "--files-from")),
    *((program, "--exclude-from") for program in (*WITH_LISTS, "psync", "pverify", "pstripe")),
    ("ptar", "-T"),
]
"""The programs, and their options that read a file."""
OPERANDS = {"pchmod": ("--mode", "u+r", "tree"), "ptar": ("-c", "-f", "archive.tar"), "psync": ("tree", "copy")}


@pytest.mark.parametrize("value", ["-", "/dev/stdin", "/dev/fd/0"])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("program", "option"), READERS)
def test_another_reader_of_standard_input_is_refused(
    area: Path, program: str, option: str, joined: bool, value: str
) -> None:
    (area / "tree").mkdir()
    equals = "=" if option.startswith("--") else ""
    words = (f"{option}{equals}{value}",) if joined else (option, value)
    line, environment = command("--stop-at-eof", *words, *OPERANDS.get(program, ("tree",)), program=program)
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment, cwd=area, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stderr
        try:
            assert process.wait(HANGS) == 2
        finally:
            process.kill()
        message = process.stderr.read().decode()
    assert message == f"{program}: {option} reads standard input, and so does --stop-at-eof: name a file\n"
    assert os.listdir(area) == ["tree"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, (True, True)) for value in ("-", "/dev/stdin", "/dev/fd/0", "//dev//fd//00", "/proc/self/fd/0")),
        *((value, (False, True)) for value in ("a-", "/dev/fd/3/0", "stdin/stdin")),
        *((value, (False, False)) for value in ("", "0", "10", "a", "/dev/fd/3", "/dev/fd/10", "/dev/stdin2")),
    ],
)
def test_a_word_that_is_standard_input_may_be_it(value: str, expected: tuple[bool, bool]) -> None:
    assert (is_standard_input(value), may_be_standard_input(value)) == expected
    assert [may_be_standard_input(before + value) for before in ("--from=", "-T")] == [expected[1]] * 2


def test_value_that_is_no_file_to_read_is_accepted(area: Path) -> None:
    (area / "small").mkdir()
    for name in ("-", "kept"):
        (area / "small" / name).touch()
    line, environment = command("--stop-at-eof", "--exclude", "-", area / "small", area / "copy")
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        try:
            assert process.wait(HANGS) == 0
        finally:
            process.kill()
        assert process.stderr.read() == b""
    assert os.listdir(area / "copy") == ["kept"]


@pytest.mark.parametrize("program", ["pcopy", "pverify", "ptar"])
def test_closed_input_is_refused(area: Path, program: str) -> None:
    words = ("-c", "-f", area / "archive.tar", area) if program == "ptar" else (area, area / "copy")
    line, environment = command("--stop-at-eof", *words, program=program)
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *line]
    run = subprocess.run(shell, check=False, env=environment, capture_output=True, timeout=HANGS)
    assert run.returncode == 2
    assert run.stderr.decode() == f"{program}: --stop-at-eof: standard input is closed\n"
    assert os.listdir(area) == []


def test_all_programs_have_the_option() -> None:
    for program in PROGRAMS:
        run = pcopy("--help", program=program)
        assert b"--stop-at-eof" in run.stdout, program


def test_first_progress_is_printed_at_the_beginning_and_names_the_job(area: Path, source: Path) -> None:
    words = ("--progress", "json", "--progress-interval", "1000", "--bwlimit", "2M", "--json", source, area / "copy")
    line, environment = command(*words)
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        first = json.loads(next(message for message in process.stderr if message.startswith(b"{")))
        process.terminate()
        summary = json.loads(process.stdout.read())
    assert first["job"] == summary["job"] is not None
    unrecorded = pcopy("--progress", "json", "--checkpoint", "none", source, area / "second")
    assert json.loads(unrecorded.stderr.splitlines()[-1])["job"] is None


def test_verification_writes_its_failures_to_a_file(area: Path, source: Path) -> None:
    (area / "other").mkdir()
    shutil.copyfile(source / "file", area / "other/file")
    fault = Fault(area / "trace", READS, area / "other/file", "EREMOTEIO")
    run = pverify("--errors", area / "failed", source, area / "other", ranks=2, wrap=fault.wrap())
    assert run.returncode == 2, show(run)
    (failure,) = map(json.loads, (area / "failed").read_text().splitlines())
    assert base64.b64decode(failure["path_b64"]) == os.fsencode(area / "other/file")
    assert (failure["operation"], failure["errno"]) == ("read", errno.EREMOTEIO)


@pytest.mark.parametrize(("rank", "expected"), [("0", ["watched"]), ("1", [])])
def test_only_rank_0_watches_its_input(rank: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers pass their input to rank 0; other ranks may have /dev/null."""
    calls: list[str] = []

    def watch() -> bool:
        calls.append("watched")
        return True

    monkeypatch.setattr(interrupts, "stop_when_standard_input_ends", watch)
    for name, value in {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert PCOPY.main(["--stop-at-eof", "--version"]) == 0
    assert calls == expected
