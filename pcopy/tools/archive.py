"""``ptar -c``: create an archive of trees. All ranks load this module; rank 0 prepares the job and reports
its result.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from pcopy.archive.incomplete import encoded_archive_trailer
from pcopy.archive.index import INDEX_SUFFIX, ArchiveIndex, joined_gzip_parts, pack_index
from pcopy.archive.member import name_in_archive
from pcopy.engine.task import NewTask, Task
from pcopy.errors import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    EXIT_STOPPED,
    NO_SPACE_CODE,
    RequestRefused,
    path_refused,
    unwritable_directory_code,
)
from pcopy.fsio.copy_methods import supports_rename_and_random_writes
from pcopy.fsio.durable import sync_directory
from pcopy.fsio.named_file import UntrustedFileError, examine_parent_directory, reason_path_cannot_be_replaced
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import MAX_FRAMES
from pcopy.jobs.paths import is_in_tree
from pcopy.jobs.sorted_list import existing_base_directory, proc_path_of_descriptor, sorted_paths_to_copy
from pcopy.jobs.source_argument import root_for_reading
from pcopy.jobs.spool import TMPDIR_ADVICE, spool_errors_as_refusal, spool_factory
from pcopy.jobs.suggestions import reason_directory_is_unwritable
from pcopy.launch.tool import JobResult, Tool
from pcopy.report.streams import print_error
from pcopy.signature.replacing import replacing_output_file
from pcopy.tasks.archive.archive_file import (
    NO_SPACE_ERRNOS,
    ArchiveFile,
    archive_job_name,
    is_archive_in_use,
    temporary_archive_name,
    unfinished_archive_files,
)
from pcopy.tasks.archive.compression import check_compression, compression_by_name, compression_chosen_by_name
from pcopy.tasks.archive.frames import ArchiveFrameWriter
from pcopy.tasks.archive.incomplete_files import IncompleteFiles
from pcopy.tasks.archive.packing_visitor import ArchivingItemVisitor, DescribeRoot
from pcopy.tasks.archive.phases import REPORT_PIECES, SYNC, WRITE_PIECES
from pcopy.tasks.archive.piece_layout import ArchiveLayout, LayOutPieces, ReportPieces
from pcopy.tasks.archive.sync_archive import SyncArchive
from pcopy.tasks.archive.written_records import PieceRecords, recorded_compression
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, ArchiveOptions, Failure, Job, JobCounters, Root
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.listed.hand_out import DistributeListedPaths
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.archive_common import TarDirector, TarJob, advice_after_stop, make_room_advice
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector, UnrecordedJobTool
from pcopy.tools.outputs import check_output_and_signature_files, umask_of_user, write_signature_file


class ArchiveDirector(TarDirector):
    """Director of ``ptar -c``: the object on rank 0 that chooses the phases of the job and the first tasks of each.

    The phases in their order:
    - COPY: walk the trees and describe their items.
    - LINK: collect all names of each file with several hard links on one rank, so that one name becomes a file and
      the others become links.
    - REPORT_PIECES: each rank divides its members into pieces of the archive, and reports their sizes to rank 0.
    - WRITE_PIECES: rank 0 computes the offset of each piece, and the ranks write their pieces there.
    - SYNC: each rank syncs (fsync) the archive that it has written to.
    - SIGN and the phases after it: compute the signature.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        ranks = range(self._rank.size)
        if phase == Phase.COPY:
            if self._job.listed:
                return [NewTask(0, encode_task(DistributeListedPaths(0)), SCAN_COST, True, 0)]
            tops = [number for number, root in enumerate(self._job.roots) if not root.item]
            return [
                *(NewTask(0, encode_task(DescribeRoot(number)), SCAN_COST) for number in tops),
                *super().first_tasks_of_phase(phase),
            ]
        if phase == REPORT_PIECES:
            return [NewTask(phase, encode_task(ReportPieces()), 0, owner=rank) for rank in ranks]
        if phase == WRITE_PIECES:
            return [NewTask(phase, encode_task(LayOutPieces()), 0, owner=0)]
        if phase == SYNC:
            return [NewTask(phase, encode_task(SyncArchive()), 0, owner=rank) for rank in ranks]
        return super().first_tasks_of_phase(phase) if phase >= Phase.SIGN else []

    def needed_phases(self, sums: JobCounters) -> dict[int, object]:
        """Return the phases after the first one, in their order. The value of a phase is true if it is needed."""
        return {
            int(Phase.LINK): sums.for_link,
            REPORT_PIECES: True,
            WRITE_PIECES: True,
            SYNC: self._job.options.sync,
            int(Phase.SIGN): self._rank.collects_signature_entries and not sums.failed,
        }

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        if phase >= Phase.SIGN:
            return JobDirector.next_phase(self, phase, totals)
        return super().next_phase(phase, totals)


