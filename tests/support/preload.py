"""C programs and libraries of the tests: compiled at the first request and kept until the end of the session."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

STORING = Path(__file__).parent / "storing.c"
HANGING = Path(__file__).parents[1] / "chaos" / "hanging.c"

_made: list[Path] = []


@functools.cache
def compiled(source: Path, *flags: str) -> Path:
    """Compile ``source`` into a file that every user may run; skip the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler here")
    directory = Path(tempfile.mkdtemp(prefix="pcopy-test-compiled-"))
    directory.chmod(0o755)
    _made.append(directory)
    program = directory / source.stem
    subprocess.run([compiler, "-O2", *flags, "-o", program, source], check=True)
    return program


def preloaded(source: Path) -> dict[str, str]:
    """Return the environment of a run that preloads the library ``source``."""
    return {"LD_PRELOAD": str(compiled(source, "-shared", "-fPIC"))}


def hanging_syncs(first: int) -> dict[str, str]:
    """Return the environment of a run in which syncfs hangs, from the ``first`` call of each process on."""
    return {**preloaded(HANGING), "PCOPY_TEST_HANGS": str(first)}


def clean_up() -> None:
    """Remove everything; called once at the end of the session."""
    compiled.cache_clear()
    while _made:
        shutil.rmtree(_made.pop())
