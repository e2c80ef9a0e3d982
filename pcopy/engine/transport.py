"""The interface that carries messages between ranks. All who fill it pass ``tests/engine/transport_conformance.py``."""

from __future__ import annotations

from typing import Protocol

from pcopy.engine.messages import Message
from pcopy.engine.ticket import Wake


class Transport(Protocol):
    """One rank's end of the network between ``size`` ranks.

    Messages between two ranks arrive once, whole and in the order in which they were sent. Nothing blocks but
    ``poll``, and that for no longer than its timeout.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def unsent(self) -> bool:
        """Is there a message that has not been handed to the network whole?"""

    def send(self, destination: int, message: Message) -> None:
        """Takes ``message`` for rank ``destination`` (not this one); raises ``PeerLost`` if it is known to be gone."""

    def poll(self, timeout: float, calm: float = 0.0, wake: Wake | None = None) -> list[tuple[int, Message]]:
        """What has arrived, as (sender, message); moves unsent messages on.

        Waits up to ``timeout`` seconds (0: not at all) if nothing has arrived yet, and ``wake`` is not readable; may
        return early with nothing. The rank has had nothing to do for ``calm`` seconds: who can't be woken may look less
        often then.
        Raises ``PeerLost`` when another rank's end closed and all that it sent before has been handed out, unless
        ``forgive`` named it.
        """

    def forgive(self, rank: int) -> None:
        """From now on the end of ``rank``'s connection is expected and no loss."""

    def close(self) -> None:
        """Hands over what is unsent, then gives the connections back. The end is near: this may wait."""
