"""Standard output and standard error, whatever has become of them.

Rules: if a terminal or pipe is gone, the copy does not end, and no traceback is printed. A closed pipe changes no
status, since nobody reads it; but if a full disk loses the summary, the status must not be 0. Where a program
is run for its answer, a closed standard output must not swallow that either. Descriptors 0 to 2 that are closed are
filled before anything is opened: else what is meant for the user would be written into a file that is being copied.
Whatever the text, a terminal gets no control characters, and no characters that its locale lacks.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from pcopy.text import drawable, message_line


class Tolerant:
    """A text stream that never fails: the first thing that went wrong is remembered in ``lost``.

    ``encoding`` is that of the user's locale.
    """

    def __init__(self, stream: TextIO, *, closed: bool = False) -> None:
        """``closed``: the user had closed it before, and ``stream`` leads nowhere."""
        self._stream = stream
        self.closed = closed
        self.lost: OSError | None = None
        self.encoding = _encoding(stream)

    def write(self, text: str) -> int:
        """Escapes what the stream cannot show. Never raises ``OSError``, nor ``ValueError`` where it is closed."""
        self.write_raw(drawable(text, self.encoding))
        return len(text)

    def write_raw(self, text: str) -> None:
        """As ``write``, for what moves the cursor of a terminal; the text must be drawable, and escaped."""
        try:
            if self.closed and text:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if isinstance(self._stream, Tolerant):
                self._stream.write_raw(text)
            else:
                self._stream.write(text)
        except (OSError, ValueError) as error:
            self._lose(error)

    def flush(self) -> None:
        """As ``write``."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: OSError | ValueError) -> None:
        if self.lost is None:
            self.lost = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Drawing(Tolerant):
    """For a library that moves the cursor, and puts nothing of anybody's between."""

    def write(self, text: str) -> int:
        self.write_raw(text)
        return len(text)


def tell(program: str, text: object) -> None:
    """A line on standard error in the name of ``program``; whatever ``text`` quotes stays on that line.

    A very long one is shortened (``message_line``).
    """
    print(f"{program}: {message_line(str(text))}", file=sys.stderr, flush=True)


class Streams:
    """Both streams of a process, tolerant."""

    def __init__(self, out: Tolerant, errors: Tolerant) -> None:
        self._out = out
        self._errors = errors
        self.answers = False
        """Is what is printed all that the program is run for?"""

    def settle(self, status: int, program: str, least: int) -> int:
        """The status to end with, once everything is printed that was to be: ``least`` or more if that was lost.

        What a closed standard output loses counts only where the program ``answers``.
        """
        self._out.flush()
        lost = self._out.lost
        counts = self.answers or not self._out.closed
        if lost is not None and counts and lost.errno != errno.EPIPE and status < least:
            self._errors.write(f"{program}: standard output cannot be written: {lost.strerror}\n")
            status = least
        self._errors.flush()
        return status


@contextmanager
def standard_streams() -> Iterator[Streams]:
    """Makes ``sys.stdout`` and ``sys.stderr`` tolerant for a while."""
    _fill_descriptors()
    before = sys.stdout, sys.stderr
    out, errors = (Tolerant(stream or _nowhere(), closed=stream is None) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, errors)
    try:
        yield Streams(out, errors)
    finally:
        sys.stdout, sys.stderr = before
        for stream, descriptor in ((out, 1), (errors, 2)):
            if stream.lost is not None:
                _discard(stream, descriptor)


def _discard(stream: Tolerant, descriptor: int) -> None:
    """Drops the buffered text: the interpreter would fail to write it at exit, with status 120."""
    try:
        if stream.fileno() != descriptor:
            return
    except (OSError, ValueError):  # no file at all, or closed already
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _fill_descriptors() -> None:
    """Open the device that is always empty where a standard stream is closed, but not for what the stream is for.

    So a list or patterns from a closed standard input fail with EBADF, and are not taken for empty ones.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # the lowest that is free: this one


def _encoding(stream: TextIO) -> str:
    """In the C locale Python writes UTF-8 all the same (PEP 540)."""
    if sys.flags.utf8_mode:
        import locale

        return locale.getencoding()
    return stream.encoding or "utf-8"


def _nowhere() -> TextIO:
    return open(os.devnull, "w")
