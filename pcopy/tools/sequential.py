"""Find out before a job begins whether its destination can be written in one way only (``pcopy.fsio.sequential``)."""

from __future__ import annotations

from pcopy.errors import Refused
from pcopy.fsio.sequential import Examined, examine, examine_times
from pcopy.fsio.ways import is_ordinary
from pcopy.tasks.base.job import KEEPING, Options, unrecognised
from pcopy.text import shown


def fitting(options: Options, path: bytes) -> tuple[Options, list[str]]:
    """Return ``options`` for a job that writes into the directory ``path``, and notices for the user.

    If files there can only be written in order and under their own names, that is how the job writes all files, and
    holes are filled. Raises ``Refused`` where the options exclude that.
    """
    notices: list[str] = []
    if not options.sequential:
        if is_ordinary(path):
            if options.preserve.timestamps and not options.dry_run:
                examine_times(path)
            return options, notices
        lacking, left = Examined() if options.dry_run else examine(path)
        if left:
            notices.append(f"{left}: a file of pcopy's own is left there, since it cannot be removed")
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
    """Raise ``Refused`` if ``file``, which is renamed when it is whole, cannot be made in the directory ``path``.

    ``writes``: it is written in any order.
    """
    if why := examine(path, writes=writes).refusal:
        raise Refused(f"{shown(file)}: cannot be made: {why}; {advice}")
