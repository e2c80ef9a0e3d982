"""Interface of the transports, which carry messages between ranks.

All implementations pass the tests of ``tests/engine/transport_conformance.py``.
"""

from __future__ import annotations

from typing import Protocol

from pcopy.engine.messages import Message
from pcopy.engine.ticket import WakeDescriptor


class Transport(Protocol):
    """One rank's endpoint of the network that connects ``size`` ranks.

    Messages from one rank to another arrive exactly once, whole, and in the order in which they were sent. No method
    blocks except ``poll``, which blocks no longer than its timeout, and ``close``.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def has_unsent(self) -> bool:
        """True if a message has not been passed to the network completely."""

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message`` for rank ``destination``, which must be another rank. Raise ``PeerLost`` if that rank is
        known to be lost.
        """

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        """Return the messages that have arrived, as (sender, message); continue sending queued messages.

        Args:
            timeout: seconds to wait if no message has arrived and ``wake`` is not readable; 0 does not wait. The call
                may return earlier without messages.
            calm: seconds for which this rank has had no work. A transport that cannot be woken may then check for
                messages less often.
            wake: its descriptor ends the wait when it becomes readable.

        Raise ``PeerLost`` when the connection of another rank was closed and all messages that it sent before were
        returned. This is not raised for ranks passed to ``expect_close``.
        """

    def expect_close(self, rank: int) -> None:
        """Treat the end of the connection to ``rank`` as expected from now on, not as a loss."""

    def close(self) -> None:
        """Send the queued messages, then close the connections. This may block, since the job is about to end."""
