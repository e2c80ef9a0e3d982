"""The C backend of this checkout, which the tests use instead of an installed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "pcopy/fsio/backend"
SOURCES = BACKEND / "native"
BUILT = BACKEND / "_native.abi3.so"

_WHY_NOT = "PCOPY_TESTS_NO_NATIVE"
"""The reason why there is none, for all processes of a session."""


def build() -> None:
    """Build missing or outdated files, once per session before the workers start."""
    os.environ.pop(_WHY_NOT, None)
    program = BACKEND / "build_native.py"
    newest = max(path.stat().st_mtime_ns for path in (program, *SOURCES.iterdir()))
    is_shadowed = any(BACKEND.glob("_native.cpython-*.so"))
    if BUILT.exists() and BUILT.stat().st_mtime_ns >= newest and not is_shadowed:
        return
    done = subprocess.run([sys.executable, program], check=False, capture_output=True, text=True)
    if done.returncode:
        BUILT.unlink(missing_ok=True)  # it may have another interface
        os.environ[_WHY_NOT] = (done.stderr.strip().splitlines() or ["nobody says why"])[-1]


def why_not() -> str:
    """Return why there is no C backend, or an empty string if there is one."""
    return os.environ.get(_WHY_NOT, "")


def require() -> None:
    """Skip the test if there is no C backend."""
    if why_not():
        pytest.skip(f"there is no C backend: {why_not()}")
