"""Runs that are stopped or lose a rank: they end soon, with a status that says so, and leave nothing running."""

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
    """Some chunks of 16 MiB."""
    with open(area / "source", "wb") as file:
        for _ in range(160):
            file.write(b"x" * MIB)
    (area / "copy").mkdir()
    yield area / "source"


@contextmanager
def copying(source: Path, copy: Path, *options: str, **more: Any) -> Iterator[Run]:
    """A run in the midst of its work, which takes seconds on the fastest machine."""
    arguments: list[Argument] = [*options, "--chunk-size", "16M", source, copy]
    with background(*arguments, wrap=slowed("pwrite64", 12), **more) as run:
        wait_for_temporary(run, os.fsencode(copy))
        yield run


def keeping(kept: bool) -> list[str]:
    return [] if kept else ["--checkpoint", "none"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_the_run_in_order(area: Path, source: Path, number: signal.Signals, ranks: int) -> None:
    """Without a job that is kept nothing is left of what was under way."""
    copy = area / "copy"
    with copying(source, copy, "--checkpoint", "none", ranks=ranks) as run:
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == 128 + number
        assert b"pcopy: stopped by %s; every file that has been copied is whole\n" % number.name.encode() in err
        assert b"--resume" not in err
        assert b"not reached" in out
        assert run.survivors() == []
    assert not (copy / "source").exists()
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_job_goes_on(area: Path, source: Path, number: signal.Signals, ranks: int) -> None:
    """The command that it prints does so, with what is in the temporary file already, and nothing is left then."""
    copy, state = area / "copy", {"XDG_STATE_HOME": str(area / "state")}
    with copying(source, copy, ranks=ranks, env=state) as run:
        run.send_signal(number)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == STOPPED, err
        assert b"pcopy: stopped by %s; every file that has been copied is whole\n" % number.name.encode() in err
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
def test_a_signal_to_one_rank_ends_all(area: Path, source: Path, number: signal.Signals, kept: bool) -> None:
    copy = area / "copy"
    with copying(source, copy, *keeping(kept), ranks=3) as run:
        os.kill(run.ranks()[-1], number)
        assert run.end(GRACE) == (STOPPED if kept else 128 + number)
        assert run.survivors() == []
    assert kept or temporaries(os.fsencode(copy)) == []


def test_a_second_sigint_leaves_at_once(area: Path, source: Path) -> None:
    """One rank is stopped, so that the job cannot end in order."""
    with copying(source, area / "copy", ranks=3) as run:
        os.kill(run.ranks()[-1], signal.SIGSTOP)
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None
        run.send_signal(signal.SIGINT)
        assert run.end(GRACE) == 128 + signal.SIGINT
        assert run.survivors() == []


@pytest.mark.parametrize("kept", [True, False])
def test_an_echo_of_a_signal_is_no_second_one(area: Path, source: Path, kept: bool) -> None:
    """timeout(1) sends each signal to its command, and once more to the group.

    A busy machine may hand on the echo so late that it is a second press, rightly: then it is tried again.
    """
    for attempt in range(TRIES):
        copy = area / f"copy-{attempt}"
        copy.mkdir()
        with copying(source, copy, *keeping(kept), ranks=2) as run:
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


def test_an_interrupt_before_the_work_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(PCOPY, "_run", interrupted)
    assert PCOPY.main(["a", "b"]) == 128 + signal.SIGINT


@pytest.mark.parametrize("kept", [True, False])
def test_control_c_reaches_all_ranks_at_once(area: Path, source: Path, kept: bool) -> None:
    """A terminal sends the signal to the whole group, not only to the process that was started."""
    copy = area / "copy"
    with copying(source, copy, *keeping(kept), ranks=3) as run:
        for pid in run.processes():
            os.kill(pid, signal.SIGINT)
        assert run.end(GRACE) == (STOPPED if kept else 128 + signal.SIGINT)
        assert run.survivors() == []
    assert not (copy / "source").exists()
    assert kept or temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_a_lost_rank_ends_all(area: Path, source: Path, launcher: str | None) -> None:
    copy = area / "copy"
    with copying(source, copy, ranks=3, launcher=launcher) as run:
        os.kill(run.ranks()[-1], signal.SIGKILL)
        begun = time.monotonic()
        assert run.end(GRACE) != 0
        assert time.monotonic() - begun < GRACE
        assert run.survivors() == []
    assert not (copy / "source").exists()


def test_ranks_die_with_the_process_that_was_started(area: Path, source: Path) -> None:
    copy = area / "copy"
    with copying(source, copy, ranks=3) as run:
        run.send_signal(signal.SIGKILL)
        assert run.survivors() == []
    assert not (copy / "source").exists()


def test_a_reader_that_goes_away_harms_nothing(area: Path) -> None:
    """``pcopy … | head``: a closed pipe may end the run, as it ends others, but not in silence and not half."""
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
