"""Unfinished jobs, for their users: listed, chosen to be gone on with, discarded.

Rule: nothing is guessed. ``--resume`` without a name goes on only if one single job can be meant, and no job is touched
that somebody works on.
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


def resume(word: bytes, tell: Tell) -> tuple[StoredJob, Lock]:
    """The job that the user means by ``word`` (empty: the only one), its roots as they are now, and rank 0's lock.

    Raises ``Refused`` if there is none, if several can be meant (after ``tell`` was given a list of them), if a rank
    still works on it, or if its roots are not what they were.
    """
    path = job_path(word) if word else _only_one(tell)
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
    """The directory of the job that ``word`` names: with a slash a path, else a job in the state directory, or a path.

    Raises ``Refused`` if there is nothing of that name.
    """
    if b"/" not in word and word not in (b".", b".."):
        with suppress(Refused):  # no home is known, and no job by its name
            path = os.path.join(state_directory(), word)
            if os.path.lexists(path):
                return path
    path = absolute(word)
    if os.path.lexists(path):
        return path
    raise Refused(f"{shown(word)}: there is no such job; {_meant(word)}")


def _meant(word: bytes) -> str:
    """What to do about ``word``, which names no job."""
    if b"/" in word and (text := meant(word)):
        return text
    with suppress(Refused):
        names = [name_of(listed.path) for listed in unfinished(state_directory())]
        if near := nearest(os.fsdecode(word), names):
            return f"{near} is one: was that meant?"
    return "pcopy --jobs lists those that there are (one that has ended with status 0 is gone)"


@contextmanager
def _naming_its_job(path: bytes) -> Iterator[None]:
    """Where ``path`` is no job, but what one copies from or to, that one is named."""
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
    """The lines of ``--jobs``: a table, or with ``as_json`` an object a line. Raises ``Refused``."""
    state = state_directory()
    found = unfinished(state)
    if as_json:
        return [json_line(listed) for listed in found]
    if not found:
        return [f"no unfinished jobs in {shown(state)}"]
    return table(found)


def discard(word: bytes, remove_temporaries: Callable[[StoredJob], object], tell: Tell) -> None:
    """Removes the job that ``word`` names, and before that, by ``remove_temporaries``, its files in the destination.

    ``tell`` hears what was left where. Raises ``Refused`` if there is no such job, if somebody works on it, or if its
    destination is not there, but may come back.
    """
    path = job_path(word)
    try:
        with _naming_its_job(path):
            job, lock = hold_job(path)
    except Unreadable as unreadable:
        job_name = shown(os.path.basename(path)) if is_in_state_directory(path) else "JOB"
        remove_unreadable(path)
        tell(f"{unreadable.what}; temporary files (.pcopy-{job_name}-*) may be left in its destination")
        return
    _discard(job, lock, remove_temporaries, tell)


def discard_superseded(found: Sequence[Listed], remove_temporaries: Callable[[StoredJob], object], tell: Tell) -> None:
    """Removes those jobs that are still what they were when they were ``found``; what is in the way is told."""
    for listed in found:
        with suppress(Refused):  # it is over, or somebody works on it
            job, lock = hold_job(listed.path)
            if job.file != listed.file:
                lock.close()
                continue
            try:
                _discard(job, lock, remove_temporaries, tell)
            except Refused as refused:
                tell(str(refused))


def _discard(job: StoredJob, lock: Lock, remove_temporaries: Callable[[StoredJob], object], tell: Tell) -> None:
    """As ``discard``, for a job that is ours; gives the lock back."""
    path = job.path
    with closing(lock):
        try:
            check_targets(job.file)
            refuse_lost_mounts(job.file)
        except Gone as gone:
            tell(f"temporary files (.pcopy-{job.file.name}-*) may be left where the destination was: {gone}")
        except Refused as refused:
            raise Refused(
                f"{refused}, so that the job's temporary files go, too; if it will not come back, remove {shown(path)}"
            ) from None
        else:
            for target in lost(job.file):
                tell(
                    f"{shown(target)}: not there, or not the one that the job copied to; if that was moved, temporary "
                    f"files (.pcopy-{job.file.name}-*) may be left in it"
                )
            remove_temporaries(job)
        for name in remove(job, lock):
            tell(f"{shown(os.path.join(path, name))}: left, since it is not pcopy's")


def to_standard_error(line: str) -> None:
    """Takes lists and remarks unless somebody else does."""
    print(line, file=sys.stderr)


def _only_one(tell: Tell) -> bytes:
    state = state_directory()
    listed_all = unfinished(state)
    found = [listed for listed in listed_all if listed.file is not None]
    free = [listed for listed in found if not locks(listed.path)]
    if len(free) == 1:
        return free[0].path
    if not found and listed_all:
        tell("\n".join(f"cannot be used: {listed.trouble}" for listed in listed_all))
        raise Refused(f"no unfinished job in {shown(state)} can be used as it is; name another directory: --resume DIR")
    if not found:
        raise Refused(f"there is no unfinished job in {shown(state)}; name its directory: --resume DIR")
    tell("\n".join(table(found)))
    if not free:
        raise Refused("all unfinished jobs are being worked on: wait for their end, or end them first")
    raise Refused(f"{len(free)} unfinished jobs can be meant; name one: pcopy --resume JOB")
