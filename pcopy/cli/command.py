"""What a command is to those who start ranks: its name, and how it makes a job of its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pcopy.tasks.job import Job, Totals
from pcopy.tasks.sign_state import SignState
from pcopy.tasks.sinks import Sink

if TYPE_CHECKING:
    from pcopy.cli.keeping import Keeping
    from pcopy.cli.kept_job import KeptJob
    from pcopy.cli.options import Arguments
    from pcopy.cli.rank import Ended


class Preparation(Protocol):
    """A job, ready to be run, and what its user is told; on rank 0 only."""

    arguments: Arguments
    job: Job

    @property
    def kept(self) -> KeptJob | None:
        """How the job is kept, if it is."""

    @property
    def keeping(self) -> Keeping:
        """What all ranks have to know of that."""

    def begin(self, ranks: int) -> None:
        """The number of ranks is known, and ``job`` is final from now on; raises ``Refused``."""

    def announce(self) -> None:
        """Tells what is about to be done."""

    def sink(self, screen: Sink) -> Sink:
        """Where the job tells what happens: the screen, with more if the user wants more."""

    def settle(self, sign: SignState, totals: Totals) -> int:
        """All items are read, or copied: does what is left with their signature, and returns the exit status."""

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Prints how it ended; returns the exit status."""

    def tell_how_to_go_on(self) -> None:
        """After a rank has failed: what the user can do."""


class Command(NamedTuple):
    """Its ``name`` stands before all that it says; ``prepare`` raises ``Refused``."""

    name: str
    prepare: Callable[[Sequence[str]], Preparation]
