"""Handling of a SIGINT while the program starts.

Python would raise ``KeyboardInterrupt`` inside an import, and print a traceback. Until something has begun that must be
ended in order, the process exits immediately with one line.

Only modules are imported here that are built into the interpreter or loaded already: importing ``signal`` takes so long
that a SIGINT could arrive meanwhile.
"""

import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED_STATUS = 130
"""Exit status 128 + SIGINT."""


class _ExitHandler:
    """Signal handler that prints a line and exits the process."""

    def __init__(self, program: str) -> None:
        self._line = interrupted_line(program).encode()

    def __call__(self, number: int, frame: object) -> None:
        try:
            os.write(2, self._line)
        finally:
            os._exit(INTERRUPTED_STATUS)


def exit_on_sigint(program: str) -> None:
    """Let SIGINT end the process immediately, unless it was started with SIGINT ignored."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _ExitHandler(program))


def restore_keyboard_interrupt() -> None:
    """Let SIGINT raise ``KeyboardInterrupt`` again, for code that can end in order."""
    if isinstance(_signal.getsignal(_signal.SIGINT), _ExitHandler):
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def interrupted_line(program: str) -> str:
    """Return the line that is printed for an interrupted program."""
    return f"{program}: interrupted\n"