class ArchiveTool(UnrecordedJobTool):
    """The program ``ptar -c`` as all ranks need it: its texts, its director and its cleaning up."""

    name = "ptar"
    writes_to_targets = True
    done_word = "archived"
    make_director = ArchiveDirector
    make_visitor = staticmethod(ArchivingItemVisitor)

    def initial_counts(self, job: Job) -> list[int]:
        return super().initial_counts(job) if job.listed else Tool.initial_counts(self, job)

    def phase_name(self, phase: int) -> str:
        return "sign" if phase >= Phase.SIGN else "sync" if phase == SYNC else "copy"

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        """Keep or remove the temporary archive of a job that ended early.

        With ``--resume``, or if the archive's file system is full, record which pieces are complete: the next run with
        ``--resume`` does not write them again. Without ``--resume``, and if no rank has recorded a piece, rank 0
        removes the temporary archive. Errors here are ignored: the reason for the early end of the job is reported, not
        they.

        Args:
            rank: this rank.
            dropped_tasks, since: not needed by this program.
        """
        archive, made = rank.shared_instance(ArchiveFile), rank.shared_instance(PieceRecords)
        is_full = rank.stop_reason is not None and rank.stop_reason.code == NO_SPACE_CODE
        if made.is_enabled and (rank.program_options(ArchiveOptions).resumes or is_full):
            with suppress(Problem):  # Pieces that cannot be recorded are written again by the resumed run.
                made.store_records()
        with suppress(OSError):  # A file of records that cannot be removed is harmless.
            made.remove_useless_record_file()
        if rank.number == 0 and archive.is_temporary:
            with suppress(Problem):
                if not (rank.program_options(ArchiveOptions).resumes or made.has_any_record()):
                    archive.remove_unfinished_archive()


ARCHIVE_TOOL = ArchiveTool()
"""The only instance of ``ArchiveTool``."""


