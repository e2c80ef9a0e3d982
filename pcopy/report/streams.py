"""Standard output and standard error that tolerate errors.

Rules:
- If a terminal or pipe is closed, the job does not end, and no traceback is printed.
- A closed pipe does not change the exit status, since no process reads it. But if the summary is lost on a full disk,
  the status must not be 0.
- If a program is run for its output, a closed standard output also changes the status.
- Closed descriptors 0 to 2 are opened before any other file: otherwise output for the user would be written into a file
  that is being copied.
- A terminal gets no control characters, and no characters that its locale lacks.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from pcopy.text import encodable_text, one_line_message


class TolerantStream:
    """A text stream whose methods never fail; the first error is stored in ``first_error``.

    ``encoding`` is that of the user's locale.
    """

    def __init__(self, stream: TextIO, *, closed: bool = False) -> None:
        """Wrap ``stream``. ``closed``: the descriptor was closed when the program started, and ``stream`` is a
        substitute.
        """
        self._stream = stream
        self.closed = closed
        self.first_error: OSError | None = None
        self.encoding = _locale_encoding(stream)

    def write(self, text: str) -> int:
        """Write text, with characters escaped that the stream cannot show.

        Never raises ``OSError``, nor ``ValueError`` for a closed stream.
        """
        self.write_raw(encodable_text(text, self.encoding))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write text without escaping, for text that moves the cursor; all other characters must be escaped already."""
        try:
            if self.closed and text:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if isinstance(self._stream, TolerantStream):
                self._stream.write_raw(text)
            else:
                self._stream.write(text)
        except (OSError, ValueError) as error:
            self._store_error(error)

    def flush(self) -> None:
        """Flush the stream; never raises, as ``write``."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._store_error(error)

    def _store_error(self, error: OSError | ValueError) -> None:
        """Store the first error."""
        if self.first_error is None:
            self.first_error = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class RawStream(TolerantStream):
    """A stream for a library that moves the cursor: text is written unchanged."""

    def write(self, text: str) -> int:
        self.write_raw(text)
        return len(text)


def print_error(program: str, text: object) -> None:
    """Print a line to standard error, beginning with the name of the program; control characters in ``text`` are
    escaped.

    A very long line is shortened (``one_line_message``).
    """
    print(f"{program}: {one_line_message(str(text))}", file=sys.stderr, flush=True)


class StandardStreams:
    """Standard output and standard error of a process, as tolerant streams."""

    def __init__(self, out: TolerantStream, errors: TolerantStream) -> None:
        self._out = out
        self._errors = errors
        self.is_output_essential = False
        """True if the output is the only purpose of the program."""

    def final_status(self, status: int, program: str, least: int) -> int:
        """Flush both streams; return the exit status: at least ``least`` if output was lost, else ``status``.

        Output that was lost because standard output was closed counts only if ``answers`` is set.
        """
        self._out.flush()
        lost = self._out.first_error
        is_relevant = self.is_output_essential or not self._out.closed
        if lost is not None and is_relevant and lost.errno != errno.EPIPE and status < least:
            self._errors.write(f"{program}: standard output cannot be written: {lost.strerror}\n")
            status = least
        self._errors.flush()
        return status


@contextmanager
def standard_streams() -> Iterator[StandardStreams]:
    """Replace ``sys.stdout`` and ``sys.stderr`` by tolerant streams during the block."""
    _open_closed_descriptors()
    before = sys.stdout, sys.stderr
    out, errors = (TolerantStream(stream or _open_null_device(), closed=stream is None) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, errors)
    try:
        yield StandardStreams(out, errors)
    finally:
        sys.stdout, sys.stderr = before
        for stream, descriptor in ((out, 1), (errors, 2)):
            if stream.first_error is not None:
                _discard_buffer(stream, descriptor)


def _discard_buffer(stream: TolerantStream, descriptor: int) -> None:
    """Discard buffered text after an error: the interpreter would try to write it at exit, and exit with status 120."""
    try:
        if stream.fileno() != descriptor:
            return
    except (OSError, ValueError):  # not a file, or closed already
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _open_closed_descriptors() -> None:
    """Open /dev/null on closed descriptors of standard streams, in the wrong direction.

    So reading a list from a closed standard input fails with EBADF, and does not yield an empty list.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # open() returns the lowest free descriptor: this one


def _locale_encoding(stream: TextIO) -> str:
    """Return the encoding of the user's locale: in the C locale Python would use UTF-8 (PEP 540)."""
    if sys.flags.utf8_mode:
        import locale

        return locale.getencoding()
    return stream.encoding or "utf-8"


def _open_null_device() -> TextIO:
    """Open /dev/null for writing."""
    return open(os.devnull, "w")
