"""``ptar -x``: unpack an archive. All ranks load this module; rank 0 checks the archive and the target, and reports the
result.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from functools import cached_property

from pcopy.archive.reader import FoundMember, read_archive_members
from pcopy.engine.task import NewTask, Task
from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK, RequestRefused, path_refused
from pcopy.fsio.copy_methods import keeps_times_on_close
from pcopy.fsio.named_file import UntrustedFileError, WrongFileTypeError, open_named_file_to_read
from pcopy.fsio.problem import Problem
from pcopy.jobs.source_argument import cannot_examine_error
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.launch.tool import JobResult
from pcopy.report.streams import print_error
from pcopy.tasks.archive.contents import ArchiveContents, ArchiveNotSeekable
from pcopy.tasks.archive.extract_members import SpawnExtractTasks
from pcopy.tasks.archive.extract_parts import FilesBeingExtracted
from pcopy.tasks.archive.finish_members import ExtractedDirectoryToFinishLastNote
from pcopy.tasks.archive.name_conflicts import CompareMemberNames, ResolveLinks
from pcopy.tasks.archive.one_stream import decompress_to_unnamed_file
from pcopy.tasks.archive.open_archive import archive_content_version, open_archive, owner_id
from pcopy.tasks.archive.phases import (
    COMPARE_NAMES,
    FINISH,
    MAKE_LINKS,
    RESOLVE_LINKS,
    SEAL,
    SYNC,
    UNPACK,
    UNPACK_AGAIN,
)
from pcopy.tasks.archive.read_headers import FindSpansToRead
from pcopy.tasks.archive.wanted_names import WantedNamesOnRank
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, ArchiveOptions, Job, JobCounters, Root
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.directories.sync_files import SyncFileSystems
from pcopy.text import printable_path, shell_quoted
from pcopy.tools.archive_common import TarDirector, TarJob, advice_after_stop
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import UnrecordedJobTool
from pcopy.tools.outputs import check_output_files, umask_of_user
from pcopy.walk.path_list import PathListReader


class ExtractDirector(TarDirector):
    """Director of ``ptar -x``: the object on rank 0 that chooses the phases of the job and their first tasks.

    The phases in their order:
    - 0: read the headers of the members, and send each member to the rank that owns its directory.
    - COMPARE_NAMES: the ranks look for members with conflicting names in the directories that they own.
    - RESOLVE_LINKS: rank 0 determines the contents that hard links get.
    - UNPACK, UNPACK_AGAIN: create the items, except hard links.
    - MAKE_LINKS: create hard links.
    - FINISH, SEAL: set the metadata of directories. Directories that their owner cannot enter come last (SEAL).
    - SYNC: bring everything to stable storage.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        ranks = range(self._rank.size)
        if phase == 0:
            return [NewTask(phase, encode_task(FindSpansToRead()), SCAN_COST, True, 0)]
        if phase in (COMPARE_NAMES, UNPACK):
            task = CompareMemberNames() if phase == COMPARE_NAMES else SpawnExtractTasks()
            return [NewTask(phase, encode_task(task), 0, owner=rank) for rank in ranks]
        if phase in (RESOLVE_LINKS, SEAL):
            return [
                NewTask(
                    phase,
                    encode_task(ResolveLinks() if phase == RESOLVE_LINKS else ExtractedDirectoryToFinishLastNote(b"")),
                    0,
                    owner=0,
                )
            ]
        if phase == SYNC:
            return [
                NewTask(phase, encode_task(SyncFileSystems(None)), 0, owner=rank) for rank in self._rank.first_ranks
            ]
        return []

    def needed_phases(self, sums: JobCounters) -> dict[int, object]:
        """Return the phases after the first one, in their order. The value of a phase is true if it is needed."""
        return {
            COMPARE_NAMES: True,
            RESOLVE_LINKS: True,
            UNPACK: True,
            UNPACK_AGAIN: sums.for_link,
            MAKE_LINKS: sums.for_again,
            FINISH: sums.for_finish,
            SEAL: sums.for_seal,
            SYNC: self._job.options.sync,
        }


class ExtractTool(UnrecordedJobTool):
    """The program ``ptar -x``."""

    name = "ptar"
    writes_to_targets = True
    done_word = "unpacked"
    make_director = ExtractDirector

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        rank.shared_instance(FilesBeingExtracted).remove_unfinished_files()

    def phase_name(self, phase: int) -> str:
        return "sync" if phase == SYNC else "copy"


UNPACK_TOOL = ExtractTool()
"""The only instance of ``ExtractTool``."""


