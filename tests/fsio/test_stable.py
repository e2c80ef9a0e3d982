"""A sync reports success only if all data was written. A file system that has shut down has lost its unwritten data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcopy.fsio.syncer import sync_file_system
from tests.support.command import REPOSITORY
from tests.support.faults import require_strace
from tests.support.filesystems import mounted

SYNC = """\
import os, sys
from pcopy.fsio.problem import Problem
from pcopy.fsio.syncer import sync_file_system
try:
    sync_file_system(os.open(sys.argv[1], os.O_RDONLY))
except Problem as problem:
    print(problem.operation, problem.strerror)
"""


def synced(place: Path) -> str:
    """Return the output of a process whose syncfs(2) finds nothing to write, as after a journal was aborted."""
    line = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=syncfs", "-e", "inject=syncfs:retval=0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run([*line, sys.executable, "-c", SYNC, place], env=environment, capture_output=True, check=True)
    return run.stdout.decode().strip()


def test_sync_of_a_file_system_made_read_only_by_an_error_fails(area: Path) -> None:
    require_strace()
    with mounted("ext4", area, options="errors=remount-ro") as place:
        assert synced(place) == ""
        found = subprocess.run(["findmnt", "-no", "SOURCE", place], check=True, capture_output=True, text=True)
        trigger = Path("/sys/fs/ext4") / Path(found.stdout.strip()).name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip("this kernel makes no ext4 fail on demand")
        trigger.write_text("for a test")
        assert synced(place) == "syncfs Read-only file system"


def test_sync_of_a_read_only_file_system_succeeds(area: Path) -> None:
    with mounted("tmpfs", area) as place:
        for option in ("remount,rw", "remount,ro"):
            subprocess.run(["mount", "-o", option, place], check=True)
            descriptor = os.open(place, os.O_RDONLY)
            try:
                sync_file_system(descriptor)
            finally:
                os.close(descriptor)
