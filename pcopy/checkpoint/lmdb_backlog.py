"""Queue of waiting tasks in an LMDB database on a node-local file system, for tasks that do not fit into memory.

The database is only a cache; durable records are in the job directory. So it is never synced, and its file is unlinked
as soon as it is open: nothing remains in the spool directory however the process ends. The database contains frames
(groups of pickled tasks) under ascending numbers. It is not opened with a writable memory map: writing to such a map on
a full file system would end the process by SIGBUS, while write(2) returns an error.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import lmdb

from pcopy.engine.backlog import FULL_FRAME_BYTES, TaskBacklog
from pcopy.fsio.named_file import rename_proof_directory_path
from pcopy.libc import free_space_in_bytes
from pcopy.text import printable_path, printable_text

FIRST_MAP_BYTES = 64 << 20
"""Size in bytes of the first memory map of a database. The database cannot become larger than its map; when it is full,
the map is doubled. A map only reserves addresses.
"""

MAX_TOUCHED_BYTES = 16 << 20
"""Bytes of frames that are written and read before the database is mapped anew. Pages of the file that were accessed
through the map count as memory of the process until then, although the kernel may drop them.
"""

MIN_FREE_BYTES = 2 * FULL_FRAME_BYTES
"""If a write to the database failed and the file system has less free space in bytes than this, the error is reported
as a full file system.
"""

_T = TypeVar("_T")


class LmdbBacklog(TaskBacklog):
    """Queue of tasks in an LMDB database, for tasks that do not fit in memory. Tasks are stored in groups (frames). If
    a frame cannot be written, for example because the disk is full, its tasks stay in memory.
    """

    def __init__(self, spool: bytes) -> None:
        """Create an empty queue of tasks. ``spool`` is an existing directory, in which the database is created when the
        first tasks are stored.
        """
        super().__init__()
        self._spool = spool
        self._map_size = FIRST_MAP_BYTES
        self._touched_bytes = 0
        self._database: lmdb.Environment | None = None
        self._first_undeleted = 0
        self._oldest = 0
        self._next = 0

    def _store_frame(self, frame: bytes) -> None:
        """Store ``frame``, a packed list of tasks, in the database under the next number. May raise ``OSError``."""
        key = self._next.to_bytes(8, "big")

        def put(database: lmdb.Environment) -> None:
            """Store the frame in ``database``."""
            with database.begin(write=True) as transaction:
                transaction.put(key, frame, append=True)

        self._run_transaction(put)
        self._next += 1
        self._count_touched_bytes(len(frame))

    def _load_frame(self) -> bytes | None:
        """Remove and return the oldest stored frame, a packed list of tasks; return None if there is none. May raise
        ``OSError``.
        """
        if self._oldest == self._next:
            return None
        key = self._oldest.to_bytes(8, "big")

        def get(database: lmdb.Environment) -> bytes | None:
            """Return the oldest frame in ``database``."""
            with database.begin() as transaction:
                return transaction.get(key)

        frame = self._run_transaction(get)
        if frame is None:
            raise self._spool_error(errno.EIO, "a frame is missing from the database")
        self._oldest += 1
        with suppress(lmdb.Error):  # deleting writes, and a full disk must not prevent reading
            self._delete_frames_already_read()
        if self._oldest == self._next and self._map_size > FIRST_MAP_BYTES:
            self._close_database()  # because the file never shrinks; the next frame gets a new database
        else:
            self._count_touched_bytes(len(frame))
        return frame

    def _count_touched_bytes(self, number: int) -> None:
        """Count ``number`` bytes of a frame that was written or read; map the database anew if they are enough."""
        self._touched_bytes += number
        if self._touched_bytes >= MAX_TOUCHED_BYTES:
            self._touched_bytes = 0
            self._map_database(self._map_size)

    def _delete_frames_already_read(self) -> None:
        """Delete the groups of tasks that have been read from the database, so that later ones can use their space."""
        assert self._database is not None
        with self._database.begin(write=True) as transaction:
            for number in range(self._first_undeleted, self._oldest):
                transaction.delete(number.to_bytes(8, "big"))
        self._first_undeleted = self._oldest

    def _run_transaction(self, action: Callable[[lmdb.Environment], _T]) -> _T:
        """Run ``action``, one transaction on the database, and return its result. If the database is full, enlarge it
        and run the transaction again. Raise ``OSError``.
        """
        while True:
            try:
                if self._database is None:
                    self._database = self._open_database()
                return action(self._database)
            except lmdb.MapFullError:
                self._map_database(2 * self._map_size)
            except lmdb.Error as error:
                if isinstance(error, lmdb.DiskError) or self._is_file_system_full():
                    raise self._spool_error(errno.ENOSPC, f"no room for waiting tasks: {error}") from error
                raise self._spool_error(errno.EIO, f"waiting tasks cannot be stored: {error}") from error

    def _map_database(self, size: int) -> None:
        """Replace the memory map of the database by one of ``size`` bytes. Raise ``OSError``."""
        assert self._database is not None
        try:
            self._database.set_mapsize(size)
        except lmdb.Error as error:
            why = f"no address space for a map of {size} bytes: {error}"
            raise self._spool_error(errno.ENOMEM, why) from error
        self._map_size = size

    def _is_file_system_full(self) -> bool:
        """Return True if the file system of the database is full. LMDB itself reports a partial write to a full file
        system as an input/output error.
        """
        status = os.statvfs(self._spool)
        try:
            return free_space_in_bytes(status) < MIN_FREE_BYTES
        except OSError:  # the free space is unknown
            return False

    def _open_database(self) -> lmdb.Environment:
        """Return a new, empty database whose file is unlinked already. No other user could open the file before,
        because its directory had mode 0700.
        """
        self._map_size = FIRST_MAP_BYTES
        with rename_proof_directory_path(self._spool) as spool:
            place = tempfile.mkdtemp(prefix=b"pcopy-spool-", dir=spool)
            try:
                return lmdb.open(
                    os.fsdecode(place),
                    map_size=self._map_size,
                    mode=0o600,
                    sync=False,
                    lock=False,
                    readahead=False,
                    meminit=False,
                )
            finally:
                for name in os.listdir(place):
                    os.unlink(os.path.join(place, name))
                os.rmdir(place)

    def _spool_error(self, number: int, why: str) -> OSError:
        """Return an ``OSError`` that concerns the spool directory, with the errno ``number`` and the reason ``why``."""
        return OSError(number, printable_text(why), printable_path(self._spool))

    def _close_database(self) -> None:
        """Close the database, which frees its space."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> None:
        """Drop all tasks and close the database."""
        super().close()
        self._close_database()
        self._first_undeleted = self._oldest = self._next = 0
