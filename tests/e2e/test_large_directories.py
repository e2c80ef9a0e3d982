"""The memory of a rank does not depend on the number of names in a directory, in any program.

The programs run with small budgets (``tests.support.small_budgets``): with the normal ones a directory would need
millions of names before its tasks go to disk. Names are long, so that few files suffice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.command import REPOSITORY

FEW, MANY = 10_000, 40_000
MAX_GROWTH = 5 << 20
"""Growth in bytes. The names alone take 7 MB more, and several times as much as tasks and in records."""

RUNS = {
    "pcopy": "pcopy -q {source} {copy}",
    "psync": "psync -q {source}/ {copy}/",
    "pverify A B": "pverify -q {source} {copy}",
    "pverify --compare": "pverify -q --compare type,size,mtime,mode {source} {copy}",
    "ptar": "ptar -q -c -f {area}/archive.tar -C {area} source",
    "pchmod": "pchmod -q --mode u+x {copy}",
    "pwalk": "pwalk {copy}",
    "pwalk -ls": "pwalk {copy} -ls",
    "pwalk --json-lines": "pwalk --json-lines {copy}",
    "pwalk --summary": "pwalk --summary {copy}",
    "prm": "prm -q --yes {copy}",
}
"""One run of each program, in this order: later ones use the copy of the first. ``pverify --create`` is missing: its
memory reaches its largest size (56 MB) at 40,000 such names, and 100,000 more do not change it.
"""


def test_memory_does_not_grow_with_the_names_of_a_directory(area: Path) -> None:
    few, many = peaks(area / "few", FEW), peaks(area / "many", MANY)
    assert {program: size for program, size in many.items() if size - few[program] > MAX_GROWTH} == {}, (few, many)


def peaks(area: Path, number: int) -> dict[str, int]:
    """Return the largest memory of each program, in bytes, with a directory of ``number`` empty files."""
    source = area / "source"
    (source / "inner").mkdir(parents=True)
    (area / "temporary").mkdir()
    directory = os.open(source / "inner", os.O_RDONLY)
    for each in range(number):
        os.close(os.open(f"{each:0240d}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
    os.close(directory)
    return {
        program: peak(area, line.format(source=source, copy=area / "copy", area=area)) for program, line in RUNS.items()
    }


def peak(area: Path, line: str) -> int:
    """Return the largest resident memory of a run, in bytes. Mapped files count, too."""
    program, *arguments = line.split()
    command = [sys.executable, "-m", "tests.support.small_budgets", program, "-n", "1", *arguments]
    environment = {**os.environ, "TMPDIR": str(area / "temporary"), "XDG_STATE_HOME": str(area / "state")}
    size = 0
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            size = max([size, *(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("VmHWM:"))])
            time.sleep(0.01)
    assert process.returncode == 0, line
    return size
