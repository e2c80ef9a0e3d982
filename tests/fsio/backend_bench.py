"""Two directories and a backend that copies between them, for all tests of backends. New backends are added to
``BACKENDS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, CopySmallFilesBatch, FileOperationBatch
from pcopy.fsio.backend.columns import SCAN_COLUMNS, ItemStatusColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import BackendSettings, DigestFunction, FileOperationBackend
from pcopy.fsio.backend.python import PythonBackend
from pcopy.fsio.identity import identity_mark_of
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import FileContentVersion
from tests.support import native
from tests.support.fake_backend import FakeBackend, LateBackend

BackendFactory = Callable[[BackendSettings], FileOperationBackend]


def in_c(settings: BackendSettings, threads: int = 0) -> FileOperationBackend:
    """The C backend. Skip the test if it could not be built."""
    native.require()
    from pcopy.fsio.backend.native import NativeBackend

    backend = NativeBackend(settings)
    if threads:
        backend.pool.set_thread_count(threads)
        assert backend.pool.threads == threads and not backend.runs_in_poll
    return backend


def in_c_with_threads(settings: BackendSettings) -> FileOperationBackend:
    """The C backend with four threads from the start."""
    return in_c(settings, 4)


BACKENDS: dict[str, Callable[[BackendSettings], FileOperationBackend]] = {
    "python": PythonBackend,
    "c": in_c,
    "c-threads": in_c_with_threads,
    "fake": FakeBackend,
    "late": LateBackend,
}

Outcome = int | OutcomeCode | Problem
"""The outcome of a row: the size if the file was copied, a problem, or the code of any other outcome."""


def done(backend: FileOperationBackend, batch: FileOperationBatch[Any]) -> Any:
    """Run one batch and return its result."""
    ticket = backend.submit_batch(batch)
    while not ticket.is_done:
        backend.poll()
    return ticket.result


def found(place: Path, names: Sequence[str], mask: int = SCAN_COLUMNS) -> ItemStatusColumns:
    """Return the rows that a scan would report for ``names``."""
    return ItemStatusColumns.from_statuses([(place / name).lstat() for name in names], mask)


class Bench:
    """Two directories and a backend that copies from one to the other by a given plan."""

    def __init__(self, backend: Callable[[BackendSettings], FileOperationBackend], plan: int, place: Path) -> None:
        self.backend = backend
        self.plan = plan
        self.source, self.target = place / "source", place / "target"
        self.source.mkdir()
        self.target.mkdir()

    def add(self, name: str, content: bytes = b"content") -> Path:
        path = self.source / name
        path.write_bytes(content)
        return path

    def copy(
        self,
        *names: str,
        plans: Sequence[int] | None = None,
        preserve: PreservedMetadataKinds | None = None,
        rows: ItemStatusColumns | None = None,
        inherits: bool = False,
        new_names: Sequence[bytes] | None = None,
        digest: DigestFunction | None = None,
        identified: bool = False,
    ) -> list[Outcome]:
        """Copy ``names`` and return the outcome of each. Check the version and the digest of each copied file.

        A file that was created under a temporary name is identified by its inode and renamed to its final name.
        """
        backend = self.backend(BackendSettings(preserve or PreservedMetadataKinds(), 0o022, digest=digest))
        source, target = (os.open(path, os.O_RDONLY) for path in (self.source, self.target))
        self.temporaries = [b".temporary-%d" % row for row in range(len(names))]
        before = len(os.listdir("/proc/self/fd"))
        batch = CopySmallFilesBatch(
            source,
            pack_names(map(os.fsencode, names)),
            target,
            bytes(plans or [self.plan] * len(names)),
            found(self.source, names) if rows is None else rows,
            pack_names(new_names or ()),
            pack_names(self.temporaries),
            inherits_acl=inherits,
            reports_identities=identified,
        )
        try:
            self.result, self.rows = done(backend, batch), batch.rows
            assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
        finally:
            os.close(source)
            os.close(target)
            backend.close()
        assert len(self.result.verdicts) == len(names)
        self.applied = list(self.result.metadata_outcomes.values())
        final = new_names or [os.fsencode(name) for name in names]
        return [self._outcome(row, name, os.fsdecode(final[row]), digest) for row, name in enumerate(names)]

    def _outcome(self, row: int, name: str, new_name: str, digest: DigestFunction | None) -> Outcome:
        result = self.result
        code = OutcomeCode(result.verdicts.codes[row])
        assert code is not OutcomeCode.PENDING
        temporary = self.target / os.fsdecode(self.temporaries[row])
        if code in (OutcomeCode.DONE, OutcomeCode.LACKS_METADATA) and self.plan & ~SYNC_FILE_FLAG == CopyPlan.TEMPORARY:
            self.identify(row, temporary)
            temporary.rename(self.target / new_name)
        if code is OutcomeCode.DONE:
            assert self.rows.content_version_of_row(row) == FileContentVersion.from_status((self.source / name).lstat())
            assert result.digests[row] == (digest((self.source / name).read_bytes()) if digest else b"")
            return int(result.verdicts.bytes[row])
        if code in (OutcomeCode.SKIPPED, OutcomeCode.SLOW_PATH, OutcomeCode.DECIDE_AGAIN, OutcomeCode.CANCELLED):
            return code
        problem: Problem = result.verdicts.problem(row)
        return problem

    def identify(self, row: int, path: Path) -> None:
        """Check that the file at ``path`` is the one reported as created."""
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        assert os.fstat(held).st_ino == self.result.created_inodes[row]
        assert self.result.marks[row] == identity_mark_of(held, created_by_job=True) != b""
        os.close(held)

    def target_names(self) -> list[str]:
        return sorted(path.name for path in self.target.iterdir())
