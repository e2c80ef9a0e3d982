"""``ptar -t``: the members of an archive, a line each, as ``tar -t`` and ``tar -tv`` tell them; one process does it."""

from __future__ import annotations

import json
import os
import stat
import sys
import time

from pcopy.archive.member import DIRECTORY, LINK, SYMLINK, Member
from pcopy.archive.reader import Damage, members
from pcopy.errors import INCOMPLETE, OK
from pcopy.fsio.problem import Problem
from pcopy.report.streams import tell
from pcopy.tasks.archive.contents import ArchiveContents
from pcopy.tasks.archive.found_members import is_below
from pcopy.tasks.archive.opened import number_of, open_archive
from pcopy.text import shown
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.unpack import archive_to_read
from pcopy.walk.selection import Selection


def list_archive(arguments: ArchiveArguments) -> int:
    """Prints the names; returns the exit status. Raises ``Refused``."""
    path = archive_to_read(arguments, "-tv" if arguments.telling.verbose else "-t")
    selection = Selection(arguments.select)
    number = wrong = 0
    descriptor = open_archive(path)
    try:
        for each in members(ArchiveContents(descriptor, path).read, number_of):
            if isinstance(each, Damage):
                wrong += 1
                tell("ptar", f"{shown(path)}: at byte {each.offset:,}: {each.text}")
                continue
            member = each.member
            if each.remark:
                tell("ptar", f"{shown(member.name)}: {each.remark}")
            if arguments.paths and not any(is_below(member.name, wanted) for wanted in arguments.paths):
                continue
            if selection.anything and not _takes(selection, member):
                continue
            number += 1
            if arguments.telling.json:
                print(json.dumps(_values(member)))
            elif not arguments.telling.quiet:
                print(
                    _long(member, numeric=arguments.numeric_owner) if arguments.telling.verbose else shown(member.name)
                )
    except Problem as problem:
        wrong += 1
        tell("ptar", f"{shown(path)}: {problem.operation}: {problem.strerror}")
    finally:
        os.close(descriptor)
    if arguments.paths and not number:
        wrong += 1
        tell("ptar", f"{shown(path)}: holds nothing of these names: {', '.join(map(shown, arguments.paths))}")
    sys.stdout.flush()
    return INCOMPLETE if wrong else OK


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