class ArchiveJob(TarJob):
    """The job of ``ptar -c`` on rank 0: checks the arguments before the start, and completes and reports the archive at
    the end.
    """

    item_verb = "archived"

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if the archive cannot be created; nothing
        is modified.
        """
        super().__init__(arguments)
        self._size = 0
        self._signature: str | None = None
        """The signature in hexadecimal digits; None if it was not computed."""
        self._pieces_written_before: tuple[int, int] | None = None
        """Number of pieces of the archive that an interrupted run had written, and number of all pieces. None if no
        interrupted run is continued.
        """
        archive = _checked_archive_path(arguments.archive)
        self._listed: BinaryIO | None = None
        if arguments.list_file:
            root, self._listed = _root_and_path_list(arguments, archive)
            roots: tuple[Root, ...] = (root,)
        else:
            _refuse_only_the_archive([os.path.join(arguments.directory, path) for path in arguments.paths], archive)
            roots = tuple(_root_for_path(path, arguments.directory, archive) for path in arguments.paths)
        signs = bool(arguments.options.signature)
        if signs and len(roots) > 1:
            raise RequestRefused(
                "--signature describes one PATH: archive the directory that contains all of these paths"
            )
        itemize = REPORT_ALL_ITEMS if self.is_reporting_items else 0
        options = arguments.options._replace(umask=umask_of_user(), itemize=itemize)
        archive_options = arguments.archive_options._replace(archive_file=archive)
        name = archive_job_name(archive)
        self._leftovers = unfinished_archive_files(os.path.dirname(archive), name)
        """Paths of temporary files that an interrupted run with the same archive has left in its directory."""
        self._continued_compression = recorded_compression(self._leftovers[1:]) if archive_options.resumes else None
        """The compression with which an interrupted run has begun the archive that is continued; None if it is unknown,
        or if no run is continued.
        """
        archive_options = archive_options._replace(compress_as=self._chosen_compression())
        check_output_and_signature_files(() if self._listed else roots, options, arguments.output, copies=False)
        check_compression(archive_options.compress_as, options.block_size if signs else 0)
        _refuse_concurrent_creation(os.path.dirname(archive), temporary_archive_name(name), arguments.archive)
        if not (options.dry_run or supports_rename_and_random_writes(os.path.dirname(archive))):
            from pcopy.tools.sequential import (
                refuse_file_system_without_rename,  # Imported here since few destinations need it.
            )

            advice = "make it elsewhere and copy it there with pcopy"
            refuse_file_system_without_rename(os.path.dirname(archive), arguments.archive, advice, at_any_offset=True)
        own_files = tuple(_files_of_job_in_sources(roots, (archive, archive + INDEX_SUFFIX, *self._leftovers)))
        listed = proc_path_of_descriptor(self._listed) if self._listed else b""
        if options.dry_run:
            options = options._replace(signature=b"", hash="", sync=False)
            archive_options = archive_options._replace(resumes=False)
        self.job = Job(name, 1, roots, options, archive_options, copies=False, own=own_files, listed=listed)

    def _chosen_compression(self) -> str:
        """Return the compression of the archive: that of an option, or the one that the name chooses. A run that is
        continued keeps its compression if the name chooses one: it may have been started with another option.

        Raise ``RequestRefused`` if the name asks for a compression that ptar does not have.
        """
        if not self.arguments.is_compressed_by_name:
            return self.arguments.archive_options.compress_as
        named = compression_chosen_by_name(self.arguments.archive)
        return self._continued_compression if named and self._continued_compression is not None else named

    @property
    def _archive_options(self) -> ArchiveOptions:
        return self.job.program_options(ArchiveOptions)

    def print_job_start_notices(self) -> None:
        """Print notices about an interrupted run, the compression, and names that differ in the archive."""
        if self.output.quiet:
            return
        if text := self._compression_notice():
            print_error("ptar", f"{printable_path(self.arguments.archive)}: {text}")
        if self._leftovers and not self._archive_options.resumes:
            print_error(
                "ptar",
                "a part of this archive, which an interrupted run has left, is not used: with --resume ptar would "
                "continue it",
            )
        for root in () if self.arguments.list_file else self.job.roots:
            given = root.source_shown.rstrip(b"/") or b"/"
            name = name_in_archive(given, b"")
            if name != given:
                print_error(
                    "ptar",
                    f"{printable_path(root.source_shown)}: is called {printable_path(name)} in the archive, as tar "
                    "does",
                )

    def _compression_notice(self) -> str:
        """Return a text that says how the archive is compressed; empty if that is as expected."""
        chosen, named = self._archive_options.compress_as, compression_by_name(self.arguments.archive)
        how = f"compressed with {chosen}" if chosen else "not compressed"
        if self.arguments.is_compressed_by_name and self._continued_compression not in (None, named):
            return f"{how}, as the interrupted run has begun it"
        if self.arguments.is_compressed_by_name:
            return f"{how}, as the name says (--no-auto-compress: not compressed)" if chosen else ""
        return f"{how}, although the suffix of the name stands for {named}" if named not in ("", chosen) else ""

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        """Complete the archive, rename it to its final name, and write its index and the signature file. Return the
        exit status.
        """
        archive, layout, options = (
            rank.shared_instance(ArchiveFile),
            rank.shared_instance(ArchiveLayout),
            self.job.options,
        )
        self._pieces_written_before, self._size = layout.already_written, layout.size
        if options.dry_run:
            return EXIT_OK
        name = os.path.basename(self._archive_options.archive_file)
        try:
            self._write_archive_end(rank, layout)
            status, unset = archive.commit(name, 0o666 & ~options.umask)
        except Problem as problem:
            self.remarks.append(f"{printable_path(self.arguments.archive)}: {problem.operation}: {problem.strerror}")
            advice = self._advice_to_continue
            if problem.errno in NO_SPACE_ERRNOS:
                advice = f"{make_room_advice(rank.job.roots[0].target)}, then {advice}"
            self.remarks.append(f"the archive was not created; {advice}")
            return EXIT_STOPPED
        is_right = self._sync_directory_and_report(rank, unset)
        try:  # After the rename, since without records a resumed run would write the whole archive again.
            rank.shared_instance(PieceRecords).remove_all_files()
        except Problem as problem:
            self.remarks.append(f"the records of its progress could not be removed: {problem.strerror}")
        self._write_index(rank, layout, status)
        if not rank.collects_signature_entries or totals.failed:
            if rank.collects_signature_entries:
                self.remarks.append("no signature is written, since items failed")
            return EXIT_OK if is_right else EXIT_INCOMPLETE
        from pcopy.tasks.sign.signing import SignatureState

        sign = rank.shared_instance(SignatureState)
        self._signature = sign.signatures[0][0].hex()
        trouble = write_signature_file(self.job, sign)
        if trouble:
            self.remarks.append(trouble)
        return EXIT_INCOMPLETE if trouble or not is_right else EXIT_OK

    def _sync_directory_and_report(self, rank: Rank, unset: Problem | None) -> bool:
        """Sync the directory of the archive. If that fails, or if the mode of the archive could not be set, report the
        archive as a failed item.

        Args:
            unset: the error when the mode was set; None if it was set.

        Return True if both the sync and the mode succeeded.
        """
        found = [] if unset is None else [("its mode could not be set", unset)]
        if self.job.options.sync:
            try:
                sync_directory(rank.descriptors[0].target)
            except Problem as problem:
                found.append(("its name may not be on stable storage", problem))
        for consequence, missing in found:
            text = f"the archive is complete, but {consequence}"
            rank.report_failures_and_notices(
                [Failure(self.arguments.archive, missing.operation, missing.errno or 0, text)], ()
            )
        return not found

    def needed_bytes(self, totals: JobCounters) -> int:
        """Return the size of the archive in bytes; 0 for a compressed archive, whose size is not known before it is
        written.
        """
        return 0 if self._archive_options.compress_as else self._size

    def _write_archive_end(self, rank: Rank, layout: ArchiveLayout) -> None:
        """Write what follows the members: the end of a compressed archive, and the trailer that lists incomplete files.

        ``layout`` says where the members end. Raise ``Problem`` if writing fails.
        """
        archive, frames, incomplete = (
            rank.shared_instance(ArchiveFile),
            rank.shared_instance(ArchiveFrameWriter),
            rank.shared_instance(IncompleteFiles).trailer_names,
        )
        trailing = encoded_archive_trailer(incomplete, layout.size) if incomplete else b""
        if self._archive_options.compress_as:
            frames.write_archive_end(layout.members_end, trailing)
        elif trailing:
            archive.write(trailing, layout.size)
        if self.job.options.sync and (trailing or self._archive_options.compress_as):
            archive.sync()
        if self._archive_options.compress_as == "zstd" and len(frames.placed_frames) > MAX_FRAMES:
            text = f"the archive has more than {MAX_FRAMES:,} frames, and therefore no seek table"
            self.remarks.append(f"{text}: it can be read as one stream only")

    def _write_index(self, rank: Rank, layout: ArchiveLayout, status: os.stat_result) -> None:
        """Write the index, a file next to the archive, if readers need it. Otherwise remove the index of an older
        archive.

        The index lists offsets at which a reader can begin, so that several ranks can read the archive. It is needed if
        there is more than one such offset, or if the archive is compressed with gzip. If it cannot be written, only a
        remark says so: the archive can be read without it, by one process.

        Args:
            layout: where the members are in the archive.
            status: the status of the archive, which the index contains.
        """
        path = self._archive_options.archive_file + INDEX_SUFFIX
        try:
            if len(layout.index_offsets) > 1 or self._archive_options.compress_as == "gzip":
                frames = joined_gzip_parts(
                    rank.shared_instance(ArchiveFrameWriter).placed_frames
                    if self._archive_options.compress_as == "gzip"
                    else ()
                )
                index = ArchiveIndex(
                    status.st_size, status.st_mtime_ns, layout.index_offsets, layout.members_end, frames
                )
                with replacing_output_file(path, self.job.options.umask, self.job.temporary_name_id) as stream:
                    stream.write(pack_index(index))
            else:
                directory, name = rank.descriptors[0].target, os.path.basename(path)
                if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except RequestRefused as refused:
            self.remarks.append(f"the index could not be written, and is not needed: {refused}")
        except OSError as error:
            self.remarks.append(
                f"{printable_path(path)}: the index could not be written, and is not needed: {error.strerror}"
            )

    @property
    def state_after_second_sigint(self) -> str:
        return f"the archive was not created; {self._advice_to_continue}"

    def print_resume_advice(self) -> None:
        print_error("ptar", f"the archive was not created; {self._advice_to_continue}")

    @property
    def _advice_to_continue(self) -> str:
        """Advice to the user of a job that ended early: repeat the command, with ``--resume`` if an unfinished archive
        is left.
        """
        unfinished = unfinished_archive_files(os.path.dirname(self._archive_options.archive_file), self.job.name)
        if not unfinished:
            return "repeat the command to create it"
        advice = (
            "repeat the command to continue"
            if self._archive_options.resumes
            else "repeat the command with --resume to continue"
        )
        return f"{advice} with {printable_path(unfinished[0])}"

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        if ended.halt is not None:
            self.remarks.insert(0, "the archive was not created; an older one with its name is unchanged")
            self.stopped_text = advice_after_stop(ended.halt, self._advice_to_continue, self.job.roots[0].target)
        return super().report_job_result(ended, ranks)

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        resumed = self._pieces_written_before[0] if self._pieces_written_before is not None else None
        return {**super().json_summary(ended, seconds, ranks), "signature": self._signature, "pieces_resumed": resumed}

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        yield from super().summary_lines(ended, seconds, ranks)
        if self._pieces_written_before is not None:
            number, pieces = self._pieces_written_before
            share = f"{number:,} of {count_with_noun(pieces, 'piece', 'pieces')} of the archive"
            yield f"resumed: {share} were written before, completely or in part"


def _checked_archive_path(path: bytes) -> bytes:
    """Return the absolute path of the archive to be created, without symbolic links in its directory. Raise
    ``RequestRefused`` if no file can be created there, or if ``path`` is an item that an archive may not replace.
    """
    directory, name = os.path.split(path)
    if name in (b"", b".", b".."):
        raise path_refused(path, "names a directory; name the archive's file")
    try:
        real = examine_parent_directory(path).path
    except UntrustedFileError as error:
        raise path_refused(path, f"cannot be created: {error.strerror}") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise path_refused(
                path, f"the directory {printable_path(directory)} does not exist; create it first"
            ) from None
        raise path_refused(path, f"its directory cannot be opened: {error.strerror}") from None
    if why := reason_directory_is_unwritable(real):
        raise path_refused(
            path, f"cannot be created, since {why}; name another file", code=unwritable_directory_code(real)
        )
    _refuse_irreplaceable_item(path)
    return os.path.join(real, name)


def _refuse_irreplaceable_item(path: bytes) -> None:
    """Raise ``RequestRefused`` if ``path`` exists and is not a regular file that the archive can replace."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:  # For instance, if the name is too long, the rename at the end would fail.
        refused = f"{printable_path(path)}: cannot be created: {error.strerror}; name another file"
        raise RequestRefused(refused, path=path) from None
    if stat.S_ISDIR(mode):
        raise path_refused(path, "is a directory; name the archive's file", code=errno.EISDIR)
    if stat.S_ISLNK(mode):
        raise path_refused(path, reason_path_cannot_be_replaced(path, mode, "an archive"))
    if not stat.S_ISREG(mode):
        raise path_refused(
            path, "is not a regular file, and ptar writes an archive at many offsets in parallel; use tar"
        )


