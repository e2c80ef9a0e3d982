"""The output of a walk on rank 0: lists on standard output and in files, each in its own format.

Rule: a file appears under its name only when it is complete. After the first error, nothing more is written, and the
job stops.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from pcopy.errors import REFUSED, STOPPED, Refused
from pcopy.fsio.close import held_open
from pcopy.jobs.spool import spool_in
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import InFront, Sink
from pcopy.text import shown
from pcopy.walk.forms import FIELDS, Form, csv_head, first_line, form_of
from pcopy.walk.matching import Items
from pcopy.walk.sorting import SortedItems
from pcopy.walk.sums import WalkSums

if TYPE_CHECKING:
    from pcopy.walk.layout_sums import AllLayoutSums

ENDINGS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "list", ".lst": "list"}
"""Format of a file of ``--output``, by its extension."""

_BEGINNINGS = {"jsonl": b'{"format": "pcopy listing"', "csv": b"path,path_b64,type", "parquet": b"PAR1"}
"""First bytes of files, by format, that may be replaced without ``--force``."""


class ListTarget(NamedTuple):
    """One list: its format ``form``, and its file; an empty path means standard output."""

    form: str
    path: bytes = b""


def target_of(path: bytes, *, nul: bool) -> ListTarget:
    """Return the list for a file of ``--output``. Raise ``Refused`` if its extension is unknown."""
    ending = os.path.splitext(os.fsdecode(path))[1]
    form = ENDINGS.get(ending)
    if form is None:
        raise Refused(
            f"{shown(path)}: its format is chosen by its extension, which must be one of {', '.join(ENDINGS)}"
        )
    if form == "parquet":
        _check_parquet()
    return ListTarget("nul" if nul and form == "list" else form, path)


def _check_parquet() -> None:
    """Raise ``Refused`` if pyarrow is not installed."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise Refused("Parquet needs pyarrow: pip install pyarrow; or name a file that ends in .csv or .jsonl")


def check_file(target: ListTarget, *, force: bool, begins: bytes = b"") -> None:
    """Raise ``Refused`` if the file exists and must not be replaced.

    It may be replaced if it is empty, begins like an older list of this format, or begins with ``begins``; with
    ``force``, if it is a regular file.
    """
    from pcopy.fsio.named_file import NotTrusted

    path = target.path
    try:
        beginning = _beginning(path)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        if directory and not os.path.isdir(directory):
            raise Refused(f"{shown(path)}: the directory {shown(directory)} does not exist; make it first") from None
        return
    except OSError as error:
        if error.errno == errno.EPERM and isinstance(error, NotTrusted):
            raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
        if error.errno == errno.ELOOP:
            raise Refused(f"{shown(path)}: is a symbolic link; name the file itself") from None
        if isinstance(error, NotTrusted):
            raise Refused(f"{shown(path)}: {error.strerror}; name another file") from None
        raise Refused(f"{shown(path)}: is there already, and cannot be replaced: {error.strerror}") from None
    expected = begins or _BEGINNINGS.get(target.form)
    if beginning and not force and not (expected and beginning.startswith(expected)):
        raise Refused(
            f"{shown(path)}: exists already, and is not recognised as an older file of this kind; "
            "name another file, or use --force"
        )


def _beginning(path: bytes) -> bytes:
    """Return the first bytes of a file that may be replaced. Raise ``OSError``, also if it is not a regular file."""
    from pcopy.fsio.named_file import open_directory_of, refuse_to_replace

    directory = open_directory_of(path)
    with held_open(directory.descriptor):
        refuse_to_replace(directory.descriptor, directory.name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(directory.name, flags, dir_fd=directory.descriptor), "rb") as file:
            return file.read(64)


