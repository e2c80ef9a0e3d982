"""Entry points of the installed programs, which start and end fast.

Rules:

- Python's garbage collection runs rarely: imported objects stay until the end, and to search them repeatedly would take
  as long as a copy of many small files.
- For the same reason, the process ends without freeing its objects one by one. Nothing is lost: when a command returns
  its status, all files are written and closed.
- No module whose import takes a noticeable time is imported before SIGINT is handled.
"""

import gc
import os
import sys

from pcopy.launch.interrupts import exit_on_sigint, unblock_signals

GARBAGE_COLLECTION_THRESHOLD = 50_000
"""The number of new objects after which Python collects garbage; the imports of a program create fewer."""

EXIT_REFUSED = 2
"""The exit status if the program cannot be loaded.

``pcopy.errors`` defines it too, but cannot be used here: its import may be what fails.
"""


def pbcast() -> None:
    _run_and_exit("pbcast")


def pchmod() -> None:
    _run_and_exit("pchmod")


def pcopy() -> None:
    """Run the program pcopy, and end the process with its exit status. Entry point of the installed program."""
    _run_and_exit("pcopy")


def pdbench() -> None:
    _run_and_exit("pdbench")


def prm() -> None:
    _run_and_exit("prm")


def pstripe() -> None:
    _run_and_exit("pstripe")


def psync() -> None:
    _run_and_exit("psync")


def ptar() -> None:
    _run_and_exit("ptar")


def pverify() -> None:
    _run_and_exit("pverify")


def pwalk() -> None:
    _run_and_exit("pwalk")


def _run_and_exit(program: str) -> None:
    """Run the program ``program``, and end the process with its exit status.

    The program is the function ``main`` of the module of ``pcopy.cli`` with that name.
    """
    unblock_signals()
    # Handle SIGINT before the imports, which take most of the time of a start: else Ctrl-C would print a traceback.
    exit_on_sigint(program)
    gc.set_threshold(GARBAGE_COLLECTION_THRESHOLD)
    try:
        from importlib import import_module

        status = import_module(f"pcopy.cli.{program}").main()
    except (OSError, MemoryError, ImportError) as error:  # A module or a shared library cannot be loaded.
        os.write(2, f"{program}: {_load_error_text(error)}\n".encode(errors="backslashreplace"))
        status = EXIT_REFUSED
    if "mpi4py" in sys.modules:  # MPI libraries register exit handlers, which os._exit() would skip
        sys.exit(status)
    # Skip the interpreter's cleanup, which takes time: everything is written and closed.
    os._exit(status)


def _load_error_text(error: OSError | MemoryError | ImportError) -> str:
    """Return the message for ``error``, because of which the program cannot be loaded."""
    try:
        from pcopy.errors import resource_error_text
    except (OSError, MemoryError, ImportError):
        return "files of pcopy are missing or cannot be read; install pcopy again"
    return f"cannot begin: {resource_error_text(error)}"
