"""``ptar -t``: one process lists the members of an archive in the format of ``tar -t`` and ``tar -tv``.

With ``--signature``, all ranks read the contents (``pcopy.tools.sign_archive``). But if the archive can only be read as
one stream, one process does that here.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from pcopy.archive.incomplete import MORE_INCOMPLETE_TEXT, NONE_INCOMPLETE, NamesOfIncompleteFiles
from pcopy.archive.member import FILE, HARD_LINK_MEMBER, SYMLINK, ArchiveMember, extraction_refusal_reason
from pcopy.archive.reader import ArchiveDamage, FoundMember, ReadFunction, read_archive_members
from pcopy.archive.records import NUMBER_LIMIT
from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK, RESOURCE_EXCEPTIONS, RequestRefused, resource_error_text
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import Throttle
from pcopy.jobs.spool import spool_factory
from pcopy.report.streams import print_error
from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.archive.member_digests import ItemAfterExtraction, MemberDigester
from pcopy.tasks.archive.one_stream import StreamReader
from pcopy.tasks.archive.open_archive import ReadAheadBuffer, open_archive, owner_id, read_incomplete_names
from pcopy.tasks.archive.wanted_names import WantedNames
from pcopy.tasks.base.job import Options
from pcopy.text import printable_path, tar_quoted_name
from pcopy.tools.archive_tree import UnpackedTree
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.extract import arguments_with_listed_members, checked_archive_path
from pcopy.tools.filter_messages import print_excluded_item_count
from pcopy.tools.outputs import check_output_and_signature_files, umask_of_user
from pcopy.walk.selection import ItemSelector

if TYPE_CHECKING:
    from pcopy.tools.archive_signature import ArchiveSignatureBuilder


def list_archive(arguments: ArchiveArguments) -> int:
    """Print the members of the archive. Return the exit status: 1 if something could not be read or could not be
    unpacked, else 0. Raise ``RequestRefused`` if the archive cannot be read at all.
    """
    if arguments.output.metrics or arguments.output.reports:
        option = "--metrics" if arguments.output.metrics else "--report"
        raise RequestRefused(
            f"{option} describes the work of several ranks, but a single process lists this archive: leave out {option}"
        )
    arguments = arguments_with_listed_members(arguments)
    path, stream = checked_archive_path(arguments, equivalent_tar_options(arguments))
    options = archive_listing_options(arguments)
    listing = ArchiveMemberLister(arguments, path, options)
    descriptor = open_archive(path)
    try:
        source = StreamReader(descriptor, stream.program) if stream else ArchiveContents(descriptor, path)
        lacking = listing.print_archive_members(source.read)
        check = None
        if isinstance(source, StreamReader):
            source.check_stream_to_end()
            if source.garbage:
                listing.report_failure(source.garbage)
        else:
            check = source.check_range_is_readable
        listing.finish_archive_listing(lacking, listing.read_incomplete_files(source.read, source.size), check)
    except Problem as problem:
        listing.report_failure(f"{problem.operation}: {problem.strerror}; what follows is not read")
    except RESOURCE_EXCEPTIONS as error:
        listing.report_failure(resource_error_text(error))
    finally:
        os.close(descriptor)
        listing.close()
    sys.stdout.flush()
    print_excluded_item_count("ptar", listing.excluded_member_count, arguments.output)
    return EXIT_INCOMPLETE if listing.failures else EXIT_OK


def equivalent_tar_options(arguments: ArchiveArguments) -> str:
    """Return the options of tar(1) that print the same listing as this command: ``-t`` or ``-tv``."""
    return "-tv" if arguments.output.verbose else "-t"


def archive_listing_options(arguments: ArchiveArguments) -> Options:
    """Return the options of a job, with which the members are listed. Raise ``RequestRefused`` if the signature file
    cannot be created.
    """
    options = arguments.options._replace(umask=umask_of_user())
    check_output_and_signature_files((), options, arguments.output, copies=False)
    return options


class ArchiveMemberLister:
    """Prints the members of an archive in their order, and writes its signature if ``--signature`` was given.

    ``failures`` is the number of failures that were reported.
    """

    def __init__(self, arguments: ArchiveArguments, path: bytes, options: Options) -> None:
        self.failures = 0
        self._arguments, self._path, self._options = arguments, path, options
        self._selection = ItemSelector(options.select)
        self._requested_names = WantedNames(arguments.paths)
        self._tree = UnpackedTree(spool_factory(b""))
        self._signature: ArchiveSignatureBuilder | None = None
        if options.signature:
            from pcopy.tools.archive_signature import ArchiveSignatureBuilder

            self._signature = ArchiveSignatureBuilder(
                digest_algorithm_named(options.hash), options.block_size, spool_factory(b"")
            )

    @property
    def excluded_member_count(self) -> int:
        """Number of members that filters exclude."""
        return self._requested_names.excluded_count

    def report_failure(self, text: str, path: bytes | None = None) -> None:
        """Print that something could not be read, and count this failure.

        ``text`` is the reason. ``path`` is the file or member concerned; None: the archive itself.
        """
        self.failures += 1
        print_error("ptar", f"{printable_path(path or self._path)}: {text}")

    def print_archive_members(self, read: ReadFunction) -> str:
        """Read and print all members. Return a message about the names on the command line that no member has; "" if
        all were found.

        Raise ``Problem`` if the archive cannot be read, and ``OSError`` if temporary files cannot be written.

        Args:
            read: reads a number of bytes at an offset of the (decompressed) archive.
        """
        digests: MemberDigester | None = None
        if self._signature is not None:
            read = ReadAheadBuffer(_reader_with_rate_limit(read, self._options.bwlimit)).read
            digests = MemberDigester(read, digest_algorithm_named(self._options.hash), self._options.block_size)
        for each in read_archive_members(
            read, owner_id, most_extents=self._arguments.archive_options.sparse_limit or NUMBER_LIMIT
        ):
            if isinstance(each, ArchiveDamage):
                self.report_damage(each)
            elif self._requested_names.is_wanted_and_selected(each.member, self._selection):
                item, problem = None, ""
                try:
                    item = digests.item_with_digest(each) if digests and each.member.kind != HARD_LINK_MEMBER else None
                except Problem as met:
                    problem = f"{met.operation}: {met.strerror}"
                self.print_and_sign_member(each, item, problem)
        return self._requested_names.missing_names_text

    def report_damage(self, damage: ArchiveDamage) -> None:
        """Report a damaged part of the archive as a failure, with its offset in bytes."""
        self.report_failure(f"at byte {damage.offset:,}: {damage.text}")

    def print_and_sign_member(self, found: FoundMember, item: ItemAfterExtraction | None, problem: str) -> None:
        """Print a member, and add it to the signature.

        Args:
            found: the member.
            item: for the signature: type, size and digest of the item that the member becomes. None for a hard link, or
                if no signature is computed.
            problem: the reason why the contents of the member cannot be read; "" if they could be read.
        """
        member, output = found.member, self._arguments.output
        if found.warning:
            print_error("ptar", f"{printable_path(member.name)}: {found.warning}")
        if output.json:
            print(json.dumps(_member_json(member)))
        elif not output.quiet:
            print(
                _long_listing_line(member, numeric=self._arguments.archive_options.numeric_owner)
                if output.verbose
                else _quoted(member.name)
            )
        if refused := extraction_refusal_reason(member):
            self.report_failure(f"{printable_path(member.name)}: {refused}")
            return
        self._tree.add_member(found, problem or found.problem_text)
        if self._signature is not None:
            self._signature.add_member(found, item)

    def read_incomplete_files(self, read: ReadFunction, size: int) -> NamesOfIncompleteFiles:
        """Return the names of files whose contents in the archive are incomplete, because they could not be read when
        the archive was created. ``ptar -c`` lists them in a trailer after the members. A damaged trailer is reported as
        a failure.

        Args:
            read: reads a number of bytes at an offset of the archive.
            size: size of the archive in bytes.
        """
        try:
            return read_incomplete_names(read, size)
        except Problem as problem:
            self.report_failure(problem.strerror or "")
            return NONE_INCOMPLETE

    def finish_archive_listing(
        self, lacking: str, incomplete: NamesOfIncompleteFiles, check: Callable[[int, int], None] | None = None
    ) -> None:
        """Report the members that cannot be unpacked, and write the signature. Call it after all members were read.
        Raise ``OSError`` if temporary files cannot be read or written.

        Args:
            lacking: message about names on the command line that no member has, or "".
            incomplete: names of files whose contents in the archive are incomplete.
            check: is called with an offset and a length in bytes; it raises ``Problem`` if these bytes of the archive
                cannot be read. None if all bytes were read already.
        """
        for each in self._tree.remaining_members():
            member = each.item.member
            problem = each.problem or incomplete.error_text_if_incomplete(member.name)
            if not problem and check is not None and member.kind == FILE:
                try:
                    check(each.item.data, member.size)
                except Problem as met:
                    problem = f"{met.operation}: {met.strerror}"
            if problem:
                self.report_failure(f"{printable_path(each.path)}: {problem}")
            elif self._signature is not None and (member.kind == HARD_LINK_MEMBER or each.link_target):
                self._signature.add_hard_link(each)
        if incomplete.has_more:
            self.report_failure(MORE_INCOMPLETE_TEXT)
        if lacking:
            self.report_failure(lacking)
        if self._signature is not None:
            self._write_signature(self._signature)

    def _write_signature(self, found: ArchiveSignatureBuilder) -> None:
        """Write the signature ``found`` of the listed members to the file of ``--signature``.

        If there were failures, or if the members form no tree, write none, and report that as a failure. Raise
        ``OSError`` if temporary files cannot be read.
        """
        try:
            if self.failures:
                raise ValueError("not all of the archive could be read")
            signature = found.signature_of_archive(printable_path(self._arguments.archive))
        except ValueError as error:
            self.report_failure(f"no signature is written: {error}")
            return
        from pcopy.signature.signature_file import write_signature

        try:
            write_signature(self._options.signature, signature, self._options.umask)
        except RequestRefused as refused:
            self.report_failure(f"the signature could not be written: {refused}", self._options.signature)
        except OSError as error:
            self.report_failure(f"the signature could not be written: {error.strerror}", self._options.signature)

    def close(self) -> None:
        """Release the temporary files."""
        self._tree.close()
        if self._signature is not None:
            self._signature.close()


def _reader_with_rate_limit(read: ReadFunction, rate: int) -> ReadFunction:
    """Return a function that reads like ``read``, limited to ``rate`` bytes per second (0: unlimited)."""
    throttle = Throttle()
    throttle.set_rate_limits(rate or inf, inf)

    def limited(offset: int, size: int) -> bytes:
        for _ in throttle.charge_limits_and_wait(size):
            pass
        return read(offset, size)

    return limited


def _member_json(member: ArchiveMember) -> dict[str, object]:
    """Return the fields of a member that ``--json`` prints: name, type, mode, owner, size, time and link target."""
    import base64

    return {
        "path": printable_path(member.name),
        "path_b64": base64.b64encode(member.name).decode("ascii"),
        "type": stat.filemode(member.st_mode)[0] if member.kind != HARD_LINK_MEMBER else "h",
        "mode": f"{member.mode:04o}",
        "uid": member.uid,
        "gid": member.gid,
        "size": member.size,
        "mtime_ns": member.mtime,
        "link": printable_path(member.link),
    }


def _long_listing_line(member: ArchiveMember, *, numeric: bool) -> str:
    """Return the line of a member in the format of ``tar -tv``; ``numeric``: True to show owners as numbers, not as
    names.
    """
    mode = stat.filemode(member.st_mode)
    if member.kind == HARD_LINK_MEMBER:
        mode = "h" + mode[1:]
    user = str(member.uid) if numeric or not member.user else printable_path(member.user)
    group = str(member.gid) if numeric or not member.group else printable_path(member.group)
    size = str(member.size)
    if member.kind in (b"3", b"4"):
        size = f"{os.major(member.device)},{os.minor(member.device)}"
    owners = f"{user}/{group}"
    column = f"{owners} {size:>{max(1, 18 - len(owners))}}"
    link = f" -> {_quoted(member.link)}" if member.kind == SYMLINK else ""
    link = f" link to {_quoted(member.link)}" if member.kind == HARD_LINK_MEMBER else link
    return f"{mode} {column} {_date_text(member.mtime)} {_quoted(member.name)}{link}"


def _quoted(name: bytes) -> str:
    """Return ``name`` as tar prints it on standard output."""
    return tar_quoted_name(name, sys.stdout.encoding)


def _date_text(moment: int) -> str:
    """Return a time, given in nanoseconds since the epoch, as local date and minute; if the year is beyond what the C
    library can format, as seconds since the epoch.
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment // 10**9))
    except (OverflowError, ValueError, OSError):
        return f"{moment // 10**9}"