class Outputs(InFront):
    """Sink that receives what the ranks have found (``pcopy.tasks.walk.tell_found.Hearer``) and writes the lists."""

    def __init__(
        self,
        sink: Sink,
        targets: Sequence[ListTarget],
        fields: Sequence[str],
        sort: str,
        umask: int | None,
        writer: str,
    ) -> None:
        """Create the files of the lists. Raise ``Refused`` if one cannot be created.

        Args:
            sink: the sink to which everything else is passed.
            targets: the lists.
            fields: the fields of each item.
            sort: the field by which items are sorted, or empty.
            umask: the umask of the user, for the modes of the files.
            writer: part of the temporary names of the files.
        """
        super().__init__(sink)
        self.trouble = ""
        """Reason why writing has stopped, or ""."""
        self.status = STOPPED
        """Exit status of the job if writing has stopped."""
        self.is_closed = False
        """True if the reader of standard output has closed it (EPIPE)."""
        self._sorted = SortedItems(sort, spool_in(b"")) if sort else None
        self.sums: WalkSums | None = None
        """Sums over all ranks, if asked for."""
        self.layouts: AllLayoutSums | None = None
        """Sums of the layouts on Lustre over all ranks; None if there are none."""
        self._files = ExitStack()
        self._outputs = []
        for target in targets:
            stream = self._opened(target.path, umask, writer) if target.path else _StandardOutput()
            self._outputs.append(_output(target, stream, fields))

    def _opened(self, path: bytes, umask: int | None, writer: str) -> BinaryIO:
        """Create the file ``path``, which gets its name at the end. Raise ``Refused`` if it cannot be created."""
        from pcopy.signature.replacing import replacing

        try:
            self._files.enter_context(_naming(path))
            return self._files.enter_context(replacing(path, umask, writer, unnamed=True))
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None

    def written(self, parts: Sequence[bytes]) -> str:
        """Write some bytes to each list. Return the reason why the job must stop, or ""."""
        for output, part in zip(self._outputs, parts, strict=True):
            self._try(output, output.write, part)
        return self.trouble

    def listed(self, items: Items) -> str:
        """Write items with their columns to each list. Return the reason why the job must stop, or ""."""
        if self._sorted is not None:
            self._sorted.add(items)
        else:
            self._put(items)
        return self.trouble

    def spoiled(self, why: str) -> None:
        """Record that the lists cannot become complete, because of ``why``: none appears."""
        if not self.trouble:
            is_begun = any(not output.path and output.has_begun for output in self._outputs)
            more = "; the list on standard output is incomplete" if is_begun else ""
            self.trouble, self.status = why + more, REFUSED

    def summed(self, words: bytes, layouts: bytes) -> None:
        """Add the sums of one rank, and its sums of layouts."""
        if self.sums is not None:
            self.sums.merge(words)
        if layouts:
            from pcopy.walk.layout_sums import AllLayoutSums

            self.layouts = self.layouts or AllLayoutSums()
            self.layouts.merge(layouts)

    def _put(self, items: Items) -> None:
        """Write items to each list."""
        for output in self._outputs:
            self._try(output, output.put, items)

    def _try(self, output: Output, call: Any, *arguments: Any) -> None:
        """Call ``call`` to write to ``output``, unless writing has stopped. An error stops writing."""
        if self.trouble:
            return
        try:
            call(*arguments)
        except Refused as refused:
            self.trouble, self.status = str(refused), REFUSED
        except OSError as error:
            self.is_closed = error.errno == errno.EPIPE and not output.path
            where = f"{shown(output.path)}:" if output.path else "standard output"
            self.trouble = f"{where} cannot be written: {error.strerror}"

    def finish(self) -> None:
        """Write what remains, in order if sorted, and rename the files to their final names, after everything was
        found.
        """
        if self._sorted is not None:
            for items in self._sorted.in_order():
                self._put(items)
                if self.trouble:
                    break
        for output in self._outputs:
            self._try(output, output.finish)
        if self.trouble:
            self.abandon()
            return
        try:
            self._files.close()
        except OSError as error:
            self.trouble = error.strerror or "a list cannot be written"

    def abandon(self) -> None:
        """Remove the incomplete files. Calling it again has no effect."""
        self._files.__exit__(Refused, Refused("stopped"), None)


class _Unwritten(OSError):
    """An error whose text contains the path of the file."""


@contextmanager
def _naming(path: bytes) -> Iterator[None]:
    """Convert errors of the system in the block into ``_Unwritten`` errors that name the file ``path``."""
    try:
        yield
    except _Unwritten:  # The error is one of another file, because of which this one is removed.
        raise
    except OSError as error:
        raise _Unwritten(error.errno, f"{shown(path)}: cannot be written: {error.strerror}") from error


class _StandardOutput:
    """Writes to descriptor 1 directly, without the buffer of Python. Raises EBADF if the user had closed standard
    output: descriptor 1 then leads to ``/dev/null``.
    """

    def write(self, part: bytes) -> None:
        if sys.stdout.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


class Output(Protocol):
    """Protocol of a writer of one list."""

    path: bytes
    """Path of the file; empty: standard output."""
    has_begun: bool
    """True if anything was written."""

    def write(self, part: bytes) -> None:
        """Write bytes in the format of the list.

        Raise ``OSError`` if that fails, as the other methods do, and ``Refused`` for a name that this format cannot
        represent.
        """

    def put(self, items: Items) -> None:
        """Write items with their columns."""

    def finish(self) -> None:
        """Complete the list."""


class _Lines:
    """Writer of a list whose format is text."""

    def __init__(self, target: ListTarget, stream: Any, fields: Sequence[str]) -> None:
        self.path = target.path
        self._stream = stream
        self.has_begun = False
        self._head = b""
        self._form: Form = form_of(target.form, fields)
        self._is_list = target.form == "list"
        if target.form == "jsonl":
            self._head = first_line(os.getcwdb())
        elif target.form == "csv":
            self._head = csv_head(fields)

    def write(self, part: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            part = self._head + part
        if self._is_list:
            part = self._without_nul(part)
        if part:
            self._stream.write(part)

    def _without_nul(self, part: bytes) -> bytes:
        """Replace the NUL bytes after paths by newlines. Raise ``Refused`` if a path contains a newline, since readers
        would not get the same path.
        """
        if b"\n" in part:
            path = next(path for path in part.split(b"\0") if b"\n" in path)
            advice = "write --print0, which ends paths with a NUL, or a list that ends in .jsonl"
            raise Refused(f"{shown(self.path)}: not written: {shown(path)} has a newline in it; {advice}")
        return part.replace(b"\0", b"\n")

    def finish(self) -> None:
        self.write(b"")

    def put(self, items: Items) -> None:
        self.write(self._form(items))


def _output(target: ListTarget, stream: Any, fields: Sequence[str]) -> Output:
    """Return the writer of a list."""
    if target.form != "parquet":
        return _Lines(target, stream, fields)
    from pcopy.tools.walk_parquet import Parquet

    return Parquet(target.path, stream, [name for name in FIELDS if name in fields])
