"""The output of a walk on rank 0: lists on standard output and in files, each in its own format.

Rule: a file gets its name only when it is complete. After the first error of any list, nothing more is written to any
of them, and the job stops.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from pcopy.errors import EXIT_REFUSED, EXIT_STOPPED, RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.jobs.spool import spool_factory
from pcopy.tasks.base.job import ForwardingProgressSink, ProgressSink
from pcopy.text import printable_path
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.output_formats import FIELD_COLUMNS, ItemFormatter, csv_header, item_formatter_named, listing_header
from pcopy.walk.sorting import ItemSorter
from pcopy.walk.sums import WalkSums

if TYPE_CHECKING:
    from pcopy.walk.layout_sums import AllLayoutSums

FORMAT_BY_EXTENSION = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "list", ".lst": "list"}
"""Formats of the files of ``--output``, by their extensions. A file with another extension is refused."""

_LIST_BEGINNING_BY_FORMAT = {"jsonl": b'{"format": "pcopy listing"', "csv": b"path,path_b64,type", "parquet": b"PAR1"}
"""First bytes of the lists of each format. An existing file that begins with them may be replaced without ``--force``.
"""


class OutputListTarget(NamedTuple):
    """One list to be written: the name of its format, and the path of its file; an empty path means standard output."""

    format: str
    path: bytes = b""


def list_target_for_file(path: bytes, *, nul: bool) -> OutputListTarget:
    """Return the list for the file ``path`` of ``--output``; its format is chosen by the extension. Raise
    ``RequestRefused`` if the extension is unknown, or if Parquet is asked for and pyarrow is not installed.

    Args:
        nul: True if paths in a plain list end with a NUL byte instead of a newline.
    """
    ending = os.path.splitext(os.fsdecode(path))[1]
    form = FORMAT_BY_EXTENSION.get(ending)
    if form is None:
        raise path_refused(
            path, f"its format is chosen by its extension, which must be one of {', '.join(FORMAT_BY_EXTENSION)}"
        )
    if form == "parquet":
        _check_parquet_support()
    return OutputListTarget("nul" if nul and form == "list" else form, path)


def _check_parquet_support() -> None:
    """Raise ``RequestRefused`` if pyarrow, which writes Parquet files, is not installed."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise RequestRefused(
            "Parquet needs the Python package pyarrow: pip install pyarrow; or name a file that ends in .csv or .jsonl"
        )


def check_list_can_be_written(target: OutputListTarget, *, force: bool, known_beginning: bytes = b"") -> None:
    """Raise ``RequestRefused`` if the file of a list cannot be written, or exists and must not be replaced.

    An existing regular file may be replaced if it is empty, or if it begins like an older list of this format. With
    ``force`` any regular file may be replaced.

    Args:
        target: the list.
        known_beginning: the first bytes of an older file, if the target is not a list but a page.
    """
    from pcopy.fsio.named_file import UntrustedFileError

    path = target.path
    try:
        beginning = _first_bytes(path)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        if directory and not os.path.isdir(directory):
            raise path_refused(
                path, f"the directory {printable_path(directory)} does not exist; create it first"
            ) from None
        return
    except OSError as error:
        if error.errno == errno.EPERM and isinstance(error, UntrustedFileError):
            raise path_refused(path, f"cannot be written: {error.strerror}") from None
        if error.errno == errno.ELOOP:
            raise path_refused(path, "is a symbolic link; name the file itself") from None
        if isinstance(error, UntrustedFileError):
            raise path_refused(path, f"{error.strerror}; name another file") from None
        raise path_refused(path, f"is there already, and cannot be replaced: {error.strerror}") from None
    expected = known_beginning or _LIST_BEGINNING_BY_FORMAT.get(target.format)
    if beginning and not force and not (expected and beginning.startswith(expected)):
        raise path_refused(
            path,
            "exists already, and is not recognised as an older file of this kind; name another file, or use --force",
            code=errno.EEXIST,
        )


def _first_bytes(path: bytes) -> bytes:
    """Return the first 64 bytes of a file. Raise ``OSError`` if it cannot be read or is not a regular file."""
    from pcopy.fsio.named_file import check_is_replaceable_file, open_parent_directory

    directory = open_parent_directory(path)
    with closing_descriptor(directory.descriptor):
        check_is_replaceable_file(directory.descriptor, directory.name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(directory.name, flags, dir_fd=directory.descriptor), "rb") as file:
            return file.read(64)


