"""``ptar -t``: the members of an archive, a line each, as ``tar -t`` and ``tar -tv`` tell them; one process does it.

With ``--signature`` it reads their contents, too.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from typing import TYPE_CHECKING

from pcopy.archive.member import DIRECTORY, LINK, SYMLINK, Member
from pcopy.archive.reader import Damage, FoundMember, Read, members
from pcopy.errors import HINDRANCES, INCOMPLETE, OK, Refused, hindrance
from pcopy.fsio.problem import Problem
from pcopy.report.streams import tell
from pcopy.signature.algorithms import algorithm
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.archive.found_members import is_below
from pcopy.tasks.archive.one_stream import StreamReader
from pcopy.tasks.archive.opened import number_of, open_archive
from pcopy.tasks.base.job import Options
from pcopy.text import shown
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.outputs import check_outputs, umask_of_user
from pcopy.tools.unpack import archive_to_read
from pcopy.walk.selection import Selection

if TYPE_CHECKING:
    from pcopy.tools.archive_signature import ArchiveSignature


def list_archive(arguments: ArchiveArguments) -> int:
    """Prints the names; returns the exit status. Raises ``Refused``."""
    path, stream = archive_to_read(arguments, "-tv" if arguments.telling.verbose else "-t")
    options = arguments.options._replace(umask=umask_of_user())
    check_outputs((), options, arguments.telling, copies=False)
    listing = _Listing(arguments, path)
    descriptor = open_archive(path)
    try:
        source = StreamReader(descriptor, stream.program) if stream else ArchiveContents(descriptor, path)
        listing.go_through(source.read, options)
        if isinstance(source, StreamReader):
            source.check_rest()
        if options.signature:
            listing.sign(options)
    except Problem as problem:
        listing.is_wrong(f"{problem.operation}: {problem.strerror}")
    except HINDRANCES as error:
        listing.is_wrong(hindrance(error))
    finally:
        os.close(descriptor)
        listing.close()
    sys.stdout.flush()
    return INCOMPLETE if listing.wrong else OK


class _Listing:
    """Members are told one after the other; ``wrong`` counts what could not be."""

    def __init__(self, arguments: ArchiveArguments, path: bytes) -> None:
        self.wrong = 0
        self._arguments, self._path = arguments, path
        self._selection = Selection(arguments.options.select)
        self._signature: ArchiveSignature | None = None

    def is_wrong(self, text: str) -> None:
        self.wrong += 1
        tell("ptar", f"{shown(self._path)}: {text}")

    def go_through(self, read: Read, options: Options) -> None:
        """Raises ``Problem``, and ``OSError`` from spools."""
        if options.signature:
            from pcopy.jobs.spool import spool_in
            from pcopy.tools.archive_signature import Ahead, ArchiveSignature

            read = Ahead(read).read
            self._signature = ArchiveSignature(read, algorithm(options.hash), options.block_size, spool_in(b""))
        number = 0
        for each in members(read, number_of):
            if isinstance(each, Damage):
                self.is_wrong(f"at byte {each.offset:,}: {each.text}")
            elif self._is_wanted(each.member):
                number += 1
                self._take(each)
        if self._arguments.paths and not number:
            self.is_wrong(f"holds nothing of these names: {', '.join(map(shown, self._arguments.paths))}")

    def _is_wanted(self, member: Member) -> bool:
        wanted = self._arguments.paths
        if wanted and not any(is_below(member.name, each) for each in wanted):
            return False
        return not self._selection.anything or _takes(self._selection, member)

    def _take(self, found: FoundMember) -> None:
        member, told = found.member, self._arguments.telling
        if found.remark:
            tell("ptar", f"{shown(member.name)}: {found.remark}")
        if told.json:
            print(json.dumps(_values(member)))
        elif not told.quiet:
            print(_long(member, numeric=self._arguments.options.numeric_owner) if told.verbose else shown(member.name))
        if self._signature is not None:
            try:
                self._signature.take(found)
            except Problem as problem:
                self.is_wrong(f"{shown(member.name)}: {problem.operation}: {problem.strerror}")
            except ValueError as contradiction:
                self.is_wrong(f"{shown(member.name)}: {contradiction}")

    def sign(self, options: Options) -> None:
        """Writes the signature of what was told, if nothing was wrong. Raises ``OSError``."""
        assert self._signature is not None
        try:
            if self.wrong:
                raise ValueError("not all of it could be read")
            signature = self._signature.signature(shown(self._arguments.archive))
        except ValueError as error:
            self.is_wrong(f"no signature is written: {error}")
            return
        from pcopy.signature.signature_file import write_signature

        try:
            write_signature(options.signature, signature, options.umask)
        except Refused as refused:
            self.is_wrong(f"the signature could not be written: {refused}")
        except OSError as error:
            self.is_wrong(f"the signature could not be written: {error.strerror}")

    def close(self) -> None:
        if self._signature is not None:
            self._signature.close()


def _takes(selection: Selection, member: Member) -> bool:
    path = member.name.lstrip(b"/")
    if selection.excludes_below(path):
        return False
    return member.kind == DIRECTORY or selection.takes_item(member.st_mode, member.size, member.mtime)


def _values(member: Member) -> dict[str, object]:
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
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment // 10**9))
    except (OverflowError, ValueError, OSError):
        return f"{moment // 10**9}"
