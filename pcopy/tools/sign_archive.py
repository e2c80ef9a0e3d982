"""``ptar -t --signature``: all ranks read the archive and compute the digests of its members; rank 0 prints the members
and writes the signature.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from pcopy.archive.reader import ArchiveDamage
from pcopy.engine.messages import HaltMessage
from pcopy.engine.task import NewTask
from pcopy.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERNAL,
    EXIT_OK,
    EXIT_STOPPED,
    RESOURCE_EXCEPTIONS,
    PcopyError,
    resource_error_text,
)
from pcopy.launch.tool import JobResult, PreparedJob
from pcopy.launch.watch.signals import stop_message
from pcopy.report.streams import print_error
from pcopy.tasks.archive.digest_members import DigestedMembers, FindSpansToDigest, unpack_digested_member
from pcopy.tasks.archive.open_archive import OpenedArchive, archive_content_version
from pcopy.tasks.archive.wanted_names import WantedNamesOnRank
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import Job, JobCounters, Root
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector, UnrecordedJobTool, stages_of_single_walk
from pcopy.tools.extract import arguments_with_listed_members, checked_archive_path
from pcopy.tools.filter_messages import print_excluded_item_count
from pcopy.tools.list_archive import ArchiveMemberLister, archive_listing_options, equivalent_tar_options


class SignArchiveDirector(JobDirector):
    """Director of ``ptar -t --signature`` (the object on rank 0 that chooses phases and first tasks). There is one
    phase, which begins with a task that divides the archive among the ranks.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return [NewTask(phase, encode_task(FindSpansToDigest()), SCAN_COST, True, 0)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        if halted is not None:
            return EXIT_STOPPED
        return EXIT_INTERNAL if sums.found != sums.copied + sums.failed else self._complete(self._rank, sums)


class SignArchiveTool(UnrecordedJobTool):
    """The program ``ptar -t --signature``."""

    name = "ptar"
    writes_to_targets = False
    done_word = "read"
    make_director = SignArchiveDirector
    stages = stages_of_single_walk("read")

    def phase_name(self, phase: int) -> str:
        return "read"


SIGN_ARCHIVE_TOOL = SignArchiveTool()
"""The only instance of ``SignArchiveTool``."""


def is_signed_in_parallel(arguments: ArchiveArguments) -> bool:
    """True if ``--signature`` was given, and the archive can be read at any offset, so that several ranks can share the
    work. False also if the archive cannot be opened.
    """
    try:
        return bool(arguments.options.signature) and checked_archive_path(arguments, "-t")[1] is None
    except PcopyError:  # The error is reported by the listing without ranks, which follows.
        return False


class SignArchiveJob(PreparedJob):
    """The job of ``ptar -t --signature`` on rank 0: prints the members and writes the signature at the end."""

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if the archive cannot be read; nothing is
        modified.
        """
        super().__init__(arguments.ranks, arguments.in_flight, arguments.output._replace(verbose=0))
        arguments = arguments_with_listed_members(arguments)
        archive, stream = checked_archive_path(arguments, equivalent_tar_options(arguments))
        if stream is not None:
            raise stream
        options = archive_listing_options(arguments)
        self._listing = ArchiveMemberLister(arguments, archive, options)
        top = os.path.dirname(archive)
        status = os.stat(top)
        identity = status.st_dev, status.st_ino
        root = Root(top, top, b"", b"", arguments.archive, arguments.archive, identity, identity)
        archive_options = arguments.archive_options._replace(
            archive_file=archive,
            archive_version=archive_content_version(os.stat(archive)),
            members=arguments.paths,
        )
        self.job = Job(os.urandom(5).hex(), 1, (root,), options._replace(signature=b""), archive_options)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        """Print the members in the order of the archive, and write the signature. It is called when the ranks have read
        all members. Return the exit status.
        """
        listing = self._listing
        try:
            for _, value in rank.shared_instance(DigestedMembers).records.sorted():
                each = unpack_digested_member(value)
                if isinstance(each, ArchiveDamage):
                    listing.report_damage(each)
                else:
                    listing.print_and_sign_member(*each)
            archive = rank.shared_instance(OpenedArchive)
            incomplete = listing.read_incomplete_files(archive.read, archive.contents_of_archive.size)
            listing.finish_archive_listing(rank.shared_instance(WantedNamesOnRank).missing_names_text, incomplete)
        except RESOURCE_EXCEPTIONS as error:
            listing.report_failure(resource_error_text(error))
        return EXIT_INCOMPLETE if listing.failures else EXIT_OK

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        self._listing.close()
        if ended.halt is not None:
            print_error(
                "ptar", f"{stop_message(ended.halt)}; no signature is written; repeat the command to start again"
            )
        elif ended.status == EXIT_INTERNAL:
            print_error("ptar", "internal error (status 70): not all that was found was read; no signature is written")
        sys.stdout.flush()
        print_excluded_item_count("ptar", ended.totals.excluded, self.output)
        return ended.status

    def print_resume_advice(self) -> None:
        print_error("ptar", "no signature is written; repeat the command to start again")
