"""The report of the signal or the error that stopped a job."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pcopy.checkpoint import record
from pcopy.engine.messages import HaltMessage, PrimitiveUnpickler
from pcopy.errors import SYNC_FAILED_CODE, RequestRefused
from pcopy.launch.watch import signals as stop_signals
from pcopy.launch.watch.signals import STOP_SIGNALS, StoppedBeforeStart, StopSignalHandler
from pcopy.tools.summary import halt_reason_text


@pytest.fixture
def signals() -> Iterator[StopSignalHandler]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield StopSignalHandler()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (HaltMessage("SIGTERM", 15), "stopped by SIGTERM; every file that has been copied is complete"),
        (HaltMessage("too many errors"), "stopped early: too many errors; every file that has been copied is complete"),
        (
            HaltMessage("the destination could not be synced: Input/output error", SYNC_FAILED_CODE),
            "stopped early: the destination could not be synced: Input/output error",
        ),
    ],
)
def test_halt_text_contains_only_known_facts(reason: HaltMessage, text: str) -> None:
    assert halt_reason_text(reason, False) == text
    may_be_cut_short = "; but what an earlier run was writing when it ended early may be cut short"
    assert halt_reason_text(reason, True) == (text if reason.code == SYNC_FAILED_CODE else text + may_be_cut_short)


def test_signal_before_the_first_task_ends_the_wait(signals: StopSignalHandler) -> None:
    """Also if it arrived before the wait."""
    done: list[str] = []
    signals.install_handlers()
    with pytest.raises(StoppedBeforeStart, match="stopped by SIGUSR1 before anything") as caught:
        signals.run_unless_stopped(partial(signalled, lambda: time.sleep(60)))
    assert caught.value.status == 75
    with pytest.raises(StoppedBeforeStart, match="stopped by SIGUSR1 before anything"):
        signals.run_unless_stopped(lambda: done.append("begun"))
    assert not done


def signalled(then: Callable[[], object]) -> object:
    os.kill(os.getpid(), signal.SIGUSR1)
    return then()


def test_signal_raises_nothing_during_cleanup(signals: StopSignalHandler) -> None:
    """It stores its reason and raises nothing at the place where it arrives: here in the cleanup of a generator."""
    closed = []

    def frames() -> Iterator[int]:
        try:
            yield 1
        finally:
            signalled(lambda: None)
            closed.append(True)

    def dropped() -> None:
        next(frames())

    signals.install_handlers()
    dropped()
    assert closed and signals.reason == HaltMessage("SIGUSR1", signal.SIGUSR1)


def test_result_or_error_before_a_signal_is_passed_on(signals: StopSignalHandler) -> None:
    signals.install_handlers()
    assert signals.run_unless_stopped(lambda: 7) == 7
    with pytest.raises(RequestRefused, match="no room"):
        signals.run_unless_stopped(partial(refuse, "no room"))
    with pytest.raises(StoppedBeforeStart):  # the signal takes precedence
        signals.run_unless_stopped(partial(signalled, partial(refuse, "no room")))


def refuse(text: str) -> None:
    raise RequestRefused(text)


def test_action_runs_in_the_foreground_without_a_thread(
    signals: StopSignalHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_to_be_had(_: object) -> None:
        raise OSError

    monkeypatch.setattr(stop_signals, "BackgroundThread", none_to_be_had)
    signals.install_handlers()
    done: list[int] = []
    assert signals.run_unless_stopped(lambda: 7) == 7
    with pytest.raises(StoppedBeforeStart):
        signals.run_unless_stopped(partial(signalled, lambda: done.append(1)))
    assert done == [1]


def test_signal_during_unpickling_is_not_reported_as_damage(
    signals: StopSignalHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged pickle can raise almost any exception, but a signal is not reported as one of them."""

    class Signalled(PrimitiveUnpickler):
        def load(self) -> object:
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().load()

    monkeypatch.setattr(record, "PrimitiveUnpickler", Signalled)
    signals.install_handlers()
    assert record.unpickle_primitives(pickle.dumps((1,))) == (1,)
    with pytest.raises(StoppedBeforeStart):
        signals.raise_if_stopped()


def test_later_signal_only_requests_the_stop(signals: StopSignalHandler) -> None:
    signals.install_handlers()
    signals.run_unless_stopped(lambda: None)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.reason == HaltMessage("SIGTERM", 15)