class ItemListsSink(ForwardingProgressSink):
    """Receives on rank 0 what the ranks have found: writes the lists, and adds up the sums.

    Progress and failures are passed on. Ranks send either text in the formats of the lists (``write``), or items with
    their columns (``write_items``).
    """

    def __init__(
        self,
        sink: ProgressSink,
        targets: Sequence[OutputListTarget],
        fields: Sequence[str],
        sort: str,
        umask: int | None,
        writer: str,
    ) -> None:
        """Create the files of the lists. Raise ``RequestRefused`` if one cannot be created.

        Args:
            sink: the receiver to which progress, failures and notices are passed on.
            targets: the lists.
            fields: the fields of each item besides path and type.
            sort: the field by which items are sorted, or empty.
            umask: the umask of the user, for the modes of the files.
            writer: part of the temporary names of the files.
        """
        super().__init__(sink)
        self.error = ""
        """Reason why writing has stopped; "" while it has not."""
        self.status = EXIT_STOPPED
        """Exit status of the job if writing has stopped; meaningless otherwise."""
        self.is_output_closed = False
        """True if writing has stopped because the reader of standard output has closed its end of the pipe (EPIPE)."""
        self._sorted_items = ItemSorter(sort, spool_factory(b"")) if sort else None
        self.sums: WalkSums | None = None
        """Sums over all ranks for ``--summary``; None without that option."""
        self.layouts: AllLayoutSums | None = None
        """Sums of the layouts of files on Lustre over all ranks; None if no rank has found a directory on Lustre."""
        self._files = ExitStack()
        self._outputs = []
        for target in targets:
            stream = self._create_file(target.path, umask, writer) if target.path else _StandardOutput()
            self._outputs.append(_make_list_writer(target, stream, fields))

    def _create_file(self, path: bytes, umask: int | None, writer: str) -> BinaryIO:
        """Create a file without a name, and return it. It is linked to ``path`` when it is complete.

        Args:
            umask: the umask of the user, for the mode of the file.
            writer: part of the temporary name of the file.

        Raise ``RequestRefused`` if it cannot be created.
        """
        from pcopy.signature.replacing import replacing_output_file

        try:
            self._files.enter_context(_adding_path_to_errors(path))
            return self._files.enter_context(replacing_output_file(path, umask, writer, unnamed=True))
        except OSError as error:
            raise path_refused(path, f"cannot be written: {error.strerror}") from None

    def write(self, parts: Sequence[bytes]) -> str:
        """Write the text that one rank has sent: the first of ``parts`` to the first list, the second one to the
        second, and so on.

        Return the reason why the job must stop, or "".
        """
        for output, part in zip(self._outputs, parts, strict=True):
            self._call_unless_writing_stopped(output, output.write, part)
        return self.error

    def write_items(self, items: DirectoryItems) -> str:
        """Write items that one rank has sent to each list; with ``--sort``, keep them until ``complete_lists`` is
        called.

        Return the reason why the job must stop, or "".
        """
        if self._sorted_items is not None:
            self._sorted_items.add(items)
        else:
            self._write_to_all_lists(items)
        return self.error

    def mark_output_incomplete(self, why: str) -> None:
        """Write nothing more, because the lists cannot become complete for the reason ``why``; so none of the files
        appears.
        """
        if not self.error:
            is_begun = any(not output.path and output.has_begun for output in self._outputs)
            more = "; the list on standard output is incomplete" if is_begun else ""
            self.error, self.status = why + more, EXIT_REFUSED

    def add_sums_of_rank(self, words: bytes, layouts: bytes) -> None:
        """Add the sums of one rank to those of the job.

        Args:
            words: the packed sums (``WalkSums.sums_as_bytes``).
            layouts: the packed sums of layouts on Lustre; empty if the rank has found none.
        """
        if self.sums is not None:
            self.sums.merge(words)
        if layouts:
            from pcopy.walk.layout_sums import AllLayoutSums

            self.layouts = self.layouts or AllLayoutSums()
            self.layouts.merge(layouts)

    def _write_to_all_lists(self, items: DirectoryItems) -> None:
        """Write items to each list, unless writing has stopped."""
        for output in self._outputs:
            self._call_unless_writing_stopped(output, output.write_items, items)

    def _call_unless_writing_stopped(self, output: ItemListWriter, call: Any, *arguments: Any) -> None:
        """Call ``call``, a method of ``output``, with ``arguments``, unless writing has stopped. If the call fails,
        writing stops.
        """
        if self.error:
            return
        try:
            call(*arguments)
        except RequestRefused as refused:
            self.error, self.status = str(refused), EXIT_REFUSED
        except OSError as error:
            self.is_output_closed = error.errno == errno.EPIPE and not output.path
            where = f"{printable_path(output.path)}:" if output.path else "standard output"
            self.error = f"{where} cannot be written: {error.strerror}"

    def complete_lists(self) -> None:
        """Complete the lists, after all ranks have ended.

        Write the sorted items, if there are any, and give the files their names. If that fails, remove all files; then
        ``error`` says why.
        """
        if self._sorted_items is not None:
            for items in self._sorted_items.sorted_batches():
                self._write_to_all_lists(items)
                if self.error:
                    break
        for output in self._outputs:
            self._call_unless_writing_stopped(output, output.write_rest_of_list)
        if self.error:
            self.abandon_incomplete_lists()
            return
        try:
            self._files.close()
        except OSError as error:
            self.error = error.strerror or "a list cannot be written"

    def abandon_incomplete_lists(self) -> None:
        """Discard the incomplete files. A further call has no effect."""
        self._files.__exit__(RequestRefused, RequestRefused("stopped"), None)