def _refuse_only_the_archive(paths: Sequence[bytes], archive: bytes) -> None:
    """Raise ``RequestRefused`` if each of ``paths`` is the file ``archive``, an absolute path without symbolic links in
    its directory: an archive without members would replace it. Among other paths it is left out with a warning, because
    ``ptar -c -f all.tar *`` is common.
    """
    real = {os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths}
    if real == {archive} and os.path.lexists(archive):
        raise path_refused(paths[0], "is the archive itself; name another archive with -f, or other paths")


def _refuse_concurrent_creation(directory: bytes, temporary: bytes, archive: bytes) -> None:
    """Raise ``RequestRefused`` if another process is creating this archive, or if an item that is no unfinished archive
    has its temporary name.

    Args:
        directory: the directory of the archive.
        temporary: the temporary name, which the archive has until it is complete.
        archive: the path that the user gave, for messages.
    """
    try:
        is_made = is_archive_in_use(directory, temporary)
    except Problem as problem:
        raise path_refused(archive, f"cannot be created: {problem.strerror}") from None
    if is_made:
        raise path_refused(
            archive, "another ptar is creating this archive; wait until that ptar ends, or stop it first"
        )


def _root_for_path(path: bytes, directory: bytes, archive: bytes) -> Root:
    """Return the root (source and target) for one PATH of the command line; its target is the archive. Raise
    ``RequestRefused`` if PATH cannot be read.

    Args:
        path: PATH, absolute or relative to ``directory``.
        directory: the directory of ``-C``, or empty.
        archive: the absolute path of the archive.
    """
    root = root_for_reading(os.path.join(directory, path), follow=False)
    directory_of_archive, name = os.path.split(archive)
    try:
        status = examine_parent_directory(archive).status
    except OSError as error:
        raise path_refused(archive, f"its directory cannot be opened: {error.strerror}") from None
    assert status is not None  # The directory exists.
    return root._replace(
        source_shown=path,
        target=directory_of_archive,
        name=name,
        target_shown=archive,
        target_id=(status.st_dev, status.st_ino),
    )


