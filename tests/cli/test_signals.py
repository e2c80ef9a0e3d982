"""What is told of the signal or the trouble that has stopped a job."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pcopy.checkpoint import record
from pcopy.cli.signals import ORDERLY, StoppedBefore, StopSignals, told
from pcopy.engine.messages import PrimitiveUnpickler


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in ORDERLY}
    yield StopSignals()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("signal 15", "stopped by SIGTERM; every file that has been copied is whole"),
        ("too many errors", "stopped early: too many errors; every file that has been copied is whole"),
        (
            "the destination could not be synced: Input/output error",
            "stopped early: the destination could not be synced: Input/output error",
        ),
    ],
)
def test_only_what_is_known_is_told(reason: str, text: str) -> None:
    assert told(reason) == text


def test_a_signal_before_the_first_task_raises(signals: StopSignals) -> None:
    """Also one that somebody has caught, and one that came before."""
    for _ in range(2):
        with pytest.raises(StoppedBefore, match="stopped by SIGUSR1 before anything") as caught, signals.raised():
            os.kill(os.getpid(), signal.SIGUSR1)
            pytest.fail("it did not raise")
        assert caught.value.status == 75
    again = StopSignals()
    with pytest.raises(StoppedBefore), again.raised(), suppress(StoppedBefore):
        os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_is_no_damage_of_what_is_being_read(signals: StopSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged pickle raises almost anything; a signal is not among it."""

    class Signalled(PrimitiveUnpickler):
        def load(self) -> object:
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().load()

    monkeypatch.setattr(record, "PrimitiveUnpickler", Signalled)
    with pytest.raises(StoppedBefore), signals.raised():
        record.load_value(pickle.dumps((1,)))


def test_afterwards_a_signal_only_asks(signals: StopSignals) -> None:
    with signals.raised():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.reason == "signal 15"
