"""An output file of a job, such as metrics or a report, that is replaced by rename.

So a reader finds either the old or the new contents. The directory of the file is opened once, before the job begins:
if a component of its path is renamed later, the file is still written to the same directory.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pcopy.errors import path_refused
from pcopy.fsio import durable
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.durable import Durability
from pcopy.fsio.named_file import check_is_replaceable_file, open_parent_directory
from pcopy.signature.replacing import temporary_umask

_NEW_FILE_MODE = 0o644
"""Mode of a new file, before the umask: all users may read it, because a metrics exporter runs as another user."""


class OutputFile:
    """An output file of a job, which need not exist yet: its ``name``, and the open directory in which it is
    replaced.
    """

    def __init__(self, path: bytes, umask: int | None = None) -> None:
        """Open the directory of ``path``, and check that the file can be created or replaced there.

        ``umask``: for new files; None: the process's umask. Raise ``RequestRefused`` if the file cannot be written.
        """
        self.path = path
        self._umask = umask
        self._temporary = b".pcopy-" + os.urandom(8).hex().encode()
        try:
            self._directory, self.name, _, _ = open_parent_directory(path)
        except OSError as error:
            raise path_refused(path, f"its directory cannot be opened: {error.strerror}") from None
        try:
            self._check_file_can_be_created()
        except OSError as error:
            os.close(self._directory)
            raise path_refused(path, f"cannot be written: {error.strerror}; name another file") from None

    def _check_file_can_be_created(self) -> None:
        """Create and remove a temporary file in the directory; raise ``OSError`` if that is not possible."""
        check_is_replaceable_file(self._directory, self.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with durable.unsupported_errors_as_problem("create", "cannot create files with a leading dot"):
            os.close(os.open(self._temporary, flags, 0o600, dir_fd=self._directory))
        os.unlink(self._temporary, dir_fd=self._directory)

    def read(self, most: int) -> bytes:
        """Return the first bytes of the existing file, at most ``most``; empty if none exists or it cannot be read."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError), closing_descriptor(os.open(self.name, flags, dir_fd=self._directory)) as descriptor:
            return os.read(descriptor, most)
        return b""

    def replace(self, contents: bytes, *, durable_contents: bool = False) -> None:
        """Replace the file by one with these ``contents``; if that fails, raise ``OSError`` and keep the old file.

        ``durable_contents``: True to wait until the contents are on stable storage before the rename. Otherwise a power
        failure may leave an empty file.
        """
        check_is_replaceable_file(self._directory, self.name)
        synced = Durability.CONTENTS if durable_contents else Durability.NOTHING
        with (
            temporary_umask(self._umask),
            durable.replacing_file(
                self._directory, self.name, self._temporary, mode=_NEW_FILE_MODE, durability=synced
            ) as stream,
        ):
            stream.write(contents)

    def close(self) -> None:
        """Close the directory; has no effect if it is closed already."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)
