"""Entry points of the installed programs, which start and end fast.

Rules:

- Garbage collection runs rarely: imported objects stay until the end, and searching them again and again would take as
  long as a copy of many small files. For the same reason, the interpreter does not free its objects one by one at the
  end. Nothing is lost: when a command returns its status, all files are written and closed.
- Until SIGINT is handled, no module is imported that takes a noticeable time.
"""

import gc
import os
import sys

from pcopy.launch.interrupts import exit_on_sigint

GARBAGE_THRESHOLD = 50_000
"""The number of new objects after which garbage is collected; importing creates fewer."""

EXIT_REFUSED = 2
"""The exit status if the program cannot be loaded. ``pcopy.errors`` has it, too, but may be what cannot be imported."""


def pbcast() -> None:
    _run_and_exit("pbcast")


def pchmod() -> None:
    _run_and_exit("pchmod")


def pcopy() -> None:
    """Run pcopy, and end the process. The other functions do the same for the other programs."""
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
    """Run the module of ``pcopy.cli`` with the program's name, and end the process with its status. Never return."""
    # Before the imports, which take most of the start: until then, Ctrl-C would print a traceback.
    exit_on_sigint(program)
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        from importlib import import_module

        status = import_module(f"pcopy.cli.{program}").main()
    except (OSError, MemoryError, ImportError) as error:  # a module or a library cannot be loaded
        os.write(2, f"{program}: {str(error) or 'no memory'}\n".encode(errors="backslashreplace"))
        status = EXIT_REFUSED
    if "mpi4py" in sys.modules:  # MPI libraries register exit handlers, which os._exit() would skip
        sys.exit(status)
    # Skip the interpreter's cleanup: everything is written and closed (see the rules above).
    os._exit(status)
