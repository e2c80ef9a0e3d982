"""``ptar -x``: unpack an archive. All ranks load this module; rank 0 checks the archive and the target, and reports the
result.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from pcopy.engine.task import Spawn, Task
from pcopy.errors import INCOMPLETE, OK, Refused
from pcopy.fsio.named_file import NotTrusted, WrongKind, open_to_read
from pcopy.fsio.problem import Problem
from pcopy.fsio.ways import keeps_times
from pcopy.jobs.meant import meant
from pcopy.jobs.path_read import unlookable
from pcopy.launch.tool import Ended
from pcopy.report.streams import tell
from pcopy.tasks.archive.contents import ArchiveContents, OneStream
from pcopy.tasks.archive.finish_members import SealMembers
from pcopy.tasks.archive.one_stream import put_aside
from pcopy.tasks.archive.opened import open_archive, version_of
from pcopy.tasks.archive.phases import COMPARE, FINISH, FOLLOW, LINKS, SEAL, SYNC, UNPACK, UNPACK_AGAIN
from pcopy.tasks.archive.read_headers import ReadHeaders
from pcopy.tasks.archive.rivals import CompareRivals, FollowLinks
from pcopy.tasks.archive.unpack import Unpack
from pcopy.tasks.archive.unpack_parts import UnpackedFiles
from pcopy.tasks.archive.wanted_names import WantedOfRank
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Job, Root, Totals
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.directories.sync_files import SyncFiles
from pcopy.text import for_shell, shown
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import RepeatableTool
from pcopy.tools.of_archive import OfArchive, OfArchiveDirector
from pcopy.tools.outputs import check_told, umask_of_user
from pcopy.walk.saved_listing import SavedListing


class UnpackDirector(OfArchiveDirector):
    """Director of ``ptar -x``: chooses the phases and their first tasks.

    The phases in their order: read the headers of members; compare their names (COMPARE); follow symbolic links
    (FOLLOW); unpack (UNPACK, UNPACK_AGAIN); create hard links (LINKS); apply the metadata of directories (FINISH,
    SEAL); sync (SYNC).
    """

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        ranks = range(self._rank.size)
        if phase == 0:
            return [Spawn(phase, encode(ReadHeaders()), SCAN_COST, True, 0)]
        if phase in (COMPARE, UNPACK):
            task = CompareRivals() if phase == COMPARE else Unpack()
            return [Spawn(phase, encode(task), 0, owner=rank) for rank in ranks]
        if phase in (FOLLOW, SEAL):
            return [Spawn(phase, encode(FollowLinks() if phase == FOLLOW else SealMembers(b"")), 0, owner=0)]
        if phase == SYNC:
            return [Spawn(phase, encode(SyncFiles(None)), 0, owner=rank) for rank in self._rank.leaders]
        return []

    def due(self, sums: Totals) -> dict[int, object]:
        """Return the phases in their order, each with a value that is true if the phase is needed."""
        return {
            COMPARE: True,
            FOLLOW: True,
            UNPACK: True,
            UNPACK_AGAIN: sums.for_link,
            LINKS: sums.for_again,
            FINISH: sums.for_finish,
            SEAL: sums.for_seal,
            SYNC: self._job.options.sync,
        }


class Unpacking(RepeatableTool):
    """The program ``ptar -x``."""

    name = "ptar"
    writes = True
    done = "unpacked"
    director = UnpackDirector

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        rank.own(UnpackedFiles).discard()

    def phase_name(self, phase: int) -> str:
        return "sync" if phase == SYNC else "copy"


UNPACKING = Unpacking()
"""The only instance of ``Unpacking``."""


class UnpackPreparation(OfArchive):
    """The job of ``ptar -x`` on rank 0."""

    done, stopped = "unpacked", "repeat the command to unpack everything again"

    def __init__(self, arguments: ArchiveArguments) -> None:
        """Check the archive and the target, and prepare the job. Raise ``Refused`` if it must not start; nothing is
        modified.
        """
        arguments = with_listed(arguments)
        super().__init__(arguments)
        if arguments.paths:
            self.leaves_out = "MEMBER, -T or filters"
        self._garbage = ""
        """Text about data after the end of the archive, or ""."""
        archive, self._stream = archive_to_read(arguments, "-x")
        root = _target(arguments.directory)
        check_told(self.telling, (root,), "is unpacked into")
        options = arguments.options._replace(
            umask=umask_of_user(),
            itemize=self.telling.itemizes or self.lists,
            sync=arguments.options.sync and not self.dry_run,
            archive_file=archive,
            archive_version=version_of(os.stat(archive)),
            members=arguments.paths,
        )
        if not (options.dry_run or keeps_times(root.target)):
            from pcopy.tools.sequential import fitting  # Imported here since few destinations need it.

            options, notices = fitting(options, root.target)
            self.remarks += notices
        self.job = Job(os.urandom(5).hex(), 1, (root,), options)

    def begin(self, ranks: int) -> None:
        """If the archive can only be read as one stream, decompress it into a temporary file, which all ranks of this
        host read.

        Raise ``Refused`` if that fails, or if there are ranks on other hosts, which cannot open the temporary file.
        """
        stream, where = self._stream, self.job.roots[0].target
        if stream is None:
            return
        if self.places > 1:
            raise stream
        if not self.telling.quiet:
            given = shown(self.arguments.archive)
            tell("ptar", f"{given}: is one stream ({stream.why}): one process decompresses it first")
        archive = open_archive(self.job.options.archive_file)
        try:
            contents, self._garbage = put_aside(archive, stream.program, where)
        except Problem as problem:
            advice = str(stream).rpartition("; ")[2]
            if problem.errno == errno.EBADMSG:
                advice = f"to unpack what can be read, {advice}"
            elif problem.errno == errno.ENOTSUP:
                advice = advice.replace(" -dc ", " -dc --long=31 ", 1)
            given, reason = shown(self.arguments.archive), f"{problem.operation}: {problem.strerror}"
            raise Refused(f"{given}: cannot be decompressed into {shown(where)}: {reason}; {advice}") from None
        finally:
            os.close(archive)
        options = self.job.options._replace(
            archive_contents=b"/proc/%d/fd/%d" % (os.getpid(), contents), archive_version=version_of(os.fstat(contents))
        )
        self.job = self.job._replace(options=options)

    def settle(self, rank: Rank, totals: Totals) -> int:
        if self._garbage:
            self.remarks.append(f"{shown(self.arguments.archive)}: {self._garbage}")
            self.incomplete = "there are other data after the end of the archive"
        lacking = rank.own(WantedOfRank).lacking
        if not lacking:
            return INCOMPLETE if self._garbage else OK
        self.remarks.append(f"{shown(self.arguments.archive)}: {lacking}")
        self.incomplete = "some requested members are not in the archive"
        return INCOMPLETE

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        return {**super().summary(ended, seconds, ranks), "sequential": self.job.options.sequential}

    def tell_how_to_go_on(self) -> None:
        tell("ptar", "repeat the command to unpack everything again")


MOST_LISTED = 1_000_000
"""Maximum number of names that ``-T`` may list: each rank keeps all of them in memory."""
MOST_LISTED_BYTES = 256 << 20
"""Maximum total length of these names in bytes."""


def with_listed(arguments: ArchiveArguments) -> ArchiveArguments:
    """Return ``arguments`` with the names that ``-T`` lists as the requested members. Raise ``Refused`` if the list
    cannot be used.
    """
    if not arguments.listing:
        return arguments
    names: list[bytes] = []
    size = 0
    with SavedListing(arguments.listing, "--files-from", nul=arguments.nul, meant=meant) as listing:
        for number, name, _ in listing:
            size += len(name)
            if len(names) >= MOST_LISTED or size > MOST_LISTED_BYTES:
                is_long = size > MOST_LISTED_BYTES
                limit = f"{MOST_LISTED_BYTES:,} bytes of names" if is_long else f"{MOST_LISTED:,} names"
                raise listing.refused(number, f"more than {limit}: unpack all, or write --include")
            names.append(name)
        if not names:
            raise Refused(f"{listing.name}: lists nothing, so there is nothing to take")
    return arguments._replace(paths=tuple(names))


def archive_to_read(arguments: ArchiveArguments, letters: str) -> tuple[bytes, OneStream | None]:
    """Return the absolute path of the archive, and the reason why it can only be read as one stream, or None.

    ``letters`` are the options of tar for the same operation, for messages. Raise ``Refused`` if the archive cannot be
    read.
    """
    path, words = arguments.archive, [b"-C", arguments.directory] if arguments.directory else []
    words += [b"-T", arguments.listing] if arguments.listing else arguments.paths
    tar = " ".join([f"tar {letters}", *map(for_shell, words)])
    try:
        descriptor, real, *_ = open_to_read(path, regular=True)
    except OSError as error:
        raise Refused(_why_not_opened(path, error)) from None
    try:
        ArchiveContents(descriptor, real, tar)
    except OneStream as stream:
        return real, stream
    except Problem as problem:
        raise Refused(f"{shown(path)}: cannot be read: {problem.strerror}") from None
    finally:
        os.close(descriptor)
    return real, None


def _why_not_opened(path: bytes, error: OSError) -> str:
    """Return the message for an archive that cannot be opened."""
    if error.errno == errno.EISDIR:
        return f"{shown(path)}: is a directory; name the archive's file"
    if isinstance(error, WrongKind):
        return f"{shown(path)}: is no regular file, and ptar reads an archive at many offsets in parallel; use tar"
    if isinstance(error, NotTrusted):
        return f"{shown(path)}: cannot be opened: {error.strerror}"
    return str(unlookable(path, error))


def _target(path: bytes) -> Root:
    """Return the root into which members are unpacked. Raise ``Refused`` if it is not a directory."""
    try:
        real = os.path.realpath(path or b".", strict=True)
        status = os.stat(real)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise unlookable(path or b".", error) from None
        advice = meant(path) if path else ""
        raise Refused(
            f"{shown(path or b'.')}: {error.strerror}; {advice or 'make it first'} (-C needs an existing directory)"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{shown(path)}: is no directory; name the one into which members are unpacked")
    identity = status.st_dev, status.st_ino
    return Root(real, real, b"", b"", path, path, identity, identity)
