"""``ReportFailures`` reports the failures of a task to rank 0.

It is a note (a message in the form of a short task) that is not recorded as done before the end of the job. So a job
that is resumed runs it again: then it subtracts the failures from the counts and retries the items.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.backend.columns import pack_names
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import Failure
from pcopy.tasks.base.kind import LeftoverLocation, MissingDirectories, TaskKind, TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, SetSharedByTasks
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FailureRetry, Place


class ReportFailures(TaskWithoutDirectory, code=70, doing="reporting failures"):
    """Note (message in the form of a short task) that reports the failures and notices of one task to rank 0. In a
    resumed job, the note of an earlier run retries the failed items instead.

    Fields:
        failures: (path, operation, errno, message) of each failure.
        notices: other lines for the user.
        retries: what a resumed job does about the failures: tasks that try again, and counts that are taken back first.
        unsupported_notices: (key, text) of notices about features, such as ACLs or fsync, that a file system does not
            support. Each is shown once in the whole job, and counts as one warning then.
        one_time_notices: (key, text) of other notices that are shown once in the whole job. The task has counted them
            as warnings already.
    """

    failures: tuple[tuple[bytes, str, int, str], ...]
    notices: tuple[str, ...]
    retries: tuple[FailureRetry, ...]
    unsupported_notices: tuple[tuple[str, str], ...] = ()
    one_time_notices: tuple[tuple[str, str], ...] = ()

    def with_reassigned_owner(self, task: Task, ranks: int) -> Task:
        """Return ``task``, the engine's description of this note, with the phase COPY: in a resumed job the note spawns
        the retries there. The names of an inode must be found before the phase LINK, in which they are linked.
        """
        return task._replace(phase=int(Phase.COPY))

    def carried_tasks(self) -> Iterator[TaskKind]:
        """Yield the tasks with which a resumed job retries the failed items. They are packed in ``retries``."""
        return (decode_task(retry.task) for retry in self.retries if retry.task)

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        for again in self.carried_tasks():
            yield from again.locations_of_leftover_files(after_first_run=after_first_run)

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        for retry in self.retries:
            if retry.task and retry.phase < Phase.REPAIR:
                decode_task(retry.task).register_for_resume(task._replace(phase=int(Phase.COPY)), missing)

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield this note, with other retries if directories were removed from the destination (``missing``) since the
        note was recorded: a retry that needs such a directory is left out, or replaced by tasks that do not need it.

        The replacing tasks stay in this note, because when the note spawns them it also has the metadata of their
        directories set again.
        """
        retries = tuple(each for retry in self.retries for each in _replacement_retries(retry, task, missing))
        yield task._replace(payload=encode_task(self._replace(retries=retries)))

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Report the failures. If an earlier run created the note, retry the items instead."""
        if result.id[0] < rank.job.run:
            _spawn_retries(self.retries, rank, result)
            return
        if self.failures:
            result.defer_task_completion()
        shown_once = rank.shared_instance(ShownNoticeKeys)
        unknown = [text for name, text in self.unsupported_notices if name not in shown_once]
        shown_once.update(name for name, _ in self.unsupported_notices)
        result.count(counts.WARNINGS, len(unknown))
        once = [text for key, text in self.one_time_notices if key not in shown_once]
        shown_once.update(key for key, _ in self.one_time_notices)
        rank.report_failures_and_notices(
            [Failure(*failure) for failure in self.failures], [*self.notices, *unknown, *once]
        )


def _replacement_retries(retry: FailureRetry, task: Task, missing: MissingDirectories) -> Iterator[FailureRetry]:
    """Yield what replaces ``retry`` in a resumed job, if directories were removed from the destination (``missing``):
    nothing, the retry itself, or retries that do not need these directories. ``task`` is the note that contains the
    retry.

    A retry in the phase REPAIR copies an item again that differed when it was verified. It is replaced only if its own
    directory was removed, and never because more names of its inode may be found: these must not be linked to the copy
    that differs.
    """
    is_lost = retry.place is not None and missing.contains(retry.place)
    kept = retry._replace(counts_to_subtract=()) if is_lost else retry
    if retry.task:
        again = decode_task(retry.task)
        gathers = missing.may_find_links and retry.phase < Phase.REPAIR and again.uncopied_item is not None
        if gathers or any(map(missing.contains, again.contained_directory_places())):
            kept = kept._replace(task=b"")
            for one in again.replacement_tasks_if_directories_missing(
                task._replace(payload=retry.task, phase=retry.phase), missing
            ):
                yield FailureRetry(one.payload, one.phase)
    if kept.task or kept.counts_to_subtract:
        yield kept


class ShownNoticeKeys(SetSharedByTasks[str]):
    """Keys of notices that rank 0 has already shown to the user, such as names of unsupported features. A notice whose
    key is in this set is not shown again.
    """


def _spawn_retries(retries: tuple[FailureRetry, ...], rank: Rank, result: TaskResult) -> None:
    """Spawn the retries of failed items, and subtract the failures from the counts.

    Names of one directory are retried by one task, so that one note reports them if they fail again.
    """
    from pcopy.tasks.directories.scan_dir import ScanNames

    names: dict[tuple[Place, int, int], list[bytes]] = {}
    # Otherwise there was a run in between, which may have created something without recording it.
    is_next = result.id[0] + 1 == rank.job.run
    for failed in retries:
        for counter, number in failed.counts_to_subtract:
            result.count(counter, -number, failed.place)
        if not failed.task:
            continue
        retry, phase = decode_task(failed.task), max(failed.phase, result.phase)
        if failed.is_untouched and is_next:
            retry = retry.with_first_run((rank.job.run, rank.job.resumed))
        if isinstance(retry, ScanNames):
            names.setdefault((retry.place, retry.attempt, phase), []).append(retry.names)
        else:
            _spawn_retry(retry, rank, result, phase)
    for (place, attempt, phase), each in names.items():
        _spawn_retry(ScanNames(place, pack_names(each), attempt), rank, result, phase)


def _spawn_retry(retry: TaskKind, rank: Rank, result: TaskResult, phase: int) -> None:
    """Spawn one retry, and tasks that set the metadata of the directories in which it creates something."""
    from pcopy.tasks.directories.finish_dir import spawn_finish_dir_task_once

    retry.spawn_retry(rank, result, phase)
    for place in retry.directories_written_by_retry():
        spawn_finish_dir_task_once(rank, result, place, phase)
