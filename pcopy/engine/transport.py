"""Interface of the transports, which carry messages between ranks.

All implementations pass the tests of ``tests/engine/transport_conformance.py``.
"""

from __future__ import annotations

from typing import Protocol

from pcopy.engine.messages import Message
from pcopy.engine.ticket import WakeDescriptor


class MessageTransport(Protocol):
    """Protocol: sends and receives the messages of one rank over the network that connects ``size`` ranks.

    Messages from one rank to another arrive exactly once, whole, and in the order in which they were sent. No method
    blocks except ``poll``, which blocks no longer than its timeout, and ``close``.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def has_unsent_data(self) -> bool:
        """True if some bytes of a sent message still wait in this process, because the network has not taken them."""

    def send(self, destination: int, message: Message) -> None:
        """Queue ``message`` for rank ``destination``, which must be another rank. Raise ``PeerLost`` if that rank is
        known to be lost.
        """

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        """Return the messages that have arrived, as (sender, message); continue sending queued messages.

        Args:
            timeout: seconds to wait if no message has arrived and ``wake`` is not readable; 0 does not wait. The call
                may return earlier without messages.
            calm: seconds for which this rank has had no work. The longer it is, the less often a transport that has to
                check for messages in a loop does so (MPI has no call that sleeps until a message arrives).
            wake: the call also returns when the descriptor of ``wake`` is readable.

        Raise ``PeerLost`` when the connection of another rank was closed and all messages that it sent before were
        returned. This is not raised for ranks passed to ``expect_end_of_connection``.
        """

    def expect_end_of_connection(self, rank: int) -> None:
        """Treat the end of the connection to ``rank`` as expected from now on: ``poll`` does not raise ``PeerLost`` for
        it.
        """

    def close(self) -> None:
        """Send the queued messages, then close the connections. Unlike other methods this one may block, since the job
        is about to end.
        """
