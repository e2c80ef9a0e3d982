"""``ptar -t --signature``: all ranks read the archive; rank 0 prints the members and writes the signature."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from pcopy.archive.reader import Damage
from pcopy.engine.messages import Halt
from pcopy.engine.task import Spawn
from pcopy.errors import HINDRANCES, INCOMPLETE, INTERNAL, OK, STOPPED, PcopyError, hindrance
from pcopy.launch.tool import Ended, Preparation
from pcopy.launch.watch.signals import told
from pcopy.report.streams import tell
from pcopy.tasks.archive.digest_members import DigestedMembers, FindMembers, unpacked
from pcopy.tasks.archive.opened import OpenArchive, version_of
from pcopy.tasks.archive.wanted_names import WantedOfRank
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Job, Root, Totals
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector, RepeatableTool, one_stage
from pcopy.tools.list_archive import ArchiveListing, letters_of, listing_options
from pcopy.tools.selecting import tell_hidden
from pcopy.tools.unpack import archive_to_read, with_listed


class ProveDirector(JobDirector):
    """Director of ``ptar -t --signature``: one phase."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        return [Spawn(phase, encode(FindMembers()), SCAN_COST, True, 0)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        if halted is not None:
            return STOPPED
        return INTERNAL if sums.found != sums.copied + sums.failed else self._settle(self._rank, sums)


class Proving(RepeatableTool):
    """The program ``ptar -t --signature``."""

    name = "ptar"
    writes = False
    done = "read"
    director = ProveDirector
    stages = one_stage("read")

    def phase_name(self, phase: int) -> str:
        return "read"


PROVING = Proving()
"""The only instance of ``Proving``."""


def is_proved(arguments: ArchiveArguments) -> bool:
    """True if a signature is asked for and several ranks can read the archive, which is then not one stream."""
    try:
        return bool(arguments.options.signature) and archive_to_read(arguments, "-t")[1] is None
    except PcopyError:  # The listing without ranks reports the error.
        return False


class ProvePreparation(Preparation):
    """The job of ``ptar -t --signature`` on rank 0."""

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if the archive cannot be read; nothing is
        modified.
        """
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling._replace(verbose=0))
        arguments = with_listed(arguments)
        archive, stream = archive_to_read(arguments, letters_of(arguments))
        if stream is not None:
            raise stream
        options = listing_options(arguments)
        self._listing = ArchiveListing(arguments, archive, options)
        top = os.path.dirname(archive)
        status = os.stat(top)
        identity = status.st_dev, status.st_ino
        root = Root(top, top, b"", b"", arguments.archive, arguments.archive, identity, identity)
        options = options._replace(
            signature=b"", archive_file=archive, archive_version=version_of(os.stat(archive)), members=arguments.paths
        )
        self.job = Job(os.urandom(5).hex(), 1, (root,), options)

    def settle(self, rank: Rank, totals: Totals) -> int:
        """Print the members in the order of the archive, and write the signature, once all contents were digested.
        Return the exit status.
        """
        listing = self._listing
        try:
            for _, value in rank.own(DigestedMembers).records.sorted():
                each = unpacked(value)
                if isinstance(each, Damage):
                    listing.damaged(each)
                else:
                    listing.take(*each)
            archive = rank.own(OpenArchive)
            incomplete = listing.listed_as_incomplete(archive.read, archive.contents.size)
            listing.end(rank.own(WantedOfRank).lacking, incomplete)
        except HINDRANCES as error:
            listing.is_wrong(hindrance(error))
        return INCOMPLETE if listing.wrong else OK

    def tell_end(self, ended: Ended, ranks: int) -> int:
        self._listing.close()
        if ended.halted is not None:
            tell("ptar", f"{told(ended.halted)}; no signature is written; repeat the command to start again")
        elif ended.status == INTERNAL:
            tell("ptar", "internal error (status 70): not all that was found was read; no signature is written")
        sys.stdout.flush()
        tell_hidden("ptar", ended.totals.excluded, self.telling)
        return ended.status

    def tell_how_to_go_on(self) -> None:
        tell("ptar", "no signature is written; repeat the command to start again")
