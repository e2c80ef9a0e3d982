"""Signals that stop a job in order: the first one asks, a second SIGINT leaves at once."""

from __future__ import annotations

import os
import signal

_PREFIX = "signal "

ORDERLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopSignals:
    """Remembers the first signal as the reason to stop."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def install(self) -> None:
        """Takes over the orderly signals, but for a SIGHUP that is ignored (nohup)."""
        for number in ORDERLY:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        if self.reason is None:
            self.reason = f"{_PREFIX}{number}"
        elif number == signal.SIGINT:
            os._exit(128 + number)


def status_of(reason: str) -> int | None:
    """128 + signal if a signal is the reason."""
    return 128 + int(reason.removeprefix(_PREFIX)) if reason.startswith(_PREFIX) else None


def told(reason: str) -> str:
    """The reason in words."""
    if reason.startswith(_PREFIX):
        return f"stopped by {signal.Signals(int(reason.removeprefix(_PREFIX))).name}"
    return f"stopped: {reason}"
