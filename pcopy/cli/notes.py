"""How the other ranks of this machine reach the screen: a pipe to rank 0, read beside its work.

A rank whose main thread hangs cannot send messages, but a thread of it can write here. Rule: writing never waits and
never fails; a note is one write of at most PIPE_BUF bytes, so that notes do not mix (pipe(7)).
"""

from __future__ import annotations

import contextlib
import os
import select

from pcopy.fsio.close import let_go

_READ_BYTES = 64 << 10


class Notes:
    """Made before the ranks are forked; after that each keeps its own end."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        self._turn, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(writing, b"\0")
        let_go(writing)

    def keep(self, rank: int) -> None:
        """Gives up the end that ``rank`` does not need."""
        let_go(self._reading if rank else self._writing)

    def fileno(self) -> int:
        """What rank 0 waits for."""
        return self._reading

    def send(self, rank: int, text: str) -> None:
        """Leaves ``text`` (one line) for rank 0; nothing happens if nobody reads it."""
        line = b"%d %s" % (rank, text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            os.write(self._writing, line[: select.PIPE_BUF - 1].replace(b"\n", b" ") + b"\n")

    def claim(self) -> bool:
        """Whether this rank is the first of all to ask: what befalls all of them alike is told by one."""
        try:
            return bool(os.read(self._turn, 1))
        except OSError:  # it may be told twice, but it is told
            return True

    def take(self) -> list[tuple[int, str]]:
        """At rank 0: what has come, as (rank, text)."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except OSError:  # there is nothing, or it comes with the next look
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        pairs = (line.decode("utf-8", "replace").partition(" ") for line in lines)
        return [(int(rank), text) for rank, _, text in pairs]
