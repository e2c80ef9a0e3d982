"""The C backend of this checkout: built for the tests, which run from here and not from what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "pcopy/fsio/backend"
SOURCES = BACKEND / "native"
BUILT = BACKEND / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"

_WHY_NOT = "PCOPY_TESTS_NO_NATIVE"
"""Why there is none, for all processes of a session."""


def build() -> None:
    """Once a session, before its workers start: builds what is missing, or older than its sources."""
    os.environ.pop(_WHY_NOT, None)
    program = BACKEND / "build_native.py"
    newest = max(path.stat().st_mtime_ns for path in (program, *SOURCES.iterdir()))
    if BUILT.exists() and BUILT.stat().st_mtime_ns >= newest:
        return
    done = subprocess.run([sys.executable, program], check=False, capture_output=True, text=True)
    if done.returncode:
        BUILT.unlink(missing_ok=True)  # which knows another interface
        os.environ[_WHY_NOT] = (done.stderr.strip().splitlines() or ["nobody says why"])[-1]


def why_not() -> str:
    """Why there is no C backend; empty if there is one."""
    return os.environ.get(_WHY_NOT, "")


def require() -> None:
    """Skips without it."""
    if why_not():
        pytest.skip(f"there is no C backend: {why_not()}")
