"""``ptar -t``: list the members of an archive in the format of ``tar -t`` and ``tar -tv``. One process does it.

With ``--signature``, all ranks read the contents (``pcopy.tools.prove_archive``), unless the archive can only be read
as one stream.
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

from pcopy.archive.incomplete import HAS_MORE, NOTHING, Incomplete
from pcopy.archive.member import FILE, LINK, SYMLINK, Member, refusal
from pcopy.archive.reader import Damage, FoundMember, Read, members
from pcopy.archive.records import LARGEST
from pcopy.errors import HINDRANCES, INCOMPLETE, OK, Refused, hindrance
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import Throttle
from pcopy.jobs.spool import spool_in
from pcopy.report.streams import tell
from pcopy.signature.algorithms import algorithm
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.archive.member_digests import ItemInArchive, MemberDigests
from pcopy.tasks.archive.one_stream import StreamReader
from pcopy.tasks.archive.opened import Ahead, listed_as_incomplete, number_of, open_archive
from pcopy.tasks.archive.wanted_names import WantedNames
from pcopy.tasks.base.job import Options
from pcopy.text import shown
from pcopy.tools.archive_tree import ArchiveTree
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.outputs import check_outputs, umask_of_user
from pcopy.tools.selecting import tell_hidden
from pcopy.tools.unpack import archive_to_read, with_listed
from pcopy.walk.selection import Selection

if TYPE_CHECKING:
    from pcopy.tools.archive_signature import ArchiveSignature


def list_archive(arguments: ArchiveArguments) -> int:
    """Print the members of the archive and return the exit status. Raise ``Refused`` if it cannot be read."""
    if arguments.telling.metrics or arguments.telling.reports:
        option = "--metrics" if arguments.telling.metrics else "--report"
        raise Refused(
            f"{option} describes the work of several ranks, but a single process lists this archive: leave it out"
        )
    arguments = with_listed(arguments)
    path, stream = archive_to_read(arguments, letters_of(arguments))
    options = listing_options(arguments)
    listing = ArchiveListing(arguments, path, options)
    descriptor = open_archive(path)
    try:
        source = StreamReader(descriptor, stream.program) if stream else ArchiveContents(descriptor, path)
        lacking = listing.go_through(source.read)
        check = None
        if isinstance(source, StreamReader):
            source.check_rest()
            if source.garbage:
                listing.is_wrong(source.garbage)
        else:
            check = source.check
        listing.end(lacking, listing.listed_as_incomplete(source.read, source.size), check)
    except Problem as problem:
        listing.is_wrong(f"{problem.operation}: {problem.strerror}; what follows is not read")
    except HINDRANCES as error:
        listing.is_wrong(hindrance(error))
    finally:
        os.close(descriptor)
        listing.close()
    sys.stdout.flush()
    tell_hidden("ptar", listing.excluded, arguments.telling)
    return INCOMPLETE if listing.wrong else OK


def letters_of(arguments: ArchiveArguments) -> str:
    """Return the options of tar for the same listing."""
    return "-tv" if arguments.telling.verbose else "-t"


def listing_options(arguments: ArchiveArguments) -> Options:
    """Return the options of the listing. Raise ``Refused`` if the signature file cannot be created."""
    options = arguments.options._replace(umask=umask_of_user())
    check_outputs((), options, arguments.telling, copies=False)
    return options


class ArchiveListing:
    """Prints the members of an archive in their order, and computes its signature if asked for. ``wrong`` counts
    failures.
    """

    def __init__(self, arguments: ArchiveArguments, path: bytes, options: Options) -> None:
        self.wrong = 0
        self._arguments, self._path, self._options = arguments, path, options
        self._selection = Selection(options.select)
        self._wanted = WantedNames(arguments.paths)
        self._tree = ArchiveTree(spool_in(b""))
        self._signature: ArchiveSignature | None = None
        if options.signature:
            from pcopy.tools.archive_signature import ArchiveSignature

            self._signature = ArchiveSignature(algorithm(options.hash), options.block_size, spool_in(b""))

    @property
    def excluded(self) -> int:
        """Number of members that filters exclude."""
        return self._wanted.excluded

    def is_wrong(self, text: str, path: bytes | None = None) -> None:
        """Report a failure of the archive, or of the file ``path``."""
        self.wrong += 1
        tell("ptar", f"{shown(path or self._path)}: {text}")

    def go_through(self, read: Read) -> str:
        """Read all members. Return a text about requested names that no member has, or "".

        Raise ``Problem`` if the archive cannot be read, and ``OSError`` if temporary files cannot be written.
        """
        digests: MemberDigests | None = None
        if self._signature is not None:
            read = Ahead(_limited(read, self._options.bwlimit)).read
            digests = MemberDigests(read, algorithm(self._options.hash), self._options.block_size)
        for each in members(read, number_of, most_extents=self._options.sparse_limit or LARGEST):
            if isinstance(each, Damage):
                self.damaged(each)
            elif self._wanted.selects(each.member, self._selection):
                item, problem = None, ""
                try:
                    item = digests.item(each) if digests and each.member.kind != LINK else None
                except Problem as met:
                    problem = f"{met.operation}: {met.strerror}"
                self.take(each, item, problem)
        return self._wanted.lacking

    def damaged(self, damage: Damage) -> None:
        """Report a damaged part of the archive."""
        self.is_wrong(f"at byte {damage.offset:,}: {damage.text}")

    def take(self, found: FoundMember, item: ItemInArchive | None, problem: str) -> None:
        """Print a member, and add it to the signature.

        Args:
            found: the member.
            item: the item that it becomes, for the signature; None for a hard link or without a signature.
            problem: the reason why its contents cannot be read, or "".
        """
        member, output = found.member, self._arguments.telling
        if found.remark:
            tell("ptar", f"{shown(member.name)}: {found.remark}")
        if output.json:
            print(json.dumps(_values(member)))
        elif not output.quiet:
            print(_long(member, numeric=self._options.numeric_owner) if output.verbose else shown(member.name))
        if refused := refusal(member):
            self.is_wrong(f"{shown(member.name)}: {refused}")
            return
        self._tree.add(found, problem or found.trouble)
        if self._signature is not None:
            self._signature.take(found, item)

    def listed_as_incomplete(self, read: Read, size: int) -> Incomplete:
        """Return the incomplete files that the trailer of an archive of ``size`` bytes lists. Report a damaged trailer
        as a failure.
        """
        try:
            return listed_as_incomplete(read, size)
        except Problem as problem:
            self.is_wrong(problem.strerror or "")
            return NOTHING

    def end(self, lacking: str, incomplete: Incomplete, check: Callable[[int, int], None] | None = None) -> None:
        """Report the members that cannot be unpacked, and write the signature, after all members were read. Raise
        ``OSError``.

        Args:
            lacking: text about requested names that no member has, or "".
            incomplete: the incomplete files that the trailer lists.
            check: called with an offset and a length; raises ``Problem`` if these bytes of the archive cannot be read.
        """
        for each in self._tree.last_members():
            member = each.item.member
            problem = each.problem or incomplete.trouble(member.name)
            if not problem and check is not None and member.kind == FILE:
                try:
                    check(each.item.data, member.size)
                except Problem as met:
                    problem = f"{met.operation}: {met.strerror}"
            if problem:
                self.is_wrong(f"{shown(each.path)}: {problem}")
            elif self._signature is not None and (member.kind == LINK or each.copied):
                self._signature.take_link(each)
        if incomplete.has_more:
            self.is_wrong(HAS_MORE)
        if lacking:
            self.is_wrong(lacking)
        if self._signature is not None:
            self._sign(self._signature)

    def _sign(self, found: ArchiveSignature) -> None:
        """Write the signature of the listed members, unless there were failures. Raise ``OSError`` if temporary files
        cannot be read.
        """
        try:
            if self.wrong:
                raise ValueError("not all of the archive could be read")
            signature = found.signature(shown(self._arguments.archive))
        except ValueError as error:
            self.is_wrong(f"no signature is written: {error}")
            return
        from pcopy.signature.signature_file import write_signature

        try:
            write_signature(self._options.signature, signature, self._options.umask)
        except Refused as refused:
            self.is_wrong(f"the signature could not be written: {refused}", self._options.signature)
        except OSError as error:
            self.is_wrong(f"the signature could not be written: {error.strerror}", self._options.signature)

    def close(self) -> None:
        """Release the temporary files."""
        self._tree.close()
        if self._signature is not None:
            self._signature.close()


def _limited(read: Read, rate: int) -> Read:
    """Return a function that reads like ``read``, limited to ``rate`` bytes per second (0: unlimited)."""
    throttle = Throttle()
    throttle.allow(rate or inf, inf)

    def limited(offset: int, size: int) -> bytes:
        for _ in throttle.spend(size):
            pass
        return read(offset, size)

    return limited


def _values(member: Member) -> dict[str, object]:
    """Return the values of a member for ``--json``."""
    import base64

    return {
        "path": shown(member.name),
        "path_b64": base64.b64encode(member.name).decode("ascii"),
        "type": stat.filemode(member.st_mode)[0] if member.kind != LINK else "h",
        "mode": f"{member.mode:04o}",
        "uid": member.uid,
        "gid": member.gid,
        "size": member.size,
        "mtime_ns": member.mtime,
        "link": shown(member.link),
    }


def _long(member: Member, *, numeric: bool) -> str:
    """Return the line of a member in the format of ``tar -tv``."""
    mode = stat.filemode(member.st_mode)
    if member.kind == LINK:
        mode = "h" + mode[1:]
    user = str(member.uid) if numeric or not member.user else shown(member.user)
    group = str(member.gid) if numeric or not member.group else shown(member.group)
    size = str(member.size)
    if member.kind in (b"3", b"4"):
        size = f"{os.major(member.device)},{os.minor(member.device)}"
    owners = f"{user}/{group}"
    column = f"{owners} {size:>{max(1, 18 - len(owners))}}"
    link = f" -> {shown(member.link)}" if member.kind == SYMLINK else ""
    link = f" link to {shown(member.link)}" if member.kind == LINK else link
    return f"{mode} {column} {_date(member.mtime)} {shown(member.name)}{link}"


def _date(moment: int) -> str:
    """Return a time, given in nanoseconds since the epoch, as local date and minute; as seconds if it has
    no such form.
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment // 10**9))
    except (OverflowError, ValueError, OSError):
        return f"{moment // 10**9}"
