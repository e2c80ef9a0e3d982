"""Choice of the backend of a process: the C backend, or the Python backend where the C extension is not installed.

A free-threaded Python always uses the Python backend. Its objects have another layout than in the stable ABI, for which
the C extension is compiled. That of Python 3.13 would nevertheless load the file, for example in a checkout that other
Pythons use, too.

The environment variable ``PCOPY_BACKEND`` (``c`` or ``python``) requires one of them; ``PCOPY_KERNEL`` is its former
name. The process that starts the ranks calls ``backend_name`` earlier, so that an error is reported once and not by
every rank.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend

BACKEND_VARIABLES = ("PCOPY_BACKEND", "PCOPY_KERNEL")
"""Environment variables that require one of the backends; the first that is set and not empty counts."""
BACKEND_NAMES = ("c", "python")
"""Permitted values of the environment variables ``BACKEND_VARIABLES``."""


def is_free_threaded() -> bool:
    """Return True if this is a free-threaded Python. ``sysconfig`` would report it too, but its import takes long."""
    return "t" in sys.abiflags


def free_threading_notice() -> str:
    """Return a notice that this free-threaded Python cannot use the C backend; an empty string if it is another Python,
    or if an environment variable requires the Python backend.
    """
    if not is_free_threaded() or _required_backend()[1] == "python":
        return ""
    return "notice: a free-threaded Python cannot load the C backend, and the Python backend is slower"


def _required_backend() -> tuple[str, str]:
    """Return the first of ``BACKEND_VARIABLES`` that is set, and its value; empty strings if there is none."""
    variable = next((name for name in BACKEND_VARIABLES if os.environ.get(name)), "")
    return variable, os.environ.get(variable, "")


def backend_name() -> str:
    """Return the name of the backend to use: ``c``, or ``python`` if an environment variable requires that or the C
    extension cannot be imported.

    Raise ``RequestRefused`` if one of ``BACKEND_VARIABLES`` has another value, or if it requires the C backend and that
    is not installed.
    """
    variable, wanted = _required_backend()
    if wanted not in ("", *BACKEND_NAMES):
        raise RequestRefused(f"{variable} is '{wanted[:64]}': set it to c or python, or unset it")
    if wanted == "python":
        return wanted
    if is_free_threaded():
        if wanted:
            raise RequestRefused(
                f"{variable}=c, but a free-threaded Python cannot load the C backend: unset it, or install pcopy for "
                "another Python"
            )
        return "python"
    try:
        import pcopy.fsio.backend._native  # noqa: F401
    except ImportError as error:
        if wanted:
            advice = "unset it, or reinstall pcopy where there is a C compiler"
            reason = str(error).partition(".so: ")[2] or "it was not built"
            raise RequestRefused(
                f"{variable}=c, but the C backend is not installed here ({reason}): {advice}"
            ) from None
        return "python"
    return "c"


def import_backend() -> None:
    """Import the modules of the backend before ranks are forked, so that all ranks share their memory.

    Raise ``RequestRefused`` if an environment variable (``BACKEND_VARIABLES``) requires a backend that does not exist
    here.
    """
    if backend_name() == "python":
        import pcopy.fsio.backend.python
    else:
        import pcopy.fsio.backend.native  # noqa: F401


def create_backend(settings: BackendSettings) -> FileOperationBackend:
    """Return a new backend, the only one of this process. Raise ``RequestRefused`` if an environment variable
    (``BACKEND_VARIABLES``) requires a backend that does not exist here.
    """
    if backend_name() == "python":
        from pcopy.fsio.backend.python import PythonBackend

        return PythonBackend(settings)
    from pcopy.fsio.backend.native import NativeBackend

    return NativeBackend(settings)
