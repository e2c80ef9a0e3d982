"""Tasks that wait outside memory, in an LMDB database on a node-local file system.

The database is a cache: what is durable stands in the job directory. So it is never synced, and its file loses its name
as soon as it is open: whatever ends the process, nothing is left in the spool directory. It holds frames of pickled
primitives under ascending numbers. The map is no writable one, since a full file system would end the process (SIGBUS)
where a write returns an error.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import lmdb

from pcopy.engine.backlog import FRAME_BYTES, Backlog
from pcopy.fsio.named_file import held_directory
from pcopy.libc import free_bytes
from pcopy.text import harmless, shown

FIRST_MAP = 64 << 20
"""Bytes of the first map; each further one is twice as large. A map is addresses, and takes no room itself."""

LEAST_ROOM = 2 * FRAME_BYTES
"""With fewer bytes free, a file system counts as full once a write has failed."""

_T = TypeVar("_T")


class LmdbBacklog(Backlog):
    """Its frames are in a database. What could not be written, for a spool directory that is full, stays in memory."""

    def __init__(self, spool: bytes) -> None:
        """``spool`` is an existing directory."""
        super().__init__()
        self._spool = spool
        self._map_size = FIRST_MAP
        self._database: lmdb.Environment | None = None
        self._deleted = 0
        self._oldest = 0
        self._next = 0

    def _put(self, frame: bytes) -> None:
        key = self._next.to_bytes(8, "big")

        def put(database: lmdb.Environment) -> None:
            with database.begin(write=True) as transaction:
                transaction.put(key, frame, append=True)

        self._do(put)
        self._next += 1

    def _take(self) -> bytes | None:
        if self._oldest == self._next:
            return None
        key = self._oldest.to_bytes(8, "big")

        def get(database: lmdb.Environment) -> bytes | None:
            with database.begin() as transaction:
                return transaction.get(key)

        frame = self._do(get)
        if frame is None:
            raise self._failed(errno.EIO, "a frame has vanished")
        self._oldest += 1
        with suppress(lmdb.Error):  # deleting writes, and a full disk must not keep tasks from being taken
            self._delete_taken()
        if self._oldest == self._next and self._map_size > FIRST_MAP:
            self._close_database()  # its file never shrinks
        return frame

    def _delete_taken(self) -> None:
        """Gives the room of taken frames to later ones: of this one, and of any where that has failed."""
        assert self._database is not None
        with self._database.begin(write=True) as transaction:
            for number in range(self._deleted, self._oldest):
                transaction.delete(number.to_bytes(8, "big"))
        self._deleted = self._oldest

    def _do(self, action: Callable[[lmdb.Environment], _T]) -> _T:
        """Runs ``action``, which is one transaction, in as large a map as it needs."""
        while True:
            try:
                if self._database is None:
                    self._database = self._open()
                return action(self._database)
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                if isinstance(error, lmdb.DiskError) or self._full():
                    raise self._failed(errno.ENOSPC, f"no room for tasks that wait: {error}") from error
                raise self._failed(errno.EIO, f"tasks that wait cannot be put aside: {error}") from error

    def _grow(self) -> None:
        assert self._database is not None
        try:
            self._database.set_mapsize(2 * self._map_size)
        except lmdb.Error as error:
            why = f"no addresses for a map of {2 * self._map_size} bytes: {error}"
            raise self._failed(errno.ENOMEM, why) from error
        self._map_size *= 2

    def _full(self) -> bool:
        """Whether there is no room: LMDB calls a write that was cut short by that an input/output error."""
        status = os.statvfs(self._spool)
        try:
            return free_bytes(status) < LEAST_ROOM
        except OSError:  # unknown
            return False

    def _open(self) -> lmdb.Environment:
        """An empty database without a name; its directory had mode 0700."""
        self._map_size = FIRST_MAP
        with held_directory(self._spool) as spool:
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

    def _failed(self, number: int, why: str) -> OSError:
        return OSError(number, harmless(why), shown(self._spool))

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> None:
        super().close()
        self._close_database()
        self._deleted = self._oldest = self._next = 0
