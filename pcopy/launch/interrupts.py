"""Signals while the program starts: which ones it receives, and what a SIGINT does.

Without this module Python would raise ``KeyboardInterrupt`` inside an import, and print a traceback. With it, the
process exits immediately and prints one line, until ``restore_keyboard_interrupt`` is called: from then on there may be
something that must be ended in order.

Only modules are imported here that are built into the interpreter or loaded already: importing ``signal`` takes so long
that a SIGINT could arrive meanwhile.
"""

import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED_STATUS = 130
"""Exit status of a program that SIGINT has ended: 128 + number of the signal."""


class _SigintExitHandler:
    """Signal handler that prints a line and exits the process."""

    def __init__(self, program: str) -> None:
        self._line = f"{program}: interrupted\n".encode()

    def __call__(self, number: int, frame: object) -> None:
        try:
            os.write(2, self._line)
        finally:
            os._exit(INTERRUPTED_STATUS)


def unblock_signals() -> None:
    """Unblock all signals. A process inherits the mask of the thread that has started it; a job whose stop signals are
    blocked could not be stopped, and would continue after the end of its caller (``--stop-at-eof``).
    """
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def exit_on_sigint(program: str) -> None:
    """Install a handler by which SIGINT ends the process immediately and prints one line, which begins with
    ``program``, instead of a traceback. If the process was started with SIGINT ignored, change nothing.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _SigintExitHandler(program))


def restore_keyboard_interrupt() -> None:
    """Undo ``exit_on_sigint``: let SIGINT raise ``KeyboardInterrupt``, since the code that follows handles that."""
    if isinstance(_signal.getsignal(_signal.SIGINT), _SigintExitHandler):
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def interrupted_line(program: str) -> str:
    """Return the line, with its newline, that is printed when SIGINT ends the program."""
    from pcopy.text import invoked_name

    return f"{invoked_name(program)}: interrupted\n"


def stop_when_standard_input_ends() -> bool:
    """Have the kernel send SIGTERM to this process when standard input ends or holds data (``--stop-at-eof``). Return
    False if standard input is closed.

    No thread is needed for this, so the ranks can be forked later. If a launcher passes its standard input to rank 0
    through a pipe or a socket, this also works there. If the process was started with SIGTERM ignored, the signal would
    be lost until the job handles it: then its default action is restored.
    """
    import fcntl
    import select

    try:
        flags = fcntl.fcntl(0, fcntl.F_GETFL)
    except OSError:
        return False
    if _signal.getsignal(_signal.SIGTERM) is _signal.SIG_IGN:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    try:
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETSIG, _signal.SIGTERM)
        fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:  # A regular file or /dev/null, which can be read at any time: the check below stops the job.
        pass
    if select.select([0], [], [], 0)[0]:  # It ended before the kernel was asked to watch it.
        os.kill(os.getpid(), _signal.SIGTERM)
    return True
