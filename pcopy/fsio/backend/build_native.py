"""Build of the C extension ``pcopy.fsio.backend._native``, run by setup.py, bin/build-backend and the tests.

Where there is no C compiler, or where Python's headers are missing, pcopy is installed without the extension. The
Python backend then does the same work, more slowly. The same is true of a free-threaded Python, which has no stable ABI
(setup.py).

The extension uses Python's stable ABI only: one file serves Python 3.11 and all later versions.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI, VerificationError

COMPILER_FLAGS = ("-std=gnu11", "-O2", "-pthread")
"""Compiler flags. There are none that optimise for the processor of this host, such as -march=native, because hosts
with other processors may use the extension, too.
"""

LIMITED_API_VERSION = "0x030b0000"
"""The first version of Python whose stable ABI the extension uses, for the macro ``Py_LIMITED_API``."""

XXHASH_VARIABLE = "PCOPY_XXHASH_DIRECTORY"
"""Environment variable with a directory that contains xxHash's header ``xxhash.h``. If it is set, XXH3 is compiled into
the extension, for hosts without libxxhash.
"""

EXTENSION_FILE = "_native.abi3.so"
"""File name of the extension. A file of an older build, ``_native.cpython-...so``, would be loaded instead of it."""

_CHECKOUT_DIRECTORY = Path(__file__).resolve().parents[3]
_PACKAGE_DIRECTORY = Path("pcopy/fsio/backend")
_C_SOURCE_DIRECTORY = _PACKAGE_DIRECTORY / "native"
_C_COMMENT_PATTERN = re.compile(r"/\*.*?\*/", re.DOTALL)


def make_extension_builder(root: Path = Path(), **options: Any) -> FFI:
    """Return the object by which cffi builds the C extension.

    ``root`` is the root of the checkout. setuptools requires that it is the working directory. ``options`` are passed
    to ``FFI.set_source``.
    """
    native = root / _C_SOURCE_DIRECTORY
    xxhash = os.environ.get(XXHASH_VARIABLE)
    builder = FFI()
    builder.cdef(_C_COMMENT_PATTERN.sub("", (native / "backend.h").read_text()))
    builder.set_source(
        "pcopy.fsio.backend._native",
        '#include "backend.h"',
        sources=[str(path) for path in sorted(native.glob("*.c"))],
        depends=[str(path) for path in sorted(native.glob("*.h"))],
        define_macros=[("Py_LIMITED_API", LIMITED_API_VERSION), *([("PCOPY_XXH3", "1")] if xxhash else [])],
        include_dirs=[str(native), *([xxhash] if xxhash else [])],
        extra_compile_args=[*COMPILER_FLAGS],
        extra_link_args=["-pthread"],
        libraries=["dl"],
        py_limited_api=True,
        **options,
    )
    return builder


def build_extension_in_place() -> Path:
    """Build the C extension of the backend next to this module, and return its path.

    The file is replaced by a rename, so that processes that have loaded the old one keep it. Files of older builds,
    which would be loaded instead of it, are removed. Raise ``VerificationError`` if it cannot be compiled; the compiler
    has printed why.
    """
    path = _CHECKOUT_DIRECTORY / _PACKAGE_DIRECTORY / EXTENSION_FILE
    with tempfile.TemporaryDirectory(prefix="pcopy-backend-") as directory:
        made = Path(make_extension_builder(_CHECKOUT_DIRECTORY).compile(tmpdir=directory))
        temporary = path.with_name(f"_native.{os.getpid()}.so")
        shutil.copy(made, temporary)
        temporary.replace(path)
    for old in path.parent.glob("_native.cpython-*.so"):
        old.unlink(missing_ok=True)
    return path


if __name__ == "__cffi__":  # run by setuptools; a plain import builds nothing
    builder = make_extension_builder(optional=True)
elif __name__ == "__main__":
    try:
        print(build_extension_in_place())
    except VerificationError as error:
        sys.exit(f"{__file__}: {error}")
