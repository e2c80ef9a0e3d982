"""The interface between pcopy's tasks and a backend: batches of operations on many items of one directory.

A backend carries out the inner loops over many small files. There are two: the C backend and the Python backend. A
caller submits a batch, gets a ticket (an object for the work in progress), and polls the backend until the ticket is
done. A row is one item of the batch:

    ticket = backend.submit_batch(CopySmallFilesBatch(source, names, target, plans, rows))
    ...                                     # do something else until backend.wake becomes readable
    for done in backend.poll(): ...         # a ticket that is done has its result columns in ticket.result

A backend without threads processes a few rows in every ``poll``, and its ``wake`` descriptor never becomes readable.
The generator ``await_ticket`` lets a task wait for a ticket with either kind of backend.

Rules:
- A batch is a value. Nobody changes it while its ticket is in progress. The result belongs to the ticket.
- A ticket pins the directory descriptors of its batch (``pcopy.fsio.directories.PinnedDescriptors``): they are not
  closed before the ticket is done, so that their numbers cannot be reused for another directory.
- A cancelled ticket is done as soon as none of its rows is in progress. Rows that have begun are completed, the others
  get the code ``CANCELLED``. ``SyncDirectoriesBatch`` is never cancelled.
- An error of a row is reported in the verdict of that row only: ``submit_batch`` and ``poll`` raise no ``OSError``.
- The tickets of a backend may become done in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import FileOperationBatch
from pcopy.fsio.backend.columns import ItemStatusColumns
from pcopy.fsio.directories import OpenedDirectory, PinnedDescriptors
from pcopy.fsio.preserve import PreservedMetadataKinds

MAX_SMALL_FILE_BYTES = 4 << 20
"""Largest size, in bytes, of a small file: one that is read into memory as a whole. Larger files are copied by tasks,
not in batches.
"""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


DigestFunction = Callable[[Any], bytes]
"""Function that takes the whole contents of a file and returns their digest; all digests have the same length."""


class BackendSettings(NamedTuple):
    """Settings that all batches of a job have in common.

    Fields:
        preserve: the metadata that copies get.
        umask: the umask that limits the mode of new items if modes are not preserved.
        follows_links: True if source names may be symbolic links, which are followed (``--dereference``).
        digest: function for the digest of each file that is copied or read; None if no digests are needed.
        hash_name: name of the hash algorithm if ``digest`` computes digests of a signature, which C can compute, too;
            otherwise empty.
        block_size: bytes per block of that signature; 0 without one.
    """

    preserve: PreservedMetadataKinds
    umask: int
    follows_links: bool = False
    digest: DigestFunction | None = None
    hash_name: str = ""
    block_size: int = 0


class BatchTicket(Protocol[Result_co]):
    """Protocol of a handle for a batch that was submitted to a backend, with its state and its result."""

    @property
    def is_done(self) -> bool:
        """True if the batch is finished: no item (row) of it is being processed, and none will be any more."""

    @property
    def result(self) -> Result_co:
        """The result of the batch. Until the ticket is done, items (rows) may have the code ``PENDING`` (not processed
        yet).
        """

    @property
    def is_cut_short(self) -> bool:
        """True if the ticket was cancelled before the operations on all of its rows (items) had been started."""

    def cancel(self) -> None:
        """Cancel the batch: the operation is started on no more rows (items) of it."""


class WakeDescriptor(Protocol):
    """Protocol of a descriptor that a caller can pass to select(2), together with others, to wait until a backend has
    something to do.
    """

    def fileno(self) -> int:
        """Return the descriptor. It is readable if ``poll`` of the backend has a ticket to return
        or items to process.
        """

    def clear(self) -> None:
        """Make the descriptor unreadable until ``poll`` has something to do again."""


class ThreadPoolLoad(NamedTuple):
    """Work that a thread pool has done since it was created.

    Fields:
        busy: seconds during which at least one batch was unfinished.
        wall: seconds that threads spent on items, by the wall clock, summed over the threads.
        processor: seconds of processor time of these threads.
        operations: approximate number of system calls.
    """

    busy: float = 0.0
    wall: float = 0.0
    processor: float = 0.0
    operations: int = 0


class RowInProgress(NamedTuple):
    """An item of a batch that a thread is processing.

    Fields:
        since: when the thread began with the item, in seconds of ``time.monotonic``.
        operation: the current operation, one of ``pcopy.fsio.backend.columns.OPERATION_NAMES``.
        path: path of the item that the operation concerns.
    """

    since: float
    operation: str
    path: bytes


class ThreadPool(Protocol):
    """Protocol of the worker threads of a backend. Without threads, rows (items) are processed in
    ``FileOperationBackend.poll``.
    """

    def request_threads(self, threads: int) -> None:
        """Request that the pool has this number of ``threads``. A change to zero takes effect when no batch is in
        progress.

        There may be fewer threads in the end: their number is limited, and the system may refuse to create them.
        """

    def thread_pool_load(self) -> ThreadPoolLoad:
        """Return the work that was done since the pool was created, in the polling thread and in the worker threads."""

    def set_concurrency_limits(self, ranks: int, modifying: int) -> None:
        """Limit how many items may be processed at the same time.

        Args:
            ranks: number of ranks on this host. They share the number of items that may be modified in one directory at
                the same time.
            modifying: largest number of items that this process may modify at the same time; 0: no limit.
        """

    def oldest_row_in_progress(self) -> RowInProgress | None:
        """Return the row (item) that a thread has been processing longest, or None if none is in progress. Any thread
        may call this.
        """


class ColumnSums(Protocol):
    """Protocol of sums over the items of many directories: bytes, numbers of unusual items, and histograms of file
    sizes and ages.
    """

    def add_rows(self, rows: ItemStatusColumns, kinds: bytes) -> tuple[int, int, int] | None:
        """Add the items of ``rows`` to the sums, and return the totals of these items alone.

        Args:
            rows: the columns of the items.
            kinds: the type of each item as a letter of ``find -type``; an item of type ``f`` counts as a file.

        Return (bytes of the files, bytes allocated for all items, size of the largest file in bytes). Return None, with
        nothing added, if a sum might exceed 64 bits. Raise ``ValueError`` if a column is missing or has the wrong
        number of rows.
        """

    @property
    def c_struct(self) -> Any:
        """The C structure that holds the sums, for use by the backend that created this object."""

    def sums(self) -> dict[str, int]:
        """Return the sums over all items by name: ``bytes`` (sizes of files), ``allocated`` (bytes on storage),
        ``holes`` (bytes of files that are not allocated), and the numbers of unusual items, such as ``set_id``
        (set-user-ID or set-group-ID files); ``pcopy.walk.sums.UNUSUAL_ITEM_KINDS`` explains them.
        """

    def largest_files(self) -> list[tuple[int, bytes]]:
        """Return sizes in bytes and paths of the largest files in directories that the backend has listed itself, the
        largest first. Of files with equal size, the one with the smaller path comes first.
        """

    def histograms(self) -> dict[str, dict[int, int]]:
        """Return histograms of files by name, each as a dictionary from class to number.

        Files are counted by size (``sizes``; the class is the number of bits of the size) and by age class of their
        mtime (``modified``) and atime (``read``). ``size_bytes`` and ``modified_bytes`` have the total bytes of the
        files in the classes of ``sizes`` and ``modified``. An age class is the number of those bounds, given to
        ``new_column_sums``, that are not earlier than the time.
        """


class FileOperationBackend(Protocol):
    """Protocol of a backend, which carries out batches of file operations. Each process has one."""

    @property
    def pool(self) -> ThreadPool | None:
        """The thread pool, or None if this backend cannot have threads."""

    @property
    def wake(self) -> WakeDescriptor | None:
        """The descriptor to wait for in a system call such as select(2), until ``poll`` has something to do. None if
        rows (items) are always processed in ``poll``.
        """

    @property
    def runs_in_poll(self) -> bool:
        """True if rows (items) are processed in ``poll`` only, because there are no worker threads at present."""

    @property
    def has_directory_batches(self) -> bool:
        """True if this backend supports the batches of whole directories (``pcopy.fsio.backend.directory_batches``)."""

    @property
    def pins(self) -> PinnedDescriptors:
        """Counts the users of directory descriptors. Tickets that are not done use descriptors, which must not be
        closed.
        """

    def open_directory(self, around: int, name: bytes, flags: int, wants_mark: bool) -> OpenedDirectory | None:
        """Open a directory by its name, and return (descriptor, st_dev, inode number, identity mark).
        ``DirectoryCache`` calls this to open directories in few system calls.

        Args:
            around: descriptor of the parent directory.
            name: name in the parent directory.
            flags: flags of open(2).
            wants_mark: True if the identity mark is needed, too; else the mark is empty.

        Return None if this fails or is not supported; the caller then opens the directory itself.
        """

    def new_column_sums(self, bounds: Sequence[int]) -> ColumnSums | None:
        """Return an object for sums over the status of many items, all 0 at first; None if this backend does not
        compute such sums.

        Args:
            bounds: 9 times, in ascending order, that separate the classes by age, in nanoseconds since 1970; the last
                one is the present.
        """

    def submit_batch(self, batch: FileOperationBatch[Result]) -> BatchTicket[Result]:
        """Accept a batch and return its ticket, a handle with its state and result. The batch may be carried out before
        this method returns.
        """

    def poll(self) -> list[BatchTicket[object]]:
        """Process batches in this thread for a short time, or collect the results of the worker threads.

        Return the tickets that have become done since the last call.
        """

    def close(self) -> None:
        """Cancel all batches, wait until none of their items is being processed, and release all resources."""


class TicketCancelled(Exception):
    """Raised in a task that waits for a batch, if the batch was cancelled because the job is stopping: some of its
    items were not processed.

    Unless the task catches it, nothing is reported for the task, and the task is repeated when the job is resumed.
    """


def await_ticket(
    backend: FileOperationBackend, ticket: BatchTicket[Result], on_progress: Callable[[], None] = lambda: None
) -> Generator[BatchTicket[Result] | None, None, Result]:
    """Generator by which a task waits for a ticket; it returns the result of the ticket.

    The task yields the ticket and is suspended until the ticket is done. If the backend has no threads, it yields None
    after every few rows, so that the rank can handle messages. If the generator is closed meanwhile, it cancels the
    ticket and returns only when no row is in progress.

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
