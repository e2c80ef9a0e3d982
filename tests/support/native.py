"""The C backend of this checkout, which the tests use instead of an installed one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
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


_COMPILE = """
import sys
from pathlib import Path
from pcopy.fsio.backend.build_native import make_extension_builder
make_extension_builder(Path(sys.argv[1])).compile(tmpdir=sys.argv[2])
"""


def build_test_extension(directory: Path) -> Path:
    """Build the C extension with switches for its guards (``guards.h``), and return its path.

    It is compiled once for all processes and sessions that use ``directory``, until a source changes. Skip the test if
    it cannot be compiled.
    """
    require()
    digest = hashlib.sha256(sys.version.encode())
    for path in (BACKEND / "build_native.py", *sorted(SOURCES.iterdir())):
        digest.update(b"%s\0%s\0" % (os.fsencode(path.name), path.read_bytes()))
    directory.mkdir(mode=0o700, exist_ok=True)
    assert directory.lstat().st_uid == os.geteuid(), f"{directory} belongs to another user"
    built = directory / digest.hexdigest() / BUILT.name
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile_test_extension(directory, built)
    return built


def _compile_test_extension(directory: Path, built: Path) -> None:
    """Compile the extension, and remove those of other sources."""
    for old in directory.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        environment = {**os.environ, "CFLAGS": "-DPK_TEST_BUILD", "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", _COMPILE, str(ROOT), place]
        subprocess.run(words, check=True, capture_output=True, env=environment, cwd=place)
        (made,) = Path(place).rglob(BUILT.name)
        built.parent.mkdir()
        made.replace(built)


def extension_for_tests() -> Path:
    """Return the C extension with switches for its guards; the temporary directory keeps one for each checkout."""
    checkout = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:16]
    return build_test_extension(Path(tempfile.gettempdir(), f"pcopy-test-extension-{os.getuid()}-{checkout}"))
