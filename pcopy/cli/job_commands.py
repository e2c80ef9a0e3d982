"""``pcopy --jobs``, ``--control`` and ``--discard``: commands on stored jobs, which one process executes without ranks.

A stored job is one whose progress is recorded in a job directory, so that ``pcopy --resume`` can continue it.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial

from pcopy.errors import RequestPartlyRefused, RequestRefused
from pcopy.jobs.control import job_limits_text, send_control_request
from pcopy.jobs.directories import last_change_of_job, state_directory, unfinished_jobs
from pcopy.jobs.job_choice import discard_job, job_list_lines, path_of_named_job, print_to_stderr
from pcopy.jobs.job_file import job_name
from pcopy.jobs.leftovers import remove_temporary_files
from pcopy.jobs.listing import source_and_destination
from pcopy.jobs.lock import lock_holders_if_any
from pcopy.jobs.suggestions import joined_sentences
from pcopy.launch.launcher import is_reporting_rank
from pcopy.report.streams import print_error
from pcopy.text import printable_path
from pcopy.tools.arguments import CopyArguments


def run_job_command(arguments: CopyArguments) -> str | None:
    """Execute the command on stored jobs that ``arguments`` request, and return the text to print.

    Return None if they request a copy or a resume, which needs ranks; return an empty text if there is nothing to
    print. Raise ``PcopyError`` if the command fails.
    """
    command = arguments.job_request
    if not command.is_any_command_requested or command.resume is not None:
        return None
    if not is_reporting_rank(os.environ):
        return ""
    if command.jobs:
        return "\n".join(job_list_lines(arguments.output.json))
    if command.control is not None:
        state = send_control_request(_path_of_running_job(command.control), command.change)
        text = json.dumps(state) if arguments.output.json else job_limits_text(state) or "no limits, all ranks active"
        return "" if arguments.output.quiet else text
    if command.discard is not None and len(command.discard) == 1:
        _discard_job(command.discard[0], arguments.program)
        return "" if arguments.output.quiet else "discarded"
    if command.older_than is None:
        jobs = {path_of_named_job(word): printable_path(word) for word in command.discard or ()}
    else:
        jobs = _unfinished_jobs_older_than(command.older_than)
    _discard_jobs(jobs, arguments.program, quiet=arguments.output.quiet)
    return "" if jobs or arguments.output.quiet else "nothing to discard"


def _path_of_running_job(word: bytes) -> bytes:
    """Return the directory of the running job that ``word`` means (a job's name, or a directory).

    Raise ``RequestRefused`` if there is no such job.
    """
    try:
        return path_of_named_job(word)
    except RequestRefused as refused:
        raise RequestRefused(joined_sentences(str(refused), "a job of --checkpoint none cannot be changed")) from None


def _discard_job(word: bytes, program: str) -> None:
    """Remove the job that ``word`` means (a job's name, or a directory), and its temporary files in the destination.

    ``program`` is the program's name, for messages. Raise ``RequestRefused`` if the job cannot be removed.
    """
    discard_job(word, partial(remove_temporary_files, report=partial(print_error, program)), print_to_stderr)


def _discard_jobs(jobs: dict[bytes, str], program: str, *, quiet: bool) -> None:
    """Remove the ``jobs``; if one cannot be removed, report that and go on with the next.

    The keys are the directories of the jobs, the values their names for messages. Unless ``quiet``, print a line for
    each removed job. ``program`` is the program's name, for messages. At the end, raise ``PcopyError`` if any job could
    not be removed.
    """
    failures = []
    for path, name in jobs.items():
        try:
            _discard_job(path, program)
        except RequestRefused as refused:
            failures.append(refused)
        else:
            if not quiet:
                print(f"discarded {name}", flush=True)
    for failure in failures[:-1]:
        print_error(program, failure)
    if failures:
        raise failures[-1] if len(failures) == len(jobs) else RequestPartlyRefused(str(failures[-1]))


def _unfinished_jobs_older_than(age: float) -> dict[bytes, str]:
    """Return the unfinished jobs that do not run, and whose records have not changed for ``age`` seconds.

    The keys are the directories of the jobs, the values their names with source and destination.
    """
    before = time.time() - age
    return {
        listed.path: f"{job_name(listed.path)}: {source_and_destination(listed.file)}"
        for listed in unfinished_jobs(state_directory())
        if listed.file is not None and not lock_holders_if_any(listed.path) and last_change_of_job(listed) <= before
    }
