"""Commands for unfinished jobs: list them (``--jobs``), select one to resume (``--resume``), discard one
(``--discard``).

Rules: pcopy never guesses which job is meant: ``--resume`` without a name works only if there is exactly one unfinished
job on which no rank works. No job is changed while a rank works on it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from pcopy.errors import RequestRefused, path_refused
from pcopy.jobs.directories import (
    ListedJob,
    NoJobInDirectoryError,
    StoredJob,
    UnreadableJobError,
    is_in_state_directory,
    open_and_lock_job,
    open_and_lock_unfinished_job,
    remove_job,
    remove_unreadable_job,
    state_directory,
    unfinished_jobs,
)
from pcopy.jobs.job_file import JOB_RUNNING, job_name
from pcopy.jobs.listing import job_as_json_line, job_table
from pcopy.jobs.lock import RankLock, lock_holders_if_any
from pcopy.jobs.paths import absolute_path, source_path, target_path
from pcopy.jobs.roots import (
    DestinationRemovedError,
    check_target_directories,
    checked_roots_of_job,
    missing_or_replaced_targets,
    refuse_missing_mounts,
)
from pcopy.jobs.suggestions import most_similar_word, suggestion_for_missing_path
from pcopy.text import printable_path

PrintMessage = Callable[[str], object]


def job_to_resume(word: bytes, report: PrintMessage) -> tuple[StoredJob, RankLock]:
    """Return the unfinished job that ``word`` means, and rank 0's lock of that job, which this function takes.

    The device numbers of its source and target directories are updated: they may have changed since the job began.

    Args:
        word: a job's name or directory; empty: the only unfinished job.
        report: prints a list of jobs if several can be meant.

    Raise ``RequestRefused`` if there is no such job, if several can be meant, if a rank still works on the job, or if
    its source and target directories are not those with which the job began.
    """
    path = path_of_named_job(word) if word else _only_resumable_job(report)
    with _adding_job_name_to_error(path):
        job, lock = open_and_lock_unfinished_job(path)
    if job.file.state == JOB_RUNNING:
        job = job._replace(file=job.file._replace(killed=True))
    try:
        return job._replace(file=job.file._replace(roots=checked_roots_of_job(job.file))), lock
    except BaseException:
        lock.close()
        raise


def path_of_named_job(word: bytes) -> bytes:
    """Return the directory of the job that ``word`` means.

    A word with a slash is a path. Any other word is the name of a job in the state directory, or else a path. Raise
    ``RequestRefused`` if neither exists.
    """
    if b"/" not in word and word not in (b".", b".."):
        with suppress(RequestRefused):  # Without a home directory no job has a name.
            path = os.path.join(state_directory(), word)
            if os.path.lexists(path):
                return path
    path = absolute_path(word)
    if os.path.lexists(path):
        return path
    raise path_refused(word, f"there is no such job; {_advice_about_unknown_job(word)}", code=errno.ENOENT)


def _advice_about_unknown_job(word: bytes) -> str:
    """Return advice about ``word``, which names no job: a similar name, or the command that lists all jobs."""
    if b"/" in word and (text := suggestion_for_missing_path(word)):
        return text
    with suppress(RequestRefused):
        names = [job_name(listed.path) for listed in unfinished_jobs(state_directory())]
        if near := most_similar_word(os.fsdecode(word), names):
            return f"{near} is one: was that meant?"
    return "pcopy --jobs lists all unfinished jobs (one that ended with status 0 is not kept)"


@contextmanager
def _adding_job_name_to_error(path: bytes) -> Iterator[None]:
    """Context manager: if its block raises ``NoJobInDirectoryError`` for ``path``, the message also names a job that
    copies from or to ``path``.

    It helps users who have named the source or the destination of an unfinished job instead of the job.
    """
    try:
        yield
    except NoJobInDirectoryError as none:
        real = os.path.realpath(path)
        for listed in unfinished_jobs(state_directory()):
            roots = listed.file.roots if listed.file else ()
            if any(real in (source_path(root), root.target, target_path(root)) for root in roots):
                advice = f"; did you mean job {job_name(listed.path)}, which copies from or to this directory?"
                raise NoJobInDirectoryError(none.path, advice) from None
        raise


def job_list_lines(as_json: bool) -> list[str]:
    """Return the output lines of ``--jobs``: a table, or with ``as_json`` a JSON object per line.

    Raise ``RequestRefused`` if the state directory cannot be read.
    """
    state = state_directory()
    found = unfinished_jobs(state)
    if as_json:
        return [job_as_json_line(listed) for listed in found]
    if not found:
        return [f"no unfinished jobs in {printable_path(state)}"]
    return job_table(found)


def discard_job(word: bytes, remove_temporaries: Callable[[StoredJob], object], report: PrintMessage) -> None:
    """Remove the job that ``word`` means, and its temporary files in the destination.

    Args:
        word: a job's name or directory.
        remove_temporaries: removes the temporary files; called before the job is removed.
        report: prints what could not be removed.

    Raise ``RequestRefused`` if there is no such job, if a rank works on it, or if its destination is missing but may
    come back (a missing mount).
    """
    path = path_of_named_job(word)
    try:
        with _adding_job_name_to_error(path):
            job, lock = open_and_lock_job(path)
    except UnreadableJobError as unreadable:
        job_name = printable_path(os.path.basename(path)) if is_in_state_directory(path) else "JOB"
        remove_unreadable_job(path)
        report(f"{unreadable.reason}; temporary files (.pcopy-{job_name}-*) may be left in its destination")
        return
    _discard_locked_job(job, lock, remove_temporaries, report)


def discard_superseded_jobs(
    found: Sequence[ListedJob], remove_temporaries: Callable[[StoredJob], object], report: PrintMessage
) -> None:
    """Remove those of the older jobs ``found`` that have not changed since they were listed; a newer job has replaced
    them.

    A job that has ended, or on which a rank works, is left alone. Other errors are reported, and the next job follows.

    Args:
        remove_temporaries: removes a job's temporary files from its destination; called before the job is removed.
        report: prints errors.
    """
    for listed in found:
        with suppress(RequestRefused):  # The job is over, or a rank works on it.
            job, lock = open_and_lock_job(listed.path)
            if job.file != listed.file:
                lock.close()
                continue
            try:
                _discard_locked_job(job, lock, remove_temporaries, report)
            except RequestRefused as refused:
                report(str(refused))


def _discard_locked_job(
    job: StoredJob, lock: RankLock, remove_temporaries: Callable[[StoredJob], object], report: PrintMessage
) -> None:
    """Remove a job whose lock this process holds, and its temporary files in the destination; release the lock.

    Args:
        remove_temporaries: removes the temporary files; called before the job is removed.
        report: prints what could not be removed.

    Raise ``RequestRefused`` if the destination is missing but may come back (a missing mount).
    """
    path = job.path
    with closing(lock):
        try:
            check_target_directories(job.file)
            refuse_missing_mounts(job.file)
        except DestinationRemovedError as error:
            report(f"temporary files (.pcopy-{job.file.name}-*) may be left where the destination was: {error}")
        except RequestRefused as refused:
            raise RequestRefused(
                f"{refused}, so that the job's temporary files can be removed, too; if that file system no longer "
                f"exists, remove {printable_path(path)}",
                path=path,
            ) from None
        else:
            for target in missing_or_replaced_targets(job.file):
                report(
                    f"{printable_path(target)}: missing, or not the directory that the job copied to; if the original "
                    f"directory was moved, temporary files (.pcopy-{job.file.name}-*) may be left in that directory"
                )
            remove_temporaries(job)
        for name in remove_job(job, lock):
            report(f"{printable_path(os.path.join(path, name))}: not removed: pcopy did not create it")


def print_to_stderr(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr)


def _only_resumable_job(report: PrintMessage) -> bytes:
    """Return the directory of the only unfinished job on which no rank works.

    Raise ``RequestRefused`` if there is no such job, or more than one; ``report`` has then printed a list of the jobs.
    """
    state = state_directory()
    jobs = unfinished_jobs(state)
    usable = [listed for listed in jobs if listed.file is not None]
    free = [listed for listed in usable if not lock_holders_if_any(listed.path)]
    if len(free) == 1:
        return free[0].path
    if not usable and jobs:
        report("\n".join(f"cannot be used: {listed.reason}" for listed in jobs))
        raise RequestRefused(
            f"no unfinished job in {printable_path(state)} can be used as it is; name another directory: --resume DIR"
        )
    if not usable:
        raise RequestRefused(f"there is no unfinished job in {printable_path(state)}; name its directory: --resume DIR")
    report("\n".join(job_table(usable)))
    if not free:
        raise RequestRefused("all unfinished jobs are being worked on: wait for their end, or end them first")
    raise RequestRefused(f"{len(free)} unfinished jobs match; name one: pcopy --resume JOB")
