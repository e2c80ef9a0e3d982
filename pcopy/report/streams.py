"""Standard output and standard error whose methods never raise an exception.

Rules:
- If the terminal, or the reader of a pipe, goes away, the job does not end, and no traceback is printed.
- A pipe without a reader does not change the exit status: the program that closed it does not want the output. But if
  the summary cannot be written because a disk is full, the status must not be 0.
- If standard output was closed when the program started, the status changes only for a program whose only purpose is
  its output.
- Descriptors 0 to 2 that are closed are opened on /dev/null before any other file is opened. Otherwise a file that is
  being copied could get such a number, and output for the user would be written into it.
- A terminal gets no control characters, and no characters that the locale's encoding lacks.
- A refused request (status 2) is reported by a line for people and, with ``--errors /dev/stderr``, one for programs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TextIO, cast

from pcopy.errors import PcopyError, RequestRefused
from pcopy.text import encodable_text, invoked_name, one_line_message, with_invoked_name

ERRORS_OPTION = "--errors"
"""The option that names the file for failures."""
_STANDARD_ERROR = "/dev/stderr"
REFUSED_OPERATION = "refuse"
"""The operation in the line about a refused request."""


class TolerantStream:
    """A text stream that writes to another one and never raises; the first error is stored in ``first_error``.

    ``encoding`` is that of the user's locale. Characters that it lacks are written as escapes.
    """

    def __init__(self, stream: TextIO, *, closed: bool = False) -> None:
        """Wrap ``stream``.

        ``closed``: True if the descriptor was closed when the program started, so that ``stream`` is a substitute. Then
        every write counts as an error.
        """
        self._stream = stream
        self.closed = closed
        self.first_error: OSError | None = None
        self.encoding = _locale_encoding(stream)

    def write(self, text: str) -> int:
        """Write ``text``; characters that the stream cannot show are written as escape sequences.

        Never raises ``OSError``, nor ``ValueError`` for a closed stream.
        """
        self.write_raw(encodable_text(text, self.encoding))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write ``text`` unchanged; the caller has escaped all characters that are not meant to move the cursor."""
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
        """Flush the stream; never raises ``OSError``, nor ``ValueError`` for a closed stream."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._store_error(error)

    def _store_error(self, error: OSError | ValueError) -> None:
        """Remember ``error`` in ``first_error`` if it is the first one; a ``ValueError`` (the stream is closed) becomes
        EBADF.
        """
        if self.first_error is None:
            self.first_error = error if isinstance(error, OSError) else OSError(errno.EBADF, os.strerror(errno.EBADF))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TolerantRawStream(TolerantStream):
    """A stream that writes text unchanged and never raises, for a library that sends control sequences to a
    terminal.
    """

    def write(self, text: str) -> int:
        self.write_raw(text)
        return len(text)


def print_error(program: str, text: object) -> None:
    """Print ``PROGRAM: text`` as one line to standard error, with control characters escaped. PROGRAM is the name under
    which ``program`` was started.

    Of a text with more than 16,384 characters the middle is omitted.
    """
    line = with_invoked_name(f"{program}: {one_line_message(str(text))}", program)
    print(line, file=sys.stderr, flush=True)


def words_before_double_dash(words: Sequence[str]) -> Sequence[str]:
    """Return the words before ``--``. The words after it are operands, even if they begin with a dash."""
    return words[: words.index("--")] if "--" in words else words


def report_refusal(program: str, error: PcopyError, words: Sequence[bytes | str]) -> None:
    """Print why the request ``words``, a command line, was refused, in one line. If an option requests it, print the
    same as a line of ``--errors`` before.
    """
    if isinstance(error, RequestRefused) and _is_record_requested(words):
        import json

        from pcopy.report.lines_file import path_as_json_values

        values = {"operation": REFUSED_OPERATION, "errno": error.code, "message": one_line_message(str(error))}
        print(json.dumps({**path_as_json_values(error.path), **values}), file=sys.stderr, flush=True)
    print_error(program, error)


def _is_record_requested(words: Sequence[bytes | str]) -> bool:
    """Return True if an option in ``words`` requests a line for programs about a refusal.

    The command line need not be valid: that may be the reason of the refusal.
    """
    options = words_before_double_dash(list(map(os.fsdecode, words)))
    pairs = pairwise(options)
    return f"{ERRORS_OPTION}={_STANDARD_ERROR}" in options or (ERRORS_OPTION, _STANDARD_ERROR) in pairs


class StandardStreams:
    """Standard output and standard error of a process.

    An error of a write (such as a full disk) does not raise an exception; it is remembered, and
    ``exit_status_after_flush`` changes the exit status of the process if necessary.
    """

    def __init__(self, out: TolerantStream, errors: TolerantStream) -> None:
        self._out = out
        self._errors = errors
        self.is_output_essential = False
        """True if standard output is the only purpose of the program, so that its loss always changes the status."""

    def exit_status_after_flush(self, status: int, program: str, least: int) -> int:
        """Flush both streams at the end of the program, and return its exit status: ``status``, but at least ``least``
        if output was lost.

        Output is lost if standard output could not be written; a message says so. The loss does not count if the reader
        of a pipe went away (EPIPE). If standard output was closed when the program started, it counts only if
        ``is_output_essential`` is True. ``program``: name for the message.
        """
        self._out.flush()
        lost = self._out.first_error
        is_relevant = self.is_output_essential or not self._out.closed
        if lost is not None and is_relevant and lost.errno != errno.EPIPE and status < least:
            self._errors.write(f"{invoked_name(program)}: standard output cannot be written: {lost.strerror}\n")
            status = least
        self._errors.flush()
        return status


@contextmanager
def tolerant_standard_streams() -> Iterator[StandardStreams]:
    """Context manager: replace ``sys.stdout`` and ``sys.stderr`` by streams that never raise, and yield these."""
    _open_null_on_closed_descriptors()
    before = sys.stdout, sys.stderr
    out, errors = (TolerantStream(stream or _open_null_device(), closed=stream is None) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, errors)
    try:
        yield StandardStreams(out, errors)
    finally:
        sys.stdout, sys.stderr = before
        for stream, descriptor in ((out, 1), (errors, 2)):
            if stream.first_error is not None:
                _discard_buffered_text(stream, descriptor)


def _discard_buffered_text(stream: TolerantStream, descriptor: int) -> None:
    """Discard the buffered text of ``stream`` after an error, by opening /dev/null on its ``descriptor``.

    Otherwise the interpreter would try to write the text again at exit, and exit with status 120.
    """
    try:
        if stream.fileno() != descriptor:
            return
    except (OSError, ValueError):  # not a file, or closed already
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _open_null_on_closed_descriptors() -> None:
    """Open /dev/null on those of the descriptors 0 to 2 that are closed: 0 for writing only, 1 and 2 for reading only.

    No file that is opened later can then get such a number. Reading a list from a closed standard input still fails
    with EBADF, and does not yield an empty list.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # open() returns the lowest free descriptor: this one


def _locale_encoding(stream: TextIO) -> str:
    """Return the encoding of the user's locale, for output to ``stream``.

    It is not always that of ``stream``: in the C locale Python uses UTF-8 (PEP 540), which such a terminal may not
    show.
    """
    if sys.flags.utf8_mode:
        import locale

        return locale.getencoding()
    return stream.encoding or "utf-8"


def _open_null_device() -> TextIO:
    """Open /dev/null for writing, as a substitute for a closed stream."""
    return open(os.devnull, "w")
