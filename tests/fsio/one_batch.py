"""Copies one file by one plan, for ``test_kernel_faults``: prints code, errno and operation, separated by spaces."""

from __future__ import annotations

import os
import sys

from pcopy.fsio.kernel.batches import Copy
from pcopy.fsio.kernel.choose import make_kernel
from pcopy.fsio.kernel.columns import FOUND, OPERATIONS, Rows
from pcopy.fsio.kernel.interface import Settings
from pcopy.fsio.preserve import Preserve


def main(source: str, target: str, plan: str, threads: str) -> None:
    """The file is called ``file``, its copy ``copy``, and that is called ``.temporary`` before; done by ``threads``."""
    rows = Rows(1, FOUND)
    rows.put(0, [os.lstat(os.path.join(source, "./file"))])  # which strace does not take for the file, but the rest
    reading, writing = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target))
    kernel = make_kernel(Settings(Preserve(), 0o022))
    if int(threads):
        assert kernel.pool is not None
        kernel.pool.want(int(threads))
    ticket = kernel.submit(Copy(reading, b"file", writing, bytes([int(plan)]), rows, b"copy", b".temporary"))
    while not ticket.is_done:
        kernel.poll()
    verdicts = ticket.result.verdicts
    print(verdicts.codes[0], verdicts.errnos[0], OPERATIONS[verdicts.operations[0]])


if __name__ == "__main__":
    main(*sys.argv[1:])
