"""Where rank 0 puts what a walk has found: standard output, and files, each in a form of its own.

Rule: a file appears under its name when it is whole. Once something can't be written, nothing more is, and the job
stops.
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
"""What a file of ``--output`` holds, by the end of its name."""

_BEGINNINGS = {"jsonl": b'{"format": "pcopy listing"', "csv": b"path,path_b64,type", "parquet": b"PAR1"}
"""Of files that are replaced without a question."""


class ListTarget(NamedTuple):
    """One output: its ``form``, and its file; empty: standard output."""

    form: str
    path: bytes = b""


def target_of(path: bytes, *, nul: bool) -> ListTarget:
    """A file of ``--output``; raises ``Refused`` if its name does not say what it is to hold."""
    ending = os.path.splitext(os.fsdecode(path))[1]
    form = ENDINGS.get(ending)
    if form is None:
        raise Refused(f"{shown(path)}: its name says what it holds, and has to end in {', '.join(ENDINGS)}")
    if form == "parquet":
        _check_parquet()
    return ListTarget("nul" if nul and form == "list" else form, path)


def _check_parquet() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise Refused("Parquet needs pyarrow: pip install pyarrow; or name a file that ends in .csv or .jsonl")


def check_file(target: ListTarget, *, force: bool, begins: bytes = b"") -> None:
    """Raises ``Refused`` where something is replaced that is no older list, or nothing that ``begins`` so."""
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
    known = begins or _BEGINNINGS.get(target.form)
    if beginning and not force and not (known and beginning.startswith(known)):
        raise Refused(f"{shown(path)}: is there already, and may be anything; name another file, or write --force")


def _beginning(path: bytes) -> bytes:
    """How a file begins that may be replaced. Raises ``OSError``, also for what is no regular file."""
    from pcopy.fsio.named_file import open_directory_of, refuse_to_replace

    directory = open_directory_of(path)
    with held_open(directory.descriptor):
        refuse_to_replace(directory.descriptor, directory.name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(directory.name, flags, dir_fd=directory.descriptor), "rb") as file:
            return file.read(64)


class Outputs(InFront):
    """A sink, which hears what is found (``pcopy.tasks.walk.tell_found.Hearer``)."""

    def __init__(
        self,
        sink: Sink,
        targets: Sequence[ListTarget],
        fields: Sequence[str],
        sort: str,
        umask: int | None,
        writer: str,
    ) -> None:
        """Raises ``Refused`` if a file can't be made."""
        super().__init__(sink)
        self.trouble = ""
        """Why nothing more is written."""
        self.status = STOPPED
        """With which the job ends then."""
        self.is_closed = False
        """Has whoever reads standard output gone?"""
        self._sorted = SortedItems(sort, spool_in(b"")) if sort else None
        self.sums: WalkSums | None = None
        self.layouts: AllLayoutSums | None = None
        """What all ranks have found, where that is wanted, and the layouts on Lustre."""
        self._files = ExitStack()
        self._outputs = []
        for target in targets:
            stream = self._opened(target.path, umask, writer) if target.path else _StandardOutput()
            self._outputs.append(_output(target, stream, fields))

    def _opened(self, path: bytes, umask: int | None, writer: str) -> BinaryIO:
        from pcopy.signature.replacing import replacing

        try:
            self._files.enter_context(_naming(path))
            return self._files.enter_context(replacing(path, umask, writer, unnamed=True))
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None

    def written(self, parts: Sequence[bytes]) -> str:
        """Some bytes for each output. Returns why the job has to stop, or nothing."""
        for output, part in zip(self._outputs, parts, strict=True):
            self._try(output, output.write, part)
        return self.trouble

    def listed(self, items: Items) -> str:
        """As ``written``, of items with their columns."""
        if self._sorted is not None:
            self._sorted.add(items)
        else:
            self._put(items)
        return self.trouble

    def spoiled(self, why: str) -> None:
        """What is found cannot be whole: no list appears."""
        if not self.trouble:
            is_begun = any(not output.path and output.has_begun for output in self._outputs)
            more = "; standard output has some of what stands before that, and not all" if is_begun else ""
            self.trouble, self.status = why + more, REFUSED

    def summed(self, words: bytes, layouts: bytes) -> None:
        """What one rank has found, summed up, and the layouts that it has met."""
        if self.sums is not None:
            self.sums.merge(words)
        if layouts:
            from pcopy.walk.layout_sums import AllLayoutSums

            self.layouts = self.layouts or AllLayoutSums()
            self.layouts.merge(layouts)

    def _put(self, items: Items) -> None:
        for output in self._outputs:
            self._try(output, output.put, items)

    def _try(self, output: Output, call: Any, *arguments: Any) -> None:
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
        """All was found: writes what is left, and gives the files their names."""
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
        """The files do not appear; once more it does nothing."""
        self._files.__exit__(Refused, Refused("stopped"), None)


class _Unwritten(OSError):
    """An error whose text names the file."""


@contextmanager
def _naming(path: bytes) -> Iterator[None]:
    """Make what the system refuses the file ``path`` an error that names it."""
    try:
        yield
    except _Unwritten:  # of another file, whose failure removes this one
        raise
    except OSError as error:
        raise _Unwritten(error.errno, f"{shown(path)}: cannot be written: {error.strerror}") from error


class _StandardOutput:
    """Descriptor 1, whatever Python holds back for it; if the user had closed it, it leads nowhere."""

    def write(self, part: bytes) -> None:
        if sys.stdout.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        view = memoryview(part)
        while view:
            view = view[os.write(1, view) :]


class Output(Protocol):
    """One list."""

    path: bytes
    """Empty: standard output."""
    has_begun: bool
    """Was anything written?"""

    def write(self, part: bytes) -> None:
        """Bytes in its form. Raises ``OSError``, as the others; and ``Refused`` for a name that cannot be listed."""

    def put(self, items: Items) -> None:
        """Items with their columns."""

    def finish(self) -> None:
        """That was all."""


class _Lines:
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
        """Paths that end with a newline each, of which who reads them makes the same ones."""
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
    if target.form != "parquet":
        return _Lines(target, stream, fields)
    from pcopy.tools.walk_parquet import Parquet

    return Parquet(target.path, stream, [name for name in FIELDS if name in fields])
