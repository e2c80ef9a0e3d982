"""Chooses the kernel of a process: the one in C, or the one in Python where that is not installed.

The environment variable ``PCOPY_KERNEL`` says which one it has to be: ``c`` or ``python``. Whoever starts ranks asks
``kernel_name`` before, so that a refusal is told once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pcopy.errors import Refused

if TYPE_CHECKING:
    from pcopy.fsio.kernel.interface import Kernel, Settings

VARIABLE = "PCOPY_KERNEL"
NAMES = ("c", "python")


def kernel_name() -> str:
    """Which one it is; raises ``Refused`` if the one that has to be there is not."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", *NAMES):
        raise Refused(f"PCOPY_KERNEL is '{wanted[:64]}'; write c or python, or unset it")
    if wanted == "python":
        return wanted
    try:
        import pcopy.fsio.kernel._native  # noqa: F401
    except ImportError as error:
        if wanted:
            advice = "unset it, or install pcopy anew where there is a C compiler"
            raise Refused(f"PCOPY_KERNEL=c, but the kernel in C is not installed here ({error}): {advice}") from None
        return "python"
    return "c"


def load_kernel() -> None:
    """What all ranks need, before they are forked; raises ``Refused`` as ``kernel_name`` does."""
    if kernel_name() == "python":
        import pcopy.fsio.kernel.python
    else:
        import pcopy.fsio.kernel.native  # noqa: F401


def make_kernel(settings: Settings) -> Kernel:
    """The one kernel of a process; raises ``Refused`` as ``kernel_name`` does."""
    if kernel_name() == "python":
        from pcopy.fsio.kernel.python import PythonKernel

        return PythonKernel(settings)
    from pcopy.fsio.kernel.native import NativeKernel

    return NativeKernel(settings)