class _OSErrorWithPath(OSError):
    """An ``OSError`` whose text (``strerror``) begins with the path of the file concerned."""


@contextmanager
def _adding_path_to_errors(path: bytes) -> Iterator[None]:
    """Context manager: if its block raises ``OSError``, raise a ``_OSErrorWithPath`` instead, whose text begins with
    ``path``.
    """
    try:
        yield
    except _OSErrorWithPath:  # The error concerns another file; this one is discarded because of it.
        raise
    except OSError as error:
        raise _OSErrorWithPath(error.errno, f"{printable_path(path)}: cannot be written: {error.strerror}") from error


class _StandardOutput:
    """Writes to descriptor 1 directly, without Python's buffer. If the user has started the program with standard
    output closed, descriptor 1 is ``/dev/null``; ``write`` then raises EBADF, so that the list is not lost silently.
    """

    def write(self, part: bytes) -> None:
        if sys.stdout.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


class ItemListWriter(Protocol):
    """Protocol of the writers of one list, to a file or to standard output."""

    path: bytes
    """Path of the file; empty: standard output."""
    has_begun: bool
    """True if anything was written, so that an incomplete list may be visible on standard output."""

    def write(self, part: bytes) -> None:
        """Write ``part``, bytes that already have the format of the list.

        Raise ``RequestRefused`` for a name that this format cannot represent. This method and the others raise
        ``OSError`` if the system cannot write.
        """

    def write_items(self, items: DirectoryItems) -> None:
        """Write items, after converting them to the format of the list."""

    def write_rest_of_list(self) -> None:
        """Write what is still missing: for example, the header of an empty list."""


class TextListWriter:
    """Writer of a list in any format but Parquet: lines, JSON lines or CSV."""

    def __init__(self, target: OutputListTarget, stream: Any, fields: Sequence[str]) -> None:
        self.path = target.path
        self._stream = stream
        self.has_begun = False
        self._header = b""
        self._format: ItemFormatter = item_formatter_named(target.format, fields)
        self._is_list = target.format == "list"
        if target.format == "jsonl":
            self._header = listing_header(os.getcwdb())
        elif target.format == "csv":
            self._header = csv_header(fields)

    def write(self, part: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            part = self._header + part
        if self._is_list:
            part = self._paths_ended_by_newlines(part)
        if part:
            self._stream.write(part)

    def _paths_ended_by_newlines(self, part: bytes) -> bytes:
        """Return ``part`` with newlines instead of the NUL bytes after the paths. Raise ``RequestRefused`` if a path
        contains a newline: a program that reads the list would take it for two paths.
        """
        if b"\n" in part:
            path = next(path for path in part.split(b"\0") if b"\n" in path)
            advice = "use --print0, which ends paths with a NUL, or name a list whose name ends in .jsonl"
            raise path_refused(self.path, f"not written: {printable_path(path)} has a newline in it; {advice}")
        return part.replace(b"\0", b"\n")

    def write_rest_of_list(self) -> None:
        self.write(b"")

    def write_items(self, items: DirectoryItems) -> None:
        self.write(self._format(items))


def _make_list_writer(target: OutputListTarget, stream: Any, fields: Sequence[str]) -> ItemListWriter:
    """Return the writer of the list ``target``, which writes to ``stream``. ``fields`` are those of each item besides
    path and type.
    """
    if target.format != "parquet":
        return TextListWriter(target, stream, fields)
    from pcopy.tools.walk_parquet import ParquetWriter

    return ParquetWriter(target.path, stream, [name for name in FIELD_COLUMNS if name in fields])
