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

from pcopy.archive.incomplete import trailer
from pcopy.archive.index import SUFFIX, Index, joined, packed
from pcopy.archive.member import name_in_archive
from pcopy.engine.task import Spawn, Task
from pcopy.errors import INCOMPLETE, NO_ROOM, OK, STOPPED, Refused
from pcopy.fsio.durable import sync_directory
from pcopy.fsio.named_file import NotTrusted, look_at_directory_of, obstacle
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import MOST_FRAMES
from pcopy.fsio.ways import is_ordinary
from pcopy.jobs.files_from import path_of, sorted_list
from pcopy.jobs.meant import unwritable
from pcopy.jobs.path_read import root_read
from pcopy.jobs.paths import lies_in
from pcopy.jobs.spool import SET_ANOTHER, refusing, spool_in
from pcopy.launch.tool import Ended, Tool
from pcopy.report.streams import tell
from pcopy.signature.replacing import replacing
from pcopy.tasks.archive.archive_file import ArchiveFile, is_in_use, job_name, left_by, name_of
from pcopy.tasks.archive.arrange import Placement, PlacePieces, TellPieces
from pcopy.tasks.archive.compression import check_compression
from pcopy.tasks.archive.frames import Frames
from pcopy.tasks.archive.gather import DescribeRoot, Gathering
from pcopy.tasks.archive.incomplete_files import IncompleteFiles
from pcopy.tasks.archive.made import PieceRecords
from pcopy.tasks.archive.phases import PLACE, SYNC, TELL
from pcopy.tasks.archive.sync_archive import SyncArchive
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Failure, Job, Root, Totals
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.listed.hand_out import HandOut
from pcopy.text import counted, shown
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector, RepeatableTool
from pcopy.tools.of_archive import OfArchive, OfArchiveDirector
from pcopy.tools.outputs import check_outputs, umask_of_user, write_result


class ArchiveDirector(OfArchiveDirector):
    """Director of ``ptar -c``: chooses the phases and their first tasks.

    The phases in their order:
    - COPY: walk the trees and describe their items.
    - LINK: bring the names of hard links together.
    - TELL: each rank reports the sizes of its pieces of the archive to rank 0.
    - PLACE: rank 0 assigns the offsets, and all ranks write their members.
    - SYNC: each rank syncs what it wrote.
    - SIGN and the phases after it: compute the signature.
    """

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        ranks = range(self._rank.size)
        if phase == Phase.COPY:
            if self._job.listed:
                return [Spawn(0, encode(HandOut(0)), SCAN_COST, True, 0)]
            tops = [number for number, root in enumerate(self._job.roots) if not root.item]
            return [
                *(Spawn(0, encode(DescribeRoot(number)), SCAN_COST) for number in tops),
                *super().first_tasks(phase),
            ]
        if phase == TELL:
            return [Spawn(phase, encode(TellPieces()), 0, owner=rank) for rank in ranks]
        if phase == PLACE:
            return [Spawn(phase, encode(PlacePieces()), 0, owner=0)]
        if phase == SYNC:
            return [Spawn(phase, encode(SyncArchive()), 0, owner=rank) for rank in ranks]
        return super().first_tasks(phase) if phase >= Phase.SIGN else []

    def due(self, sums: Totals) -> dict[int, object]:
        """Return the phases in their order, each with a value that is true if the phase is needed."""
        return {
            int(Phase.LINK): sums.for_link,
            TELL: True,
            PLACE: True,
            SYNC: self._job.options.sync,
            int(Phase.SIGN): self._rank.signs and not sums.failed,
        }

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        if phase >= Phase.SIGN:
            return JobDirector.next_phase(self, phase, totals)
        return super().next_phase(phase, totals)


