"""``pcopy --jobs``, ``--control`` and ``--discard``: commands on stored jobs, run by one process without copying."""

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
    """Execute a command on stored jobs and return the text to print; return None if the command line asks for a copy.

    Raise ``PcopyError`` if the command fails.
    """
    command = arguments.asked
    if not command.anything or command.resume is not None:
        return None
    if not speaks(os.environ):
        return ""
    if command.jobs:
        return "\n".join(listing(arguments.telling.json))
    if command.control is not None:
        state = change(_running_path(command.control), command.change)
        text = json.dumps(state) if arguments.telling.json else described(state) or "no limits, all ranks active"
        return "" if arguments.telling.quiet else text
    if command.discard is not None and len(command.discard) == 1:
        _discard(command.discard[0], arguments.program)
        return "" if arguments.telling.quiet else "discarded"
    if command.older_than is None:
        jobs = {job_path(word): shown(word) for word in command.discard or ()}
    else:
        jobs = _older(command.older_than)
    _discard_all(jobs, arguments.program, quiet=arguments.telling.quiet)
    return "" if jobs or arguments.telling.quiet else "nothing to discard"


def _running_path(word: bytes) -> bytes:
    """Return the directory of the job ``word``, as ``job_path`` does. Raise ``Refused`` if there is no such job."""
    try:
        return job_path(word)
    except Refused as refused:
        raise Refused(followed(str(refused), "a job of --checkpoint none cannot be changed")) from None


def _discard(word: bytes, program: str) -> None:
    """Remove the job ``word`` and its temporary files."""
    discard(word, partial(remove_temporaries, report=partial(tell, program)), to_standard_error)


def _discard_all(jobs: dict[bytes, str], program: str, *, quiet: bool) -> None:
    """Remove each of ``jobs``; a failure does not prevent the removal of the others.

    The keys are the jobs' directories, the values their names for messages. After the last job, raise ``PcopyError`` if
    any could not be removed.
    """
    failures = []
    for path, name in jobs.items():
        try:
            _discard(path, program)
        except Refused as refused:
            failures.append(refused)
        else:
            if not quiet:
                print(f"discarded {name}", flush=True)
    for failure in failures[:-1]:
        tell(program, failure)
    if failures:
        raise failures[-1] if len(failures) == len(jobs) else NotAllDone(str(failures[-1]))


def _older(age: float) -> dict[bytes, str]:
    """Return the jobs that are not running and have not been worked on for ``age`` seconds.

    The keys are the jobs' directories, the values their names with source and destination.
    """
    before = time.time() - age
    return {
        listed.path: f"{name_of(listed.path)}: {way(listed.file)}"
        for listed in unfinished(state_directory())
        if listed.file is not None and not locks(listed.path) and last_worked_on(listed) <= before
    }
