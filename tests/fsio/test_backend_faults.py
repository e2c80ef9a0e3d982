"""Every system call of a copy fails once, by each plan: the result names the call, and no incomplete file remains."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan
from pcopy.fsio.backend.columns import OutcomeCode
from tests.support import native
from tests.support.faults import require_strace
from tests.support.users import is_root

PROGRAM = Path(__file__).with_name("one_batch.py")
ROOT = Path(__file__).resolve().parents[2]

NEW, REPLACE, TEMPORARY = CopyPlan.NEW, CopyPlan.REPLACE, CopyPlan.TEMPORARY
EVERY = (NEW, REPLACE, TEMPORARY, NEW | SYNC_FILE_FLAG, REPLACE | SYNC_FILE_FLAG, TEMPORARY | SYNC_FILE_FLAG)


class Fault(NamedTuple):
    """``call`` fails with ``error`` on the source, on the new file, or on its directory (``side``)."""

    call: str
    side: str
    error: int
    code: OutcomeCode
    operation: str
    plans: tuple[int, ...] = EVERY


FAULTS = (
    Fault("openat", "source", errno.EACCES, OutcomeCode.SOURCE_FAILED, "open"),
    Fault("openat", "source", errno.ENOENT, OutcomeCode.SOURCE_CHANGED, "open"),
    Fault("read", "source", errno.EIO, OutcomeCode.SOURCE_FAILED, "read"),
    Fault("flistxattr", "source", errno.EACCES, OutcomeCode.LACKS_METADATA, "listxattr"),
    Fault("newfstatat", "source", errno.EACCES, OutcomeCode.SOURCE_FAILED, "fstat"),
    Fault("close", "source", errno.EIO, OutcomeCode.SOURCE_FAILED, "close"),
    Fault("openat", "made", errno.ENOSPC, OutcomeCode.FAILED, "create"),
    Fault("openat", "made", errno.EEXIST, OutcomeCode.DECIDE_AGAIN, "create", (NEW, NEW | SYNC_FILE_FLAG)),
    Fault("openat", "made", errno.EEXIST, OutcomeCode.FAILED, "create", (REPLACE, TEMPORARY)),
    Fault("write", "made", errno.EDQUOT, OutcomeCode.FAILED, "write"),
    Fault("fchown", "made", errno.EIO, OutcomeCode.LACKS_METADATA, "chown"),
    Fault("fchmod", "made", errno.EIO, OutcomeCode.LACKS_METADATA, "chmod"),
    Fault("utimensat", "made", errno.EIO, OutcomeCode.LACKS_METADATA, "utimensat"),
    Fault(
        "fsync",
        "made",
        errno.EIO,
        OutcomeCode.FAILED,
        "fsync",
        (NEW | SYNC_FILE_FLAG, REPLACE | SYNC_FILE_FLAG, TEMPORARY | SYNC_FILE_FLAG),
    ),
    Fault("close", "made", errno.EDQUOT, OutcomeCode.FAILED, "close"),
    Fault(
        "rename,renameat,renameat2",
        "made",
        errno.EIO,
        OutcomeCode.FAILED,
        "rename",
        (REPLACE, REPLACE | SYNC_FILE_FLAG),
    ),
)
CASES = [(fault, plan) for fault in FAULTS for plan in fault.plans]


def _name(case: tuple[Fault, int]) -> str:
    fault, plan = case
    synced = "-synced" if plan & SYNC_FILE_FLAG else ""
    return f"{fault.call}-{fault.side}-{errno.errorcode[fault.error]}-{CopyPlan(plan & ~SYNC_FILE_FLAG).name}{synced}"


THREADS = {"python": 0, "c": 0, "c-threads": 2}


@pytest.mark.in_turn(75)
@pytest.mark.parametrize("backend", THREADS)
@pytest.mark.parametrize(("fault", "plan"), CASES, ids=map(_name, CASES))
def test_failing_system_call_is_reported(fault: Fault, plan: int, backend: str, area: Path) -> None:
    require_strace()
    if backend != "python":
        native.require()
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_bytes(b"content")
    if is_root():
        os.chown(source / "file", 4242, 4242)  # or else C skips chown
    over = plan & ~SYNC_FILE_FLAG == REPLACE
    if over:
        (target / "copy").write_bytes(b"old")
    made_as = target / ("copy" if plan & ~SYNC_FILE_FLAG == NEW else ".temporary")
    path = source / "file" if fault.side == "source" else made_as
    trace = area / "trace"
    line = ["strace", "-f", "-qq", "-o", str(trace), "-P", str(path), "-P", path.name, "-e", f"trace={fault.call}"]
    line += ["-e", f"inject={fault.call}:error={errno.errorcode[fault.error]}:when=1+"]
    command = [*line, sys.executable, str(PROGRAM), str(source), str(target), str(plan), str(THREADS[backend])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PCOPY_BACKEND": backend.partition("-")[0]}
    reported = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout.split()
    assert "(INJECTED)" in trace.read_text(), "a fault that never happened proves nothing"
    code, number, operation = OutcomeCode(int(reported[0])), int(reported[1]), " ".join(reported[2:])
    assert (code, number, operation) == (fault.code, fault.error, fault.operation)
    left = {path.name: path.read_bytes() for path in target.iterdir()}
    if fault.code is OutcomeCode.LACKS_METADATA:
        assert left == {"copy" if over else made_as.name: b"content"}
    else:
        assert left == ({"copy": b"old"} if over else {})
