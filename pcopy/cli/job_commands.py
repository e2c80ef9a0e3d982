"""``pcopy --jobs``, ``--control`` and ``--discard``: what is done with stored jobs by one process, without copying."""

from __future__ import annotations

import json
import os
import time
from functools import partial

from pcopy.errors import NotAllDone, Refused
from pcopy.jobs.chosen import discard, job_path, listing, to_standard_error
from pcopy.jobs.control import change, described
from pcopy.jobs.directories import last_worked_on, state_directory, unfinished
from pcopy.jobs.job_file import name_of
from pcopy.jobs.leftovers import remove_temporaries
from pcopy.jobs.listing import way
from pcopy.jobs.lock import locks
from pcopy.jobs.meant import followed
from pcopy.launch.launcher import speaks
from pcopy.report.streams import tell
from pcopy.text import shown
from pcopy.tools.arguments import CopyArguments


def answer(arguments: CopyArguments) -> str | None:
    """What is asked of stored jobs, done; None if that is a copy. Raises ``PcopyError``."""
    asked = arguments.asked
    if not asked.anything or asked.resume is not None:
        return None
    if not speaks(os.environ):
        return ""
    if asked.jobs:
        return "\n".join(listing(arguments.telling.json))
    if asked.control is not None:
        told = change(_running_path(asked.control), asked.change)
        said = json.dumps(told) if arguments.telling.json else described(told) or "no limits, all ranks active"
        return "" if arguments.telling.quiet else said
    if asked.discard is not None and len(asked.discard) == 1:
        _discard(asked.discard[0], arguments.program)
        return "" if arguments.telling.quiet else "discarded"
    if asked.older_than is None:
        jobs = {job_path(word): shown(word) for word in asked.discard or ()}
    else:
        jobs = _older(asked.older_than)
    _discard_all(jobs, arguments.program, quiet=arguments.telling.quiet)
    return "" if jobs or arguments.telling.quiet else "nothing to discard"


def _running_path(word: bytes) -> bytes:
    """As ``job_path``; raises ``Refused``."""
    try:
        return job_path(word)
    except Refused as refused:
        raise Refused(followed(str(refused), "a job of --checkpoint none cannot be changed")) from None


def _discard(word: bytes, program: str) -> None:
    discard(word, partial(remove_temporaries, report=partial(tell, program)), to_standard_error)


def _discard_all(jobs: dict[bytes, str], program: str, *, quiet: bool) -> None:
    """Each by itself; raises ``PcopyError`` with what is in the way of the last one, after all others."""
    troubles = []
    for path, told in jobs.items():
        try:
            _discard(path, program)
        except Refused as refused:
            troubles.append(refused)
        else:
            if not quiet:
                print(f"discarded {told}", flush=True)
    for trouble in troubles[:-1]:
        tell(program, trouble)
    if troubles:
        raise troubles[-1] if len(troubles) == len(jobs) else NotAllDone(str(troubles[-1]))


def _older(age: float) -> dict[bytes, str]:
    """The jobs on which nobody works, nor has worked for ``age`` seconds, and what to tell of each."""
    before = time.time() - age
    return {
        listed.path: f"{name_of(listed.path)}: {way(listed.file)}"
        for listed in unfinished(state_directory())
        if listed.file is not None and not locks(listed.path) and last_worked_on(listed) <= before
    }
