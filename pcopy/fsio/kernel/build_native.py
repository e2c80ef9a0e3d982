"""Builds the kernel in C (``pcopy.fsio.kernel._native``): setup.py, bin/build-kernel and the tests run this file.

Where there is no compiler, or no header of Python's, pcopy is installed without: the kernel in Python does the same,
more slowly.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI, VerificationError

FLAGS = ("-std=gnu11", "-O2", "-pthread")
"""Nothing that ties it to this machine's processor: it may be installed for others."""

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGE = Path("pcopy/fsio/kernel")
_NATIVE = _PACKAGE / "native"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def make_builder(root: Path = Path(), **options: Any) -> FFI:
    """``root`` is that of the checkout; setuptools wants it to be the working directory."""
    native = root / _NATIVE
    builder = FFI()
    builder.cdef(_COMMENT.sub("", (native / "kernel.h").read_text()))
    builder.set_source(
        "pcopy.fsio.kernel._native",
        '#include "kernel.h"',
        sources=[str(path) for path in sorted(native.glob("*.c"))],
        depends=[str(path) for path in sorted(native.glob("*.h"))],
        include_dirs=[str(native)],
        extra_compile_args=[*FLAGS],
        extra_link_args=["-pthread"],
        libraries=["dl"],
        py_limited_api=False,
        **options,
    )
    return builder


def build_in_place() -> Path:
    """Puts it beside this file, at once: processes that have loaded an older one keep that. Returns where it is.

    Raises ``VerificationError`` if it cannot be compiled; the compiler has said why.
    """
    place = _ROOT / _PACKAGE / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory(prefix="pcopy-kernel-") as directory:
        made = Path(make_builder(_ROOT).compile(tmpdir=directory))
        beside = place.with_name(f"_native.{os.getpid()}.so")
        shutil.copy(made, beside)
        beside.replace(place)
    return place


if __name__ == "__cffi__":  # what setuptools runs; an import does nothing
    builder = make_builder(optional=True)
elif __name__ == "__main__":
    try:
        print(build_in_place())
    except VerificationError as error:
        sys.exit(f"{__file__}: {error}")