class Archiving(RepeatableTool):
    """The program ``ptar -c``."""

    name = "ptar"
    writes = True
    done = "archived"
    director = ArchiveDirector
    visitor = staticmethod(Gathering)

    def first_counts(self, job: Job) -> list[int]:
        return super().first_counts(job) if job.listed else Tool.first_counts(self, job)

    def phase_name(self, phase: int) -> str:
        return "sign" if phase >= Phase.SIGN else "sync" if phase == SYNC else "copy"

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Record the pieces that are complete, so that ``--resume`` can reuse them, or remove the temporary archive if
        nothing of it can be reused.

        Failures are ignored: the job has ended for another reason, which is reported.
        """
        archive, made = rank.own(ArchiveFile), rank.own(PieceRecords)
        is_full = rank.stop_reason is not None and rank.stop_reason.code == NO_ROOM
        if made.is_kept and (rank.options.resumes or is_full):
            with suppress(Problem):  # Pieces that cannot be recorded are written again by the resumed run.
                made.record()
        with suppress(OSError):  # Files that remain are harmless.
            made.remove_useless()
        if rank.number == 0 and archive.is_made:
            with suppress(Problem):
                if not (rank.options.resumes or made.is_anything()):
                    archive.discard()


ARCHIVING = Archiving()
"""The only instance of ``Archiving``."""


class ArchivePreparation(OfArchive):
    """The job of ``ptar -c`` on rank 0: checks the arguments before the start, and completes and reports the archive at
    the end.
    """

    done = "archived"

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if the archive cannot be created; nothing is
        modified.
        """
        super().__init__(arguments)
        self._size = 0
        self._found: str | None = None
        """The signature in hexadecimal digits, once it was computed."""
        self._there: tuple[int, int] | None = None
        """Number of pieces that an interrupted run had written, and number of all pieces; None if the job does not
        resume.
        """
        archive = _archive_to_make(arguments.archive)
        self._listed: BinaryIO | None = None
        if arguments.listing:
            root, self._listed = _read_list(arguments, archive)
            roots: tuple[Root, ...] = (root,)
        else:
            roots = tuple(_root(path, arguments.directory, archive) for path in arguments.paths)
        signs = bool(arguments.options.signature)
        if signs and len(roots) > 1:
            raise Refused("--signature describes one PATH: archive the directory that holds them all")
        itemize = self.telling.itemizes or self.lists
        options = arguments.options._replace(umask=umask_of_user(), itemize=itemize, archive_file=archive)
        check_outputs(() if self._listed else roots, options, arguments.telling, copies=False)
        check_compression(options.compress_as, options.block_size if signs else 0)
        name = job_name(archive)
        _refuse_what_is_made(os.path.dirname(archive), name_of(name), arguments.archive)
        self._left = left_by(os.path.dirname(archive), name)
        """Temporary files that an interrupted run of the same archive did not remove."""
        if not (options.dry_run or is_ordinary(os.path.dirname(archive))):
            from pcopy.tools.sequential import refuse_restricted  # Imported here since few destinations need it.

            advice = "make it elsewhere and copy it there with pcopy"
            refuse_restricted(os.path.dirname(archive), arguments.archive, advice, writes=True)
        own_files = tuple(_own(roots, (archive, archive + SUFFIX, *self._left)))
        listed = path_of(self._listed) if self._listed else b""
        if options.dry_run:
            options = options._replace(signature=b"", hash="", sync=False, resumes=False)
        self.job = Job(name, 1, roots, options, copies=False, own=own_files, listed=listed)

    def announce(self) -> None:
        """Print notices about an interrupted run, the compression, and names that differ in the archive."""
        if self.telling.quiet:
            return
        if self._left and not self.job.options.resumes:
            tell(
                "ptar",
                "an interrupted run has left a part of this archive, which is not used: --resume would continue it",
            )
        chosen, named = self.job.options.compress_as, _compression_of(self.arguments.archive)
        if named and named != chosen:
            actual_text = f"compressed with {chosen}" if chosen else "not compressed"
            tell(
                "ptar",
                f"{shown(self.arguments.archive)}: is {actual_text}, although its name says otherwise: "
                "ptar does not choose the compression by the name",
            )
        for root in () if self.arguments.listing else self.job.roots:
            given = root.source_shown.rstrip(b"/") or b"/"
            name = name_in_archive(given, b"")
            if name != given:
                tell("ptar", f"{shown(root.source_shown)}: is called {shown(name)} in the archive, as tar does")

    def settle(self, rank: Rank, totals: Totals) -> int:
        """Complete the archive, rename it to its final name, and write its index and the signature file. Return the
        exit status.
        """
        archive, layout, options = rank.own(ArchiveFile), rank.own(Placement), self.job.options
        self._there, self._size = layout.there, layout.size
        if options.dry_run:
            return OK
        name = os.path.basename(options.archive_file)
        try:
            self._write_end(rank, layout)
            rank.own(PieceRecords).remove_all()  # This removes the records of all ranks.
            status, unset = archive.commit(name, 0o666 & ~options.umask)
        except Problem as problem:
            self.remarks.append(f"{shown(self.arguments.archive)}: {problem.operation}: {problem.strerror}")
            self.remarks.append(f"the archive was not created; {self._way}")
            return STOPPED
        is_right = self._report_end(rank, unset)
        self._write_index(rank, layout, status)
        if not rank.signs or totals.failed:
            if rank.signs:
                self.remarks.append("no signature is written, since items failed")
            return OK if is_right else INCOMPLETE
        from pcopy.tasks.sign.signing import SignState

        sign = rank.own(SignState)
        self._found = sign.signatures[0][0].hex()
        trouble = write_result(self.job, sign)
        if trouble:
            self.remarks.append(trouble)
        return INCOMPLETE if trouble or not is_right else OK

    def _report_end(self, rank: Rank, unset: Problem | None) -> bool:
        """Sync the directory of the archive, and report a failure of that, or of setting the mode (``unset``), as
        failed items.

        Return True if neither failed.
        """
        found = [] if unset is None else [("its mode could not be set", unset)]
        if self.job.options.sync:
            try:
                sync_directory(rank.descriptors[0].target)
            except Problem as problem:
                found.append(("its name may not be on stable storage", problem))
        for consequence, missing in found:
            text = f"the archive is complete, but {consequence}"
            rank.tell([Failure(self.arguments.archive, missing.operation, missing.errno or 0, text)], ())
        return not found

    def needed(self, totals: Totals) -> int:
        """Return the size of the archive in bytes; 0 if it is compressed, since its size is then unknown."""
        return 0 if self.job.options.compress_as else self._size

    def _write_end(self, rank: Rank, layout: Placement) -> None:
        """Write what follows the members: the end of a compressed archive, and the trailer that lists incomplete files.
        Raise ``Problem`` if writing fails.
        """
        archive, frames, incomplete = rank.own(ArchiveFile), rank.own(Frames), rank.own(IncompleteFiles).found
        trailing = trailer(incomplete, layout.size) if incomplete else b""
        if self.job.options.compress_as:
            frames.end(layout.end, trailing)
        elif trailing:
            archive.write(trailing, layout.size)
        if self.job.options.sync and (trailing or self.job.options.compress_as):
            archive.sync()
        if self.job.options.compress_as == "zstd" and len(frames.placed) > MOST_FRAMES:
            text = f"the archive has more than {MOST_FRAMES:,} frames, and therefore no seek table"
            self.remarks.append(f"{text}: it can be read as one stream only")

    def _write_index(self, rank: Rank, layout: Placement, status: os.stat_result) -> None:
        """Write the index beside the archive if readers need it, and otherwise remove an index of an older archive.

        An index is needed if members can be found at more than one offset, or if the archive is compressed with gzip. A
        failure is reported as a remark only: the archive can be read without the index.
        """
        path = self.job.options.archive_file + SUFFIX
        try:
            if len(layout.points) > 1 or self.job.options.compress_as == "gzip":
                frames = joined(rank.own(Frames).placed if self.job.options.compress_as == "gzip" else ())
                index = Index(status.st_size, status.st_mtime_ns, layout.points, layout.end, frames)
                with replacing(path, self.job.options.umask, self.job.writer) as stream:
                    stream.write(packed(index))
            else:
                directory, name = rank.descriptors[0].target, os.path.basename(path)
                if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except Refused as refused:
            self.remarks.append(f"the index could not be written, and is not needed: {refused}")
        except OSError as error:
            self.remarks.append(f"{shown(path)}: the index could not be written, and is not needed: {error.strerror}")

    def tell_how_to_go_on(self) -> None:
        tell("ptar", f"the archive was not created; {self._way}")

    @property
    def _way(self) -> str:
        """Advice for the user: the command that completes the archive."""
        unfinished = left_by(os.path.dirname(self.job.options.archive_file), self.job.name)
        if not unfinished:
            return "repeat the command to create it"
        advice = (
            "repeat the command to continue"
            if self.job.options.resumes
            else "repeat the command with --resume to continue"
        )
        return f"{advice} with {shown(unfinished[0])}"

    def tell_end(self, ended: Ended, ranks: int) -> int:
        if ended.halted is not None:
            self.remarks.insert(0, "the archive was not created; an older one with its name is unchanged")
            self.stopped = self._way
        return super().tell_end(ended, ranks)

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        resumed = self._there[0] if self._there is not None else None
        return {**super().summary(ended, seconds, ranks), "signature": self._found, "pieces_resumed": resumed}

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        yield from super().lines(ended, seconds, ranks)
        if self._there is not None:
            number, pieces = self._there
            share = f"{number:,} of {counted(pieces, 'piece', 'pieces')} of the archive"
            yield f"resumed: {share} were written before, completely or in part"


