"""The interface of the inner loops: batches of many items of one directory, submitted and waited for.

    ticket = kernel.submit(Copy(source, names, target, plans, rows))
    ...                                     # something else, until kernel.wake tells that there is something to poll
    for done in kernel.poll(): ...          # done is ticket, and ticket.result has its columns

As long as a kernel has no threads, it does a few rows whenever it is polled, and no wake tells anything. ``waited``
is how a task waits, whichever kernel there is.

Rules:
- Batches are values that nobody changes while their ticket is under way; the result belongs to the ticket.
- A ticket pins the descriptors of its batch (``pcopy.fsio.directories.Pins``): none is closed, and so none means
  another directory, before the ticket is done.
- A ticket that is cancelled is done as soon as no row of it is under way: rows that were begun end, the others are
  ``CANCELLED``. ``SyncDirectories`` is never cancelled.
- What goes wrong with a row is its verdict, and nothing else: ``submit`` and ``poll`` raise no ``OSError``.
- Tickets of one kernel are done in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from pcopy.fsio.directories import Opened, Pins
from pcopy.fsio.kernel.batches import Batch
from pcopy.fsio.kernel.columns import Rows
from pcopy.fsio.preserve import Preserve
from pcopy.named import NamedTuple

SMALL_FILE = 4 << 20
"""The largest file, in bytes, that is read whole into memory and written in one go."""

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


Digest = Callable[[Any], bytes]
"""The digest of a file's contents, of the same length for each."""


class Settings(NamedTuple):
    """What is the same for all batches of a job. ``follow``: a source's names may be symbolic links to what was found.
    ``digest`` is taken of the contents of each file that is copied or read; it is made by the algorithm ``hash_name``
    from blocks of ``block_size`` bytes, if it is that of a signature."""

    preserve: Preserve
    umask: int
    follow: bool = False
    digest: Digest | None = None
    hash_name: str = ""
    block_size: int = 0


class Ticket(Protocol[Result_co]):
    """A batch that was submitted."""

    @property
    def is_done(self) -> bool:
        """Is no row under way, nor going to be?"""

    @property
    def result(self) -> Result_co:
        """The columns; until the ticket is done, rows may be ``PENDING``."""

    @property
    def is_cut_short(self) -> bool:
        """Are there rows that are not going to be begun, since it was cancelled?"""

    def cancel(self) -> None:
        """Begins no more rows."""


class Wake(Protocol):
    """A descriptor to wait for, beside others."""

    def fileno(self) -> int:
        """It is readable when there is something to ``poll``."""

    def clear(self) -> None:
        """It is not readable any more, until there is something again."""


class Load(NamedTuple):
    """What a pool has done since it was made. In seconds: while there were rows to do (``busy``); of the threads that
    did them, added up, on the clock (``wall``), and of their processors. ``operations`` are system calls, roughly."""

    busy: float = 0.0
    wall: float = 0.0
    processor: float = 0.0
    operations: int = 0


class Doing(NamedTuple):
    """A row that is under way, ``since`` a moment of ``time.monotonic``; ``path`` is what its operation is about."""

    since: float
    operation: str
    path: bytes


class Pool(Protocol):
    """Threads that do rows. As long as there are none, rows are done in ``poll``."""

    def want(self, threads: int) -> None:
        """There shall be so many. To none it takes effect when no ticket is under way."""

    def load(self) -> Load:
        """What has been done up to now, here and by threads."""

    def limit(self, ranks: int, modifying: int) -> None:
        """On this host so many ``ranks`` share what is best for one directory. ``modifying``: rows that may change
        anything at a time; 0: any number."""

    def oldest(self) -> Doing | None:
        """The row that has been under way for longest. Any thread may ask."""


class Tally(Protocol):
    """Sums up what is in directories. ``kinds`` are letters of types; what is an ``f`` there counts as a file."""

    def add(self, rows: Rows, kinds: bytes) -> tuple[int, int, int] | None:
        """The bytes of files, those that are allocated for all items, and the size of the largest file, of these rows.

        None: nothing was added, since a sum might have more than 64 bits. Raises ``ValueError`` if a column is missing.
        """

    @property
    def pointer(self) -> Any:
        """For the kernel that has made it."""

    def sums(self) -> dict[str, int]:
        """``bytes``, ``allocated``, ``holes``, and numbers of what is unusual (``pcopy.walk.sums.UNUSUAL``)."""

    def classes(self) -> dict[str, dict[int, int]]:
        """Files by their ``sizes`` (bits of the number), by their classes of age when they were ``modified`` and
        ``read`` last, and bytes of these (``size_bytes``, ``modified_bytes``)."""


class Kernel(Protocol):
    """Does batches of operations; one per process."""

    @property
    def pool(self) -> Pool | None:
        """None if it can't have threads."""

    @property
    def wake(self) -> Wake | None:
        """For whoever sleeps in a system call; None if rows are always done in ``poll`` only."""

    @property
    def works_here(self) -> bool:
        """Are rows done in ``poll`` only, at present?"""

    @property
    def enters(self) -> bool:
        """Does it know the batches of directories (``pcopy.fsio.kernel.directory_batches``)?"""

    @property
    def pins(self) -> Pins:
        """The descriptors of tickets that are not done."""

    def open_directory(self, around: int, name: bytes, flags: int, wants_mark: bool) -> Opened | None:
        """An ``Opener``."""

    def tally(self, bounds: Sequence[int]) -> Tally | None:
        """One whose classes of age have these 9 ``bounds``: moments in nanoseconds since 1970, which ascend up to the
        present. None if it has none."""

    def submit(self, batch: Batch[Result]) -> Ticket[Result]:
        """The batch will be done; it may be done at once."""

    def poll(self) -> list[Ticket[object]]:
        """Goes on with what the kernel has to do in this thread, for a moment; returns the tickets that have become
        done since it was asked last."""

    def close(self) -> None:
        """Cancels what is under way, waits until no row is, and gives everything back."""


class Cancelled(Exception):
    """The ticket that a task waits for was cancelled, because the job is told to stop: not all of it is done.

    Nothing of the task is told then, and it is left to be done again, unless it knows better.
    """


def waited(
    kernel: Kernel, ticket: Ticket[Result], tell: Callable[[], None] = lambda: None
) -> Generator[Ticket[Result] | None, None, Result]:
    """The result of a ticket, for a task; ``tell`` is called whenever the task goes on. Raises ``Cancelled``.

    The task yields the ticket, and is suspended until that is done; None, between slices, if the kernel has no threads.
    If it is closed meanwhile, the ticket is cancelled, and no row of it is under way any more.
    """
    try:
        while not ticket.is_done:
            kernel.poll()
            if not ticket.is_done:
                yield None if kernel.works_here else ticket
            tell()
    except GeneratorExit:
        ticket.cancel()
        while not ticket.is_done:
            kernel.poll()
        raise
    if ticket.is_cut_short:
        raise Cancelled
    return ticket.result
