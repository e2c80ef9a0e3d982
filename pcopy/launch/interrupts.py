"""A first SIGINT while the program starts.

Python would raise ``KeyboardInterrupt`` in the midst of some import, and print where that was. Until something has
begun that has to be ended in order, the process just leaves, with a line.

Only what the interpreter has built in, or has loaded, is imported here: ``signal`` takes long enough to be interrupted.
"""

import _signal  # type: ignore[import-not-found]
import os

STATUS = 130
"""128 + SIGINT"""


class _Leaving:
    """What happens at a SIGINT."""

    def __init__(self, program: str) -> None:
        self._line = line(program).encode()

    def __call__(self, number: int, frame: object) -> None:
        try:
            os.write(2, self._line)
        finally:
            os._exit(STATUS)


def leave_at_once(program: str) -> None:
    """From now on a SIGINT ends the process, unless it was started to ignore that."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _Leaving(program))


def raise_again() -> None:
    """From now on it is a ``KeyboardInterrupt`` again: whoever has begun something can end that."""
    if isinstance(_signal.getsignal(_signal.SIGINT), _Leaving):
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def line(program: str) -> str:
    return f"{program}: interrupted\n"