def _compression_of(path: bytes) -> str:
    """Return the compression that ``tar -a`` would choose by the extension of ``path``, or "" if none."""
    endings = {b"gz": "gzip", b"tgz": "gzip", b"zst": "zstd", b"tzst": "zstd", b"bz2": "bzip2", b"xz": "xz"}
    return endings.get(path.rpartition(b".")[2], "")


def _archive_to_make(path: bytes) -> bytes:
    """Return the absolute path of the archive to be created. Raise ``Refused`` if it can neither be created nor replace
    an existing archive.
    """
    directory, name = os.path.split(path)
    if name in (b"", b".", b".."):
        raise Refused(f"{shown(path)}: names a directory; name the archive's file")
    try:
        real = look_at_directory_of(path).path
    except NotTrusted as error:
        raise Refused(f"{shown(path)}: cannot be made: {error.strerror}") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise Refused(f"{shown(path)}: the directory {shown(directory)} does not exist; make it first") from None
        raise Refused(f"{shown(path)}: its directory cannot be opened: {error.strerror}") from None
    if why := unwritable(real):
        raise Refused(f"{shown(path)}: cannot be made, since {why}; name another file")
    _refuse_what_is_there(path)
    return os.path.join(real, name)


def _refuse_what_is_there(path: bytes) -> None:
    """Raise ``Refused`` if ``path`` exists and is not a regular file that the archive can replace."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:  # For instance, the name is too long: the rename at the end would fail.
        raise Refused(f"{shown(path)}: cannot be made: {error.strerror}; name another file") from None
    if stat.S_ISDIR(mode):
        raise Refused(f"{shown(path)}: is a directory; name the archive's file")
    if stat.S_ISLNK(mode):
        raise Refused(f"{shown(path)}: {obstacle(path, mode, 'an archive')}")
    if not stat.S_ISREG(mode):
        raise Refused(
            f"{shown(path)}: is no regular file, and ptar writes an archive at many offsets in parallel; use tar"
        )


def _refuse_what_is_made(directory: bytes, temporary: bytes, archive: bytes) -> None:
    """Raise ``Refused`` if another process is creating this archive, or if a file that is not pcopy's has the temporary
    name.
    """
    try:
        is_made = is_in_use(directory, temporary)
    except Problem as problem:
        raise Refused(f"{shown(archive)}: cannot be made: {problem.strerror}") from None
    if is_made:
        raise Refused(f"{shown(archive)}: another ptar is creating it; wait for its end, or stop it first")


def _root(path: bytes, directory: bytes, archive: bytes) -> Root:
    """Return the root for one PATH of the command line, whose target is the archive. Raise ``Refused`` if PATH cannot
    be read.
    """
    root = root_read(os.path.join(directory, path), follow=False)
    directory_of_archive, name = os.path.split(archive)
    try:
        status = look_at_directory_of(archive).status
    except OSError as error:
        raise Refused(f"{shown(archive)}: its directory cannot be opened: {error.strerror}") from None
    assert status is not None  # The directory exists.
    return root._replace(
        source_shown=path,
        target=directory_of_archive,
        name=name,
        target_shown=archive,
        target_id=(status.st_dev, status.st_ino),
    )


def _read_list(arguments: ArchiveArguments, archive: bytes) -> tuple[Root, BinaryIO | None]:
    """Read the file of ``-T`` and return the root below which all listed paths are, and the sorted list.

    The list is None if the only listed path is the directory itself: then the whole directory is archived. Raise
    ``Refused`` if the list cannot be used.
    """
    directory = arguments.directory or b"."
    root = _root(directory, b"", archive)
    if root.item:
        raise Refused(f"{shown(directory)}: is no directory; name the one that contains the listed paths")
    with refusing(b"", SET_ANOTHER):
        listed = sorted_list(
            arguments.listing,
            root,
            spool_in(b""),
            nul=arguments.nul,
            top="DIR",
            nothing="nothing to archive",
            whole=True,
        )
    listed.seek(0)
    if listed.read(1) == b"\0":  # the path of the directory itself, and the only one
        listed.close()
        return root._replace(source_shown=b"."), None
    return root._replace(source_shown=b""), listed


def _own(roots: Sequence[Root], paths: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the root, path below it) for those of the files ``paths`` that are in a source, so that the
    archive does not contain itself.
    """
    for number, root in enumerate(roots):
        for path in paths:
            if not root.item and lies_in(path, root.source):
                yield number, os.path.relpath(path, root.source)
            elif root.item and path == os.path.join(root.source, root.item):
                yield number, root.item
