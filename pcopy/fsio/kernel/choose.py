"""Choice of the backend of a process: the C backend, or the Python backend where the C extension is not installed.

The environment variable ``PCOPY_KERNEL`` (``c`` or ``python``) requires one of them. The process that starts ranks
calls ``kernel_name`` before, so that a refusal is reported once and not by every rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pcopy.errors import Refused

if TYPE_CHECKING:
    from pcopy.fsio.kernel.interface import Kernel, Settings

VARIABLE = "PCOPY_KERNEL"
"""Environment variable that requires one of the backends."""
NAMES = ("c", "python")
"""Permitted values of that variable."""


def kernel_name() -> str:
    """Return ``c`` or ``python``, the backend to use.

    Raise ``Refused`` if the environment variable has another value, or if it requires a backend that is not installed.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", *NAMES):
        raise Refused(f"PCOPY_KERNEL is '{wanted[:64]}': set it to c or python, or unset it")
    if wanted == "python":
        return wanted
    try:
        import pcopy.fsio.kernel._native  # noqa: F401
    except ImportError as error:
        if wanted:
            advice = "unset it, or reinstall pcopy where there is a C compiler"
            raise Refused(f"PCOPY_KERNEL=c, but the C backend is not installed here ({error}): {advice}") from None
        return "python"
    return "c"


def load_kernel() -> None:
    """Import the modules of the backend before ranks are forked, so that all ranks share them.

    Raise ``Refused`` as ``kernel_name`` does.
    """
    if kernel_name() == "python":
        import pcopy.fsio.kernel.python
    else:
        import pcopy.fsio.kernel.native  # noqa: F401


def make_kernel(settings: Settings) -> Kernel:
    """Return a new backend, the only one of this process. Raise ``Refused`` as ``kernel_name`` does."""
    if kernel_name() == "python":
        from pcopy.fsio.kernel.python import PythonKernel

        return PythonKernel(settings)
    from pcopy.fsio.kernel.native import NativeKernel

    return NativeKernel(settings)