def _root_and_path_list(arguments: ArchiveArguments, archive: bytes) -> tuple[Root, BinaryIO | None]:
    """Read the list of paths that ``--from`` names. Return the root of the directory to which the paths are
    relative (``-C``, or the working directory), and a temporary file with the sorted list.

    Instead of the file, None is returned if the only listed path is that directory itself: then the whole directory is
    archived. ``archive`` is the absolute path of the archive. Raise ``RequestRefused`` if the list cannot be used.
    """
    base = existing_base_directory(arguments.directory or b".")
    root = _root_for_path(base.real, b"", archive)._replace(source_shown=base.shown)
    with spool_errors_as_refusal(b"", TMPDIR_ADVICE):
        listed = sorted_paths_to_copy(
            arguments.list_file, root, spool_factory(b""), nul=arguments.nul_separated, omit_below_listed=True
        )
    listed.seek(0)
    if listed.read(1) == b"\0":  # The list contains only the empty path: the directory itself.
        listed.close()
        return root._replace(source_shown=b"."), None
    return root._replace(source_shown=b""), listed


def _files_of_job_in_sources(roots: Sequence[Root], paths: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the root, path below that root) for each of the files ``paths`` that lies in a source.

    These are files of the job itself, such as the archive; they are left out, so that the archive does not contain
    itself.
    """
    for number, root in enumerate(roots):
        for path in paths:
            if not root.item and is_in_tree(path, root.source):
                yield number, os.path.relpath(path, root.source)
            elif root.item and path == os.path.join(root.source, root.item):
                yield number, root.item
