"""Copy one file by one plan, for ``test_backend_faults``. Print the code, errno and operation, separated by spaces."""

from __future__ import annotations

import os
import sys

from pcopy.fsio.backend.batches import CopySmallFilesBatch
from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.columns import OPERATION_NAMES, SCAN_COLUMNS, ItemStatusColumns
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds


def main(source: str, target: str, plan: str, threads: str) -> None:
    """The source is ``file``, the copy is ``copy`` and has the temporary name ``.temporary``. ``threads`` is the number
    of threads of the C backend.
    """
    rows = ItemStatusColumns(1, SCAN_COLUMNS)
    rows.set_statuses(
        0, [os.lstat(os.path.join(source, "./file"))]
    )  # which strace does not take for the file, but the rest
    reading, writing = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target))
    backend = create_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    if int(threads):
        assert backend.pool is not None
        backend.pool.request_threads(int(threads))
    ticket = backend.submit_batch(
        CopySmallFilesBatch(reading, b"file", writing, bytes([int(plan)]), rows, b"copy", b".temporary")
    )
    while not ticket.is_done:
        backend.poll()
    verdicts = ticket.result.verdicts
    print(verdicts.codes[0], verdicts.errnos[0], OPERATION_NAMES[verdicts.operations[0]])


if __name__ == "__main__":
    main(*sys.argv[1:])
