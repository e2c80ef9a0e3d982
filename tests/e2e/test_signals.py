"""Runs that are stopped or lose a rank: they end soon with the right status and leave no processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pcopy.cli.pcopy import PCOPY
from tests.support.command import Argument, succeed
from tests.support.faults import slowed
from tests.support.files import same_contents
from tests.support.processes import PROMPT, Run, background, wait_for_temporary, wait_until
from tests.support.walk import temporaries

MIB = 1 << 20
GRACE = PROMPT
TRIES = 5
STOPPED = 75
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture
def source(area: Path) -> Iterator[Path]:
    """Yield a file of several chunks of 16 MiB."""
    with open(area / "source", "wb") as file:
        for _ in range(160):
            file.write(b"x" * MIB)
    (area / "copy").mkdir()
    yield area / "source"


@contextmanager
def copying(source: Path, copy: Path, *options: str, **more: Any) -> Iterator[Run]:
    """Yield a run that is copying and needs several more seconds even on a fast machine."""
    arguments: list[Argument] = [*options, "--chunk-size", "16M", source, copy]
    with background(*arguments, wrap=slowed("pwrite64", 12), **more) as run:
        wait_for_temporary(run, os.fsencode(copy))
        yield run


def checkpoint_options(kept: bool) -> list[str]:
    return [] if kept else ["--checkpoint", "none"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_the_run_in_order(area: Path, source: Path, number: signal.Signals, ranks: int) -> None:
    """Without a stored job, no temporary files remain."""
    copy = area / "copy"
    with copying(source, copy, "--checkpoint", "none", ranks=ranks) as run:
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 128 + number
        assert b"pcopy: stopped by %s; every file that has been copied is complete\n" % number.name.encode() in err
        assert b"--resume" not in err
        assert b"not reached" in out
        assert run.survivors() == []
    assert not (copy / "source").exists()
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_stopped_job_is_resumed_by_the_printed_command(
    area: Path, source: Path, number: signal.Signals, ranks: int
) -> None:
    """The resumed job uses the temporary file; afterwards neither it nor the job remains."""
    copy, state = area / "copy", {"XDG_STATE_HOME": str(area / "state")}
    with copying(source, copy, ranks=ranks, env=state) as run:
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == STOPPED, err
        assert b"pcopy: stopped by %s; every file that has been copied is complete\n" % number.name.encode() in err
        assert b"not reached" in out
        assert run.survivors() == []
    assert not (copy / "source").exists()
    (job,) = os.listdir(area / "state/pcopy")
    assert err.decode().splitlines()[-1] == f"pcopy: to go on: pcopy --resume {job}"
    assert all(f".pcopy-{job}-" in os.fsdecode(path) for path in temporaries(os.fsencode(copy)))
    succeed("--resume", job, env=state)
    assert same_contents(source, copy / "source")
    assert temporaries(os.fsencode(copy)) == []
    assert os.listdir(area / "state/pcopy") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("kept", [True, False])
def test_signal_to_one_rank_ends_all_ranks(area: Path, source: Path, number: signal.Signals, kept: bool) -> None:
    copy = area / "copy"
    with copying(source, copy, *checkpoint_options(kept), ranks=3) as run:
        os.kill(run.ranks()[-1], number)
        assert run.end(GRACE) == (STOPPED if kept else 128 + number)
        assert run.survivors() == []
    assert kept or temporaries(os.fsencode(copy)) == []


def test_second_sigint_ends_the_run_immediately(area: Path, source: Path) -> None:
    """One rank is stopped by SIGSTOP, so that the job cannot end in order."""
    with copying(source, area / "copy", ranks=3) as run:
        os.kill(run.ranks()[-1], signal.SIGSTOP)
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None
        run.send_signal(signal.SIGINT)
        assert run.end(GRACE) == 128 + signal.SIGINT
        assert run.survivors() == []


@pytest.mark.parametrize("kept", [True, False])
def test_signal_repeated_by_timeout_is_no_second_signal(area: Path, source: Path, kept: bool) -> None:
    """timeout(1) sends each signal to its command, and again to the process group.

    A busy machine may deliver the second one so late that it rightly counts: then the test tries again.
    """
    for attempt in range(TRIES):
        copy = area / f"copy-{attempt}"
        copy.mkdir()
        with copying(source, copy, *checkpoint_options(kept), ranks=2) as run:
            for _ in range(2):
                run.send_signal(signal.SIGINT)
                time.sleep(0.002)
            out, err = run.process.communicate(timeout=GRACE)
            assert run.survivors() == []
        if b"found = " in out:
            break
    assert b"found = " in out
    assert run.process.returncode == (STOPPED if kept else 128 + signal.SIGINT)
    assert err.count(b"pcopy: stopped by SIGINT") == 1
    assert kept or temporaries(os.fsencode(copy)) == []


def test_interrupt_before_the_job_starts_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(PCOPY, "_run_command_line", interrupted)
    assert PCOPY.main(["a", "b"]) == 128 + signal.SIGINT


@pytest.mark.parametrize("kept", [True, False])
def test_sigint_to_the_process_group_ends_all_ranks(area: Path, source: Path, kept: bool) -> None:
    """A terminal sends SIGINT to the whole group on Ctrl-C."""
    copy = area / "copy"
    with copying(source, copy, *checkpoint_options(kept), ranks=3) as run:
        for pid in run.processes():
            os.kill(pid, signal.SIGINT)
        assert run.end(GRACE) == (STOPPED if kept else 128 + signal.SIGINT)
        assert run.survivors() == []
    assert not (copy / "source").exists()
    assert kept or temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_lost_rank_ends_the_run(area: Path, source: Path, launcher: str | None) -> None:
    copy = area / "copy"
    with copying(source, copy, ranks=3, launcher=launcher) as run:
        os.kill(run.ranks()[-1], signal.SIGKILL)
        begun = time.monotonic()
        assert run.end(GRACE) != 0
        assert time.monotonic() - begun < GRACE
        assert run.survivors() == []
    assert not (copy / "source").exists()


def test_ranks_end_with_the_main_process(area: Path, source: Path) -> None:
    copy = area / "copy"
    with copying(source, copy, ranks=3) as run:
        run.send_signal(signal.SIGKILL)
        assert run.survivors() == []
    assert not (copy / "source").exists()


def test_closed_pipe_leaves_no_processes_and_no_false_success(area: Path) -> None:
    """``pcopy … | head``: a closed pipe may end the run; with status 0, all files must have been copied."""
    (area / "source").mkdir()
    for number in range(100):
        (area / f"source/{number}").write_bytes(b"x")
    with background("-v", "--progress", "plain", area / "source", area / "copy", ranks=2) as run:
        assert run.process.stdout
        run.process.stdout.close()
        assert wait_until(lambda: run.process.poll() is not None, GRACE)
        run.process.stdout = None
        assert run.survivors() == []
    if run.process.returncode == 0:
        assert len(os.listdir(area / "copy")) == 100
