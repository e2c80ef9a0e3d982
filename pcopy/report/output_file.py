"""A file about a job that is replaced as a whole, so that a reader finds either the old or the new contents.

Its directory is opened once, before the job begins. Later changes of the path to it have no effect.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pcopy.errors import RequestRefused
from pcopy.fsio import durable
from pcopy.fsio.close import closed_at_end
from pcopy.fsio.durable import Durability
from pcopy.fsio.named_file import check_replaceable, open_directory_of
from pcopy.signature.replacing import temporary_umask
from pcopy.text import printable_path

_FILE_MODE = 0o644
"""Mode of the file, further restricted by the umask: programs of other users read it, such as a metrics exporter."""


class OutputFile:
    """A file by its ``name`` in an open directory."""

    def __init__(self, path: bytes, umask: int | None = None) -> None:
        """Open the directory, and test that a file can be created there; raise ``RequestRefused`` if not.

        ``umask``: for new files; None: the process's umask.
        """
        self.path = path
        self._umask = umask
        self._temporary = b".pcopy-" + os.urandom(8).hex().encode()
        try:
            self._directory, self.name, _, _ = open_directory_of(path)
        except OSError as error:
            raise RequestRefused(f"{printable_path(path)}: its directory cannot be opened: {error.strerror}") from None
        try:
            self._check_creatable()
        except OSError as error:
            os.close(self._directory)
            raise RequestRefused(
                f"{printable_path(path)}: cannot be written: {error.strerror}; name another file"
            ) from None

    def _check_creatable(self) -> None:
        """Create and remove a temporary file as a test; raise ``OSError``."""
        check_replaceable(self._directory, self.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with durable.explained_errors("create", "cannot create files with a leading dot"):
            os.close(os.open(self._temporary, flags, 0o600, dir_fd=self._directory))
        os.unlink(self._temporary, dir_fd=self._directory)

    def read(self, most: int) -> bytes:
        """Return up to ``most`` bytes of the existing file; empty if it is no regular file or cannot be read."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with suppress(OSError), closed_at_end(os.open(self.name, flags, dir_fd=self._directory)) as descriptor:
            return os.read(descriptor, most)
        return b""

    def replace(self, contents: bytes, *, durable_contents: bool = False) -> None:
        """Replace the file; raise ``OSError`` and keep the old file if that fails.

        ``durable_contents``: wait until the contents are on stable storage before the rename.
        """
        check_replaceable(self._directory, self.name)
        synced = Durability.CONTENTS if durable_contents else Durability.NOTHING
        with (
            temporary_umask(self._umask),
            durable.replaced_file(
                self._directory, self.name, self._temporary, mode=_FILE_MODE, durability=synced
            ) as stream,
        ):
            stream.write(contents)

    def close(self) -> None:
        """Close the directory; has no effect if it is closed already."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)