class ExtractJob(TarJob):
    """The job of ``ptar -x`` on rank 0."""

    item_verb, stopped_text = "unpacked", "repeat the command to unpack everything again"

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the archive and the target, and prepare the job; nothing is modified. Raise ``RequestRefused`` if the
        job must not start.
        """
        arguments = arguments_with_listed_members(arguments)
        super().__init__(arguments)
        if arguments.paths:
            self.excluding_options = "MEMBER, --from or filters"
        self._trailing_data_text = ""
        """A message about other data that follow the end of the archive in the compressed stream; "" if there are none.
        """
        archive, self._not_seekable = checked_archive_path(arguments, "-x")
        root = _root_of_target_directory(arguments.directory)
        check_output_files(self.output, (root,), "is unpacked into")
        options = arguments.options._replace(
            umask=umask_of_user(),
            itemize=REPORT_ALL_ITEMS if self.is_reporting_items else 0,
            sync=arguments.options.sync and not self.dry_run,
        )
        archive_options = arguments.archive_options._replace(
            archive_file=archive,
            archive_version=archive_content_version(os.stat(archive)),
            members=arguments.paths,
        )
        if not (options.dry_run or keeps_times_on_close(root.target)):
            from pcopy.tools.sequential import options_for_destination  # Imported here since few destinations need it.

            options, notices = options_for_destination(options, root.target)
            self.remarks += notices
        self.job = Job(os.urandom(5).hex(), 1, (root,), options, archive_options)

    def complete_preparation(self, ranks: int) -> None:
        """Prepare an archive that can only be read as one stream: decompress it into a temporary file without a name.

        The ranks of this host open that file through ``/proc``. Do nothing for other archives.

        Raise ``RequestRefused`` if the archive cannot be decompressed, or if there are ranks on other hosts or in other
        namespaces, which cannot open the temporary file.
        """
        stream, where = self._not_seekable, self.job.roots[0].target
        if stream is None:
            return
        if self.host_count > 1:
            raise stream
        if not self.output.quiet:
            given = printable_path(self.arguments.archive)
            print_error("ptar", f"{given}: is one stream ({stream.why}): one process decompresses it first")
        archive = open_archive(self.job.program_options(ArchiveOptions).archive_file)
        try:
            contents, self._trailing_data_text = decompress_to_unnamed_file(archive, stream.program, where)
        except Problem as problem:
            advice = str(stream).rpartition("; ")[2]
            if problem.errno == errno.EBADMSG:
                advice = f"to unpack what can be read, {advice}"
            elif problem.errno == errno.ENOTSUP:
                advice = advice.replace(" -dc ", " -dc --long=31 ", 1)
            given, reason = printable_path(self.arguments.archive), f"{problem.operation}: {problem.strerror}"
            raise RequestRefused(
                f"{given}: cannot be decompressed into {printable_path(where)}: {reason}; {advice}", path=where
            ) from None
        finally:
            os.close(archive)
        archive_options = self.job.program_options(ArchiveOptions)._replace(
            archive_contents=b"/proc/%d/fd/%d" % (os.getpid(), contents),
            archive_version=archive_content_version(os.fstat(contents)),
        )
        self.job = self.job._replace(program=archive_options)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        if self._trailing_data_text:
            self.remarks.append(f"{printable_path(self.arguments.archive)}: {self._trailing_data_text}")
            self.incomplete_text = "there are other data after the end of the archive"
        lacking = rank.shared_instance(WantedNamesOnRank).missing_names_text
        if not lacking:
            return EXIT_INCOMPLETE if self._trailing_data_text else EXIT_OK
        self.remarks.append(f"{printable_path(self.arguments.archive)}: {lacking}")
        self.incomplete_text = "some requested members are not in the archive"
        return EXIT_INCOMPLETE

    def member_name(self, path: bytes) -> bytes:
        """Return the path below DIR, with the ``./`` with which tar begins the names of an archive of ``.``."""
        directory = self.arguments.directory.rstrip(b"/")
        below = path[len(directory) :].lstrip(b"/") if directory or self.arguments.directory else path
        return self._name_prefix + below

    @cached_property
    def _name_prefix(self) -> bytes:
        """``./`` if the name of the first member begins so; otherwise empty. Names are compared without it."""
        options = self.job.program_options(ArchiveOptions)
        path = options.archive_contents or options.archive_file
        try:
            descriptor = open_archive(path)
        except Problem:
            return b""
        try:
            for first in read_archive_members(ArchiveContents(descriptor, path).read, owner_id):
                return b"./" if isinstance(first, FoundMember) and first.member.name.startswith(b"./") else b""
        except (Problem, ArchiveNotSeekable):
            pass  # The job itself reports errors of the archive.
        finally:
            os.close(descriptor)
        return b""

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        return {**super().json_summary(ended, seconds, ranks), "sequential": self.job.options.sequential}

    def print_resume_advice(self) -> None:
        print_error("ptar", self.stopped_text)

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        if ended.halt is not None:
            self.stopped_text = advice_after_stop(ended.halt, self.stopped_text, self.job.roots[0].target)
        return super().report_job_result(ended, ranks)


MAX_LISTED_NAMES = 1_000_000
"""Maximum number of names in the list of ``--from``: each rank keeps all of them in memory. A longer list is
refused.
"""
MAX_LISTED_BYTES = 256 << 20
"""Maximum total length in bytes of the names in the list of ``--from``."""


def arguments_with_listed_members(arguments: ArchiveArguments) -> ArchiveArguments:
    """Return ``arguments`` with the names in the list of ``--from`` as ``paths``, the requested members; without
    ``--from``, return them unchanged. Raise ``RequestRefused`` if the list cannot be used, or is empty or too
    long.
    """
    if not arguments.list_file:
        return arguments
    names: list[bytes] = []
    size = 0
    with PathListReader(
        arguments.list_file, nul=arguments.nul_separated, advice_for=suggestion_for_missing_path
    ) as listing:
        for number, name, _ in listing:
            size += len(name)
            if len(names) >= MAX_LISTED_NAMES or size > MAX_LISTED_BYTES:
                is_long = size > MAX_LISTED_BYTES
                limit = f"{MAX_LISTED_BYTES:,} bytes of names" if is_long else f"{MAX_LISTED_NAMES:,} names"
                raise listing.error_at_line(
                    number, f"the list has more than {limit}: leave the list out, or select members by --include"
                )
            names.append(name)
        if not names:
            raise listing.empty_list_error()
    return arguments._replace(paths=tuple(names))


def checked_archive_path(arguments: ArchiveArguments, tar_options: str) -> tuple[bytes, ArchiveNotSeekable | None]:
    """Return the absolute path of the archive. The second value is None if several ranks can read it at different
    offsets, else the reason why it can only be read as one stream.

    Args:
        tar_options: the options of tar(1) for the same operation, for the advice in messages.

    Raise ``RequestRefused`` if the archive cannot be read at all.
    """
    path, words = arguments.archive, [b"-C", arguments.directory] if arguments.directory else []
    words += [b"-T", arguments.list_file] if arguments.list_file else arguments.paths
    tar = " ".join([f"tar {tar_options}", *map(shell_quoted, words)])
    try:
        descriptor, real, *_ = open_named_file_to_read(path, regular=True)
    except OSError as error:
        raise RequestRefused(_archive_open_error_text(path, error), path=path) from None
    try:
        ArchiveContents(descriptor, real, tar)
    except ArchiveNotSeekable as stream:
        return real, stream
    except Problem as problem:
        raise path_refused(path, f"cannot be read: {problem.strerror}") from None
    finally:
        os.close(descriptor)
    return real, None


def _archive_open_error_text(path: bytes, error: OSError) -> str:
    """Return the message that says why the archive ``path`` cannot be opened, and what to do."""
    if error.errno == errno.EISDIR:
        return f"{printable_path(path)}: is a directory; name the archive's file"
    if isinstance(error, WrongFileTypeError):
        return (
            f"{printable_path(path)}: is not a regular file, and ptar reads an archive at many offsets in parallel; "
            "use tar"
        )
    if isinstance(error, UntrustedFileError):
        return f"{printable_path(path)}: cannot be opened: {error.strerror}"
    return str(cannot_examine_error(path, error))


def _root_of_target_directory(path: bytes) -> Root:
    """Return the root (source and target, here the same) for the directory into which members are unpacked.

    Args:
        path: the directory of ``-C``; empty: the working directory.

    Raise ``RequestRefused`` if it is not a directory that this user may enter.
    """
    try:
        real = os.path.realpath(path or b".", strict=True)
        status = os.stat(real)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise cannot_examine_error(path or b".", error) from None
        advice = suggestion_for_missing_path(path) if path else ""
        raise path_refused(
            path or b".", f"{error.strerror}; {advice or 'create it first'} (-C needs an existing directory)"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise path_refused(path, "is not a directory; name the one into which members are unpacked", code=errno.ENOTDIR)
    try:
        os.stat(os.path.join(real, b"."))
    except OSError as error:
        why = f"{error.strerror}; this user cannot enter the directory: check its mode"
        raise path_refused(path or b".", why, code=error.errno or errno.EACCES) from None
    identity = status.st_dev, status.st_ino
    return Root(real, real, b"", b"", path, path, identity, identity)
