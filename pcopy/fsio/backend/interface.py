"""The interface between pcopy's tasks and a backend: batches of operations on many items of one directory.

A backend carries out the inner loops over many small files. There are two: the C backend and the Python backend. A
caller submits a batch, gets a ticket, and polls the backend until the ticket is done:

    ticket = backend.submit(Copy(source, names, target, plans, rows))
    ...                                     # do something else until backend.wake becomes readable
    for done in backend.poll(): ...         # a ticket that is done has its result columns in ticket.result

A backend without threads processes a few rows in every ``poll``, and its ``wake`` descriptor never becomes readable.
The generator ``await_ticket`` lets a task wait for a ticket with either kind of backend.

Rules:
- A batch is a value. Nobody changes it while its ticket is in progress. The result belongs to the ticket.
- A ticket pins the directory descriptors of its batch (``pcopy.fsio.directories.PinnedDescriptors``). They are not
  closed before the ticket is done, so that their numbers cannot be reused for another directory.
- A cancelled ticket is done as soon as none of its rows is in progress. Rows that had begun are completed, the others
  get the code ``CANCELLED``. ``SyncDirectories`` is never cancelled.
- An error of a row is reported in the verdict of that row only: ``submit`` and ``poll`` raise no ``OSError``.
- The tickets of a backend may become done in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import Batch
from pcopy.fsio.backend.columns import Rows
from pcopy.fsio.directories import OpenedDirectory, PinnedDescriptors
from pcopy.fsio.preserve import Preserve

MAX_SMALL_FILE_BYTES = 4 << 20
"""Largest size, in bytes, of a small file: one that is read into memory as a whole and written in one go."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


DigestFunction = Callable[[Any], bytes]
"""Function that returns the digest of a file's contents; all its digests have the same length."""


class BackendSettings(NamedTuple):
    """Settings that all batches of a job have in common.

    Fields:
        preserve: the metadata that copies get.
        umask: the umask that limits the mode of new items if modes are not preserved.
        follows_links: True if a source name may be a symbolic link to the item that the scan found.
        digest: function for the digest of each file that is copied or read; None if no digests are needed.
        hash_name: name of the hash algorithm if ``digest`` is that of a signature, otherwise empty.
        block_size: bytes per block of that signature.
    """

    preserve: Preserve
    umask: int
    follows_links: bool = False
    digest: DigestFunction | None = None
    hash_name: str = ""
    block_size: int = 0


class Ticket(Protocol[Result_co]):
    """A handle for a submitted batch, with its state and its result."""

    @property
    def is_done(self) -> bool:
        """True if no row is in progress and no further row will be started."""

    @property
    def result(self) -> Result_co:
        """The columns of the result. Rows may be ``PENDING`` until the ticket is done."""

    @property
    def is_cut_short(self) -> bool:
        """True if the ticket was cancelled before all of its rows had been started."""

    def cancel(self) -> None:
        """Start no further rows of this batch."""


class WakeDescriptor(Protocol):
    """A descriptor that a caller can pass to select(2), together with others, to wait for a backend."""

    def fileno(self) -> int:
        """Return the descriptor, which is readable if ``poll`` has a ticket to return or rows to process."""

    def clear(self) -> None:
        """Make the descriptor unreadable until a ticket needs ``poll`` again."""


class PoolLoad(NamedTuple):
    """Work that a thread pool has done since it was created.

    Fields:
        busy: seconds during which at least one batch was unfinished.
        wall: seconds that threads spent on rows, by the wall clock, summed over the threads.
        processor: seconds of processor time of these threads.
        operations: approximate number of system calls.
    """

    busy: float = 0.0
    wall: float = 0.0
    processor: float = 0.0
    operations: int = 0


class RowInProgress(NamedTuple):
    """A row that is in progress.

    Fields:
        since: when the row began, in seconds of ``time.monotonic``.
        operation: the current operation, one of ``pcopy.fsio.backend.columns.OPERATIONS``.
        path: path of the item that the operation concerns.
    """

    since: float
    operation: str
    path: bytes


class ThreadPool(Protocol):
    """The worker threads of a backend. Without threads, rows are processed in ``Backend.poll``."""

    def request_threads(self, threads: int) -> None:
        """Request this number of threads. A change to zero takes effect when no ticket is in progress.

        The number may turn out lower: threads are limited, and the system may refuse to create them.
        """

    def load(self) -> PoolLoad:
        """Return the work done so far, in the polling thread and in the worker threads."""

    def set_limits(self, ranks: int, modifying: int) -> None:
        """Limit how many rows may be in progress at the same time.

        Args:
            ranks: number of ranks on this host; they share the number of modifying rows that one directory allows.
            modifying: rows of this process that may modify anything at the same time; 0 means no limit.
        """

    def oldest_row(self) -> RowInProgress | None:
        """Return the row that has been in progress longest, or None. Any thread may call this."""


