"""A free-threaded Python, here simulated by its ABI flag: it must not load the C backend, which is for the stable ABI,
although its import system accepts the file ``_native.abi3.so``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import native

NOTICE = "notice: a free-threaded Python cannot load the C backend, and the Python backend is slower"
SCRIPT = """
import sys
sys.abiflags += "t"
sys.argv[0] = sys.argv.pop(1)
from importlib import import_module
status = import_module(f"pcopy.cli.{sys.argv[0]}").main()
loaded = "pcopy.fsio.backend._native" in sys.modules
sys.exit(f"the C backend was loaded, status {status}" if loaded else status)
"""


def run(area: Path, *words: object, backend: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a process that Python says is free-threaded."""
    env = {**os.environ, "PCOPY_BACKEND": backend, "PCOPY_KERNEL": "", "XDG_STATE_HOME": str(area / "state")}
    command = [sys.executable, "-c", SCRIPT, *map(str, words)]
    return subprocess.run(command, check=False, env=env, capture_output=True, text=True)


@pytest.fixture(autouse=True)
def trees(area: Path) -> None:
    native.require()
    (area / "source").mkdir()
    for number in range(30):
        (area / "source" / f"{number}").write_bytes(b"x" * number * 1000)


PROGRAMS = {
    "pcopy": ["-n", 2, "source", "copy"],
    "psync": ["-n", 1, "source/", "copy"],
    "pverify": ["-n", 1, "source", "source"],
    "pwalk": ["-n", 1, "source"],
    "pchmod": ["-n", 1, "--dry-run", "u+x", "source"],
    "prm": ["-n", 2, "--yes", "source"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_use_the_python_backend_and_print_one_notice(
    program: str, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(area)
    done = run(area, program, *PROGRAMS[program])
    assert done.returncode == 0, done
    assert [line for line in done.stderr.splitlines() if "free-threaded" in line] == [f"{program}: {NOTICE}"]


@pytest.mark.parametrize(("words", "backend"), [(["-q"], ""), ([], "python")])
def test_no_notice_if_quiet_or_if_the_python_backend_is_required(words: list[str], backend: str, area: Path) -> None:
    done = run(area, "pcopy", "-n", 1, *words, area / "source", area / "copy", backend=backend)
    assert done.returncode == 0 and "free-threaded" not in done.stdout + done.stderr, done
    assert len(list((area / "copy").iterdir())) == 30


def test_version_names_the_python_backend(area: Path) -> None:
    done = run(area, "pcopy", "--version")
    assert done.returncode == 0 and done.stdout.endswith("(backend python)\n")


def test_job_that_requires_the_c_backend_is_refused(area: Path) -> None:
    done = run(area, "pcopy", area / "source", area / "copy", backend="c")
    assert (done.returncode, done.stderr) == (
        2,
        "pcopy: PCOPY_BACKEND=c, but a free-threaded Python cannot load the C backend: unset it, or install pcopy for "
        "another Python\n",
    )
    assert not (area / "copy").exists()
