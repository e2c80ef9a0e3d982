"""The C backend by itself: under sanitizers, driven by ``harness.c``, and as strict compilers see it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.extent import everything, seed
from tests.support.native import SOURCES
from tests.support.preload import compiled

HARNESS = Path(__file__).with_name("harness.c")
FILES = sorted(SOURCES.glob("*.c"))
WRAPPED = (
    *("openat", "read", "write", "close", "fstat", "fstatat", "pk_statx", "flistxattr", "fgetxattr", "fsetxattr"),
    *("fremovexattr", "fchown", "fchmod", "futimens", "fsync", "renameat", "mkdirat"),
)
"""Calls that fail, or do less than they were asked for, at the harness's will."""

SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
ROUNDS = 25
SEEDS = 40 if everything() else 2

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wvla", "-Wmissing-prototypes", "-Wstrict-prototypes")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", SANITIZERS)
def test_backend_passes_harness_under_sanitizers(library: str, area: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler here")
    name = f"lib{library}.so"
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
    if found.strip() == name:
        pytest.skip(f"there is no {name} here")
    flags = ["-std=gnu11", "-g", "-O1", f"-fsanitize={SANITIZERS[library]}", "-fno-sanitize-recover=all", "-pthread"]
    flags += [f"-I{SOURCES}", f"-I{HARNESS.parent}", *(f"-Wl,--wrap={call}" for call in WRAPPED), *map(str, FILES)]
    program = compiled(HARNESS, *flags)
    for number in range(seed() * SEEDS, (seed() + 1) * SEEDS):
        place = area / f"{number}"
        place.mkdir()
        run = _run([program, str(number), str(ROUNDS), place])
        assert run.returncode == 0, f"harness {number} {ROUNDS} {place}:\n{run.stderr[-6000:]}"
        shutil.rmtree(place)


def _run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(command, check=False, capture_output=True, text=True, errors="backslashreplace")
    if "unexpected memory mapping" in run.stderr:  # of the thread sanitizer, on kernels that place things far apart
        return _run(["setarch", "-R", *command])
    return run


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_strict_compiler_gives_no_warnings(file: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler here")
    command = [compiler, "-std=gnu11", "-O2", *STRICT, "-Werror", "-c", "-o", "/dev/null", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