class ColumnSums(Protocol):
    """Sums over the contents of directories: bytes, unusual items, and histograms of file sizes and ages."""

    def add_rows(self, rows: Rows, kinds: bytes) -> tuple[int, int, int] | None:
        """Add rows to the sums, and return the totals of these rows alone.

        Args:
            rows: the columns of the items.
            kinds: the type of each item as a letter of ``find -type``; an item of type ``f`` counts as a file.

        Return the bytes of the files, the bytes allocated for all items, and the size of the largest file. Return None,
        with nothing added, if a sum might exceed 64 bits. Raise ``ValueError`` if a column is missing or has the wrong
        number of rows.
        """

    @property
    def c_struct(self) -> Any:
        """The C structure of the sums, for the backend that created this object."""

    def sums(self) -> dict[str, int]:
        """Return the sums by name: ``bytes``, ``allocated``, ``holes``, and counts of unusual items
        (``pcopy.walk.sums.UNUSUAL``)."""

    def histograms(self) -> dict[str, dict[int, int]]:
        """Return histograms of files by name, each as a dictionary from class to number.

        Files are counted by size (``sizes``; the class is the number of bits of the size) and by age class of their
        mtime (``modified``) and atime (``read``). ``size_bytes`` and ``modified_bytes`` have the bytes of these files.
        """


class Backend(Protocol):
    """A backend: it carries out batches of file operations. Each process has one."""

    @property
    def pool(self) -> ThreadPool | None:
        """The thread pool, or None if this backend cannot have threads."""

    @property
    def wake(self) -> WakeDescriptor | None:
        """The descriptor to wait for in a system call such as select(2), or None if rows are always processed in
        ``poll``."""

    @property
    def runs_in_poll(self) -> bool:
        """True if rows are processed in ``poll`` only, because there are no worker threads at present."""

    @property
    def has_directory_batches(self) -> bool:
        """True if this backend supports the batches of whole directories (``pcopy.fsio.backend.directory_batches``)."""

    @property
    def pins(self) -> PinnedDescriptors:
        """The descriptors of the tickets that are not done."""

    def open_directory(self, around: int, name: bytes, flags: int, wants_mark: bool) -> OpenedDirectory | None:
        """Open a directory and identify it, as an ``FastOpener`` of ``pcopy.fsio.directories``.

        Args:
            around: descriptor of the parent directory.
            name: name in the parent directory.
            flags: flags of open(2).
            wants_mark: True if the mark of its identity is needed, too.

        Return None if this fails or is not supported; the caller then opens the directory itself.
        """

    def new_column_sums(self, bounds: Sequence[int]) -> ColumnSums | None:
        """Return a new ``Tally`` with age classes, or None if this backend has none.

        Args:
            bounds: the 9 bounds of the age classes in ascending order, in nanoseconds since 1970; the last one is now.
        """

    def submit(self, batch: Batch[Result]) -> Ticket[Result]:
        """Accept a batch and return its ticket. The batch may be carried out before this method returns."""

    def poll(self) -> list[Ticket[object]]:
        """Continue the work that is done in this thread, for a short time.

        Return the tickets that have become done since the last call.
        """

    def close(self) -> None:
        """Cancel all tickets, wait until none of their rows is in progress, and release all resources."""


class TicketCancelled(Exception):
    """Raised in a task whose ticket was cancelled because the job is stopping: some of its rows were not processed.

    Unless the task catches it, nothing is reported for the task, and the task is repeated when the job is resumed.
    """


def await_ticket(
    backend: Backend, ticket: Ticket[Result], on_progress: Callable[[], None] = lambda: None
) -> Generator[Ticket[Result] | None, None, Result]:
    """Wait for a ticket inside a task, as a generator, and return the result of the ticket.

    The task yields the ticket and is suspended until the ticket is done. With a backend without threads it yields None
    between slices of work. If the generator is closed meanwhile, it cancels the ticket and returns only when no row is
    in progress.

    Args:
        backend: the backend to which the batch was submitted.
        ticket: the ticket to wait for.
        on_progress: callback that is called each time the task continues, to report progress.

    Raise ``TicketCancelled`` if not all rows were processed.
    """
    try:
        while not ticket.is_done:
            backend.poll()
            if not ticket.is_done:
                yield None if backend.runs_in_poll else ticket
            on_progress()
    except GeneratorExit:
        ticket.cancel()
        while not ticket.is_done:
            backend.poll()
        raise
    if ticket.is_cut_short:
        raise TicketCancelled
    return ticket.result
