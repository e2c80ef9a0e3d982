"""Checks before a job starts whether its destination permits only sequential writing (``pcopy.fsio.sequential``)."""

from __future__ import annotations

from pcopy.errors import Refused
from pcopy.fsio.sequential import Examined, examine, examine_times
from pcopy.fsio.ways import is_ordinary
from pcopy.tasks.base.job import KEEPING, Options, unrecognised
from pcopy.text import shown


def fitting(options: Options, path: bytes) -> tuple[Options, list[str]]:
    """Return ``options`` adapted to a job that writes into the directory ``path``, and notices for the user.

    If files there can only be written in order and under their final names, the job writes all files in that way, and
    holes are filled with zeros. Raise ``Refused`` if the options do not permit that.
    """
    notices: list[str] = []
    if not options.sequential:
        if is_ordinary(path):
            if options.preserve.timestamps and not options.dry_run:
                examine_times(path)
            return options, notices
        lacking, remaining_file = Examined() if options.dry_run else examine(path)
        if remaining_file:
            notices.append(f"{remaining_file}: a file of pcopy's own is left there, since it cannot be removed")
        if not lacking:
            return options, notices
        why = f"{shown(path)}: the file system {lacking}"
        if options.existing in KEEPING:
            raise Refused(f"{why}, and {unrecognised(options.existing)}")
        if options.backup:
            raise Refused(f"{why}, and --backup would rename what is replaced: leave it out")
        notices.append(f"{why}: each file is written under its own name, in order, by one rank")
        options = options._replace(sequential=True)
    return options._replace(preserve=options.preserve._replace(sparse=False)), notices


def refuse_restricted(path: bytes, file: bytes, advice: str, *, writes: bool) -> None:
    """Raise ``Refused`` if an output file cannot be created in the directory ``path`` under a temporary name and
    renamed when it is complete.

    Args:
        path: the directory.
        file: the path of the output file, for the message.
        advice: what the user can do, for the message.
        writes: True if the file is written in any order.
    """
    if why := examine(path, writes=writes).refusal:
        raise Refused(f"{shown(file)}: cannot be made: {why}; {advice}")
