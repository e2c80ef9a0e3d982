"""Choice of the backend of a process: the C backend, or the Python backend where the C extension is not installed.

The environment variable ``PCOPY_BACKEND`` (``c`` or ``python``) requires one of them; ``PCOPY_KERNEL`` is its former
name. The process that starts the ranks calls ``backend_name`` earlier, so that an error is reported once and not by
every rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend

BACKEND_VARIABLES = ("PCOPY_BACKEND", "PCOPY_KERNEL")
"""Environment variables that require one of the backends; the first that is set and not empty counts."""
BACKEND_NAMES = ("c", "python")
"""Permitted values of the environment variables ``BACKEND_VARIABLES``."""


def backend_name() -> str:
    """Return the name of the backend to use: ``c``, or ``python`` if an environment variable requires that or the C
    extension cannot be imported.

    Raise ``RequestRefused`` if one of ``BACKEND_VARIABLES`` has another value, or if it requires the C backend and that
    is not installed.
    """
    variable = next((name for name in BACKEND_VARIABLES if os.environ.get(name)), "")
    wanted = os.environ.get(variable, "")
    if wanted not in ("", *BACKEND_NAMES):
        raise RequestRefused(f"{variable} is '{wanted[:64]}': set it to c or python, or unset it")
    if wanted == "python":
        return wanted
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
