"""Commands for unfinished jobs: list them (``--jobs``), select one to resume (``--resume``), discard one
(``--discard``).

Rules: nothing is guessed. ``--resume`` without a name works only if exactly one job can be meant. No job is changed
while a rank works on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from pcopy.errors import Refused
from pcopy.jobs.directories import (
    Listed,
    NoJob,
    StoredJob,
    Unreadable,
    hold_job,
    is_in_state_directory,
    remove,
    remove_unreadable,
    state_directory,
    take,
    unfinished,
)
from pcopy.jobs.job_file import RUNNING, name_of
from pcopy.jobs.listing import json_line, table
from pcopy.jobs.lock import Lock, locks
from pcopy.jobs.meant import meant, nearest
from pcopy.jobs.paths import absolute, source_of, target_of
from pcopy.jobs.roots import Gone, check_roots, check_targets, lost, refuse_lost_mounts
from pcopy.text import shown

Tell = Callable[[str], object]


def resume(word: bytes, report: Tell) -> tuple[StoredJob, Lock]:
    """Return the job that ``word`` names, with the current device numbers of its roots, and its lock for rank 0.

    Args:
        word: a job's name or directory; empty: the only unfinished job.
        report: prints a list of jobs if several can be meant.

    Raise ``Refused`` if there is no such job, if several can be meant, if a rank still works on it, or if its roots are
    not the directories that it started with.
    """
    path = job_path(word) if word else _only_one(report)
    with _naming_its_job(path):
        job, lock = take(path)
    if job.file.state == RUNNING:
        job = job._replace(file=job.file._replace(killed=True))
    try:
        return job._replace(file=job.file._replace(roots=check_roots(job.file))), lock
    except BaseException:
        lock.close()
        raise


def job_path(word: bytes) -> bytes:
    """Return the directory of the job that ``word`` names.

    A word with a slash is a path. Any other word is the name of a job in the state directory, or else a path. Raise
    ``Refused`` if neither exists.
    """
    if b"/" not in word and word not in (b".", b".."):
        with suppress(Refused):  # Without a home directory no job has a name.
            path = os.path.join(state_directory(), word)
            if os.path.lexists(path):
                return path
    path = absolute(word)
    if os.path.lexists(path):
        return path
    raise Refused(f"{shown(word)}: there is no such job; {_meant(word)}")


def _meant(word: bytes) -> str:
    """Return advice for a ``word`` that names no job: a similar name, or the command that lists all."""
    if b"/" in word and (text := meant(word)):
        return text
    with suppress(Refused):
        names = [name_of(listed.path) for listed in unfinished(state_directory())]
        if near := nearest(os.fsdecode(word), names):
            return f"{near} is one: was that meant?"
    return "pcopy --jobs lists all unfinished jobs (one that ended with status 0 is not kept)"


@contextmanager
def _naming_its_job(path: bytes) -> Iterator[None]:
    """Add the name of a job to a ``NoJob`` error of the block if ``path`` is a source or destination of that job."""
    try:
        yield
    except NoJob as none:
        real = os.path.realpath(path)
        for listed in unfinished(state_directory()):
            roots = listed.file.roots if listed.file else ()
            if any(real in (source_of(root), root.target, target_of(root)) for root in roots):
                raise NoJob(f"{none}; job {name_of(listed.path)} copies from or to it: was that meant?") from None
        raise


def listing(as_json: bool) -> list[str]:
    """Return the output lines of ``--jobs``: a table, or with ``as_json`` a JSON object per line.

    Raise ``Refused`` if the state directory cannot be read.
    """
    state = state_directory()
    found = unfinished(state)
    if as_json:
        return [json_line(listed) for listed in found]
    if not found:
        return [f"no unfinished jobs in {shown(state)}"]
    return table(found)


def discard(word: bytes, remove_temporaries: Callable[[StoredJob], object], report: Tell) -> None:
    """Remove the job that ``word`` names, and its temporary files in the destination.

    Args:
        word: a job's name or directory.
        remove_temporaries: removes the temporary files; called before the job is removed.
        report: prints what could not be removed.

    Raise ``Refused`` if there is no such job, if a rank works on it, or if its destination is missing but may come back
    (a missing mount).
    """
    path = job_path(word)
    try:
        with _naming_its_job(path):
            job, lock = hold_job(path)
    except Unreadable as unreadable:
        job_name = shown(os.path.basename(path)) if is_in_state_directory(path) else "JOB"
        remove_unreadable(path)
        report(f"{unreadable.what}; temporary files (.pcopy-{job_name}-*) may be left in its destination")
        return
    _discard(job, lock, remove_temporaries, report)


def discard_superseded(
    found: Sequence[Listed], remove_temporaries: Callable[[StoredJob], object], report: Tell
) -> None:
    """Remove the jobs of ``found`` that have not changed since they were listed; report errors and go on."""
    for listed in found:
        with suppress(Refused):  # The job is over, or a rank works on it.
            job, lock = hold_job(listed.path)
            if job.file != listed.file:
                lock.close()
                continue
            try:
                _discard(job, lock, remove_temporaries, report)
            except Refused as refused:
                report(str(refused))


def _discard(job: StoredJob, lock: Lock, remove_temporaries: Callable[[StoredJob], object], report: Tell) -> None:
    """Remove a job whose lock this process holds, as ``discard`` does; release the lock."""
    path = job.path
    with closing(lock):
        try:
            check_targets(job.file)
            refuse_lost_mounts(job.file)
        except Gone as error:
            report(f"temporary files (.pcopy-{job.file.name}-*) may be left where the destination was: {error}")
        except Refused as refused:
            raise Refused(
                f"{refused}, so that the job's temporary files go, too; if it will not come back, remove {shown(path)}"
            ) from None
        else:
            for target in lost(job.file):
                report(
                    f"{shown(target)}: missing, or not the directory that the job copied to; if that was moved, "
                    f"temporary files (.pcopy-{job.file.name}-*) may be left in it"
                )
            remove_temporaries(job)
        for name in remove(job, lock):
            report(f"{shown(os.path.join(path, name))}: not removed: pcopy did not create it")


def to_standard_error(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr)


def _only_one(report: Tell) -> bytes:
    """Return the directory of the only unfinished job on which no rank works.

    Raise ``Refused`` if there is none or several, after ``report`` has printed a list.
    """
    state = state_directory()
    jobs = unfinished(state)
    usable = [listed for listed in jobs if listed.file is not None]
    free = [listed for listed in usable if not locks(listed.path)]
    if len(free) == 1:
        return free[0].path
    if not usable and jobs:
        report("\n".join(f"cannot be used: {listed.trouble}" for listed in jobs))
        raise Refused(f"no unfinished job in {shown(state)} can be used as it is; name another directory: --resume DIR")
    if not usable:
        raise Refused(f"there is no unfinished job in {shown(state)}; name its directory: --resume DIR")
    report("\n".join(table(usable)))
    if not free:
        raise Refused("all unfinished jobs are being worked on: wait for their end, or end them first")
    raise Refused(f"{len(free)} unfinished jobs can be meant; name one: pcopy --resume JOB")
