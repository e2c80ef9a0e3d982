"""The programs as they are installed, which start and end at once.

Rules: what is imported is not searched for garbage again and again, for it stays; and what an interpreter holds when it
ends is not freed object by object. Each would take as long as a copy of many small files. Nothing is lost at the end:
when a command has its status, everything is written and closed. Until a SIGINT is taken care of, nothing is imported
that takes time.
"""

import gc
import os
import sys

from pcopy.launch.interrupts import leave_at_once

GARBAGE = 50_000
"""Objects that are made before garbage is looked for; importing makes fewer."""

REFUSED = 2
"""As in ``pcopy.errors``, which may be what can't be loaded."""


def pbcast() -> None:
    _end_with("pbcast")


def pchmod() -> None:
    _end_with("pchmod")


def pcopy() -> None:
    _end_with("pcopy")


def pdbench() -> None:
    _end_with("pdbench")


def prm() -> None:
    _end_with("prm")


def pstripe() -> None:
    _end_with("pstripe")


def psync() -> None:
    _end_with("psync")


def ptar() -> None:
    _end_with("ptar")


def pverify() -> None:
    _end_with("pverify")


def pwalk() -> None:
    _end_with("pwalk")


def _end_with(program: str) -> None:
    """Runs what ``pcopy.cli`` has in the module of that name, and never returns."""
    leave_at_once(program)
    gc.set_threshold(GARBAGE)
    try:
        from importlib import import_module

        status = import_module(f"pcopy.cli.{program}").main()
    except (OSError, MemoryError, ImportError) as error:  # a part of the program can't be loaded
        os.write(2, f"{program}: {str(error) or 'no memory'}\n".encode(errors="backslashreplace"))
        status = REFUSED
    if "mpi4py" in sys.modules:  # libraries of MPI have handlers of their own for the end of a process
        sys.exit(status)
    os._exit(status)
