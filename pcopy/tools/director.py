"""Directors: the objects on rank 0 that choose the phases of a job, the first tasks of each phase, and the exit status.
Also the stages in which progress is measured.

The stages are the copy (with everything up to the sync), the verification, the repair, the verification of repaired
items, and the signature. No percentage is shown for the repair and the signature: the amount of work of the repair is
unknown beforehand, and no bytes are counted for the signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pcopy import errors
from pcopy.engine.messages import HaltMessage
from pcopy.engine.task import NewTask
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.jobs.spool import TMPDIR_ADVICE
from pcopy.launch.tool import CompleteJob, JobResult, Tool
from pcopy.launch.watch.signals import exit_status_after_stop
from pcopy.report.progress_gauge import ProgressStage, StagesByPhase, WorkDone
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.distribution import rank_digesting_directory
from pcopy.tasks.base.job import Job, JobCounters, mount_codes
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, SignatureEntries, pack_numbers
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts
from pcopy.text import count_with_noun
from pcopy.walk.listing import NAMES_PER_BATCH


def _progress_of_copying(totals: JobCounters) -> WorkDone:
    """Return how much of the copying is done: items and bytes that were copied, skipped or failed, of those found so
    far.

    The total is known when all directories were read (``unscanned`` is 0).
    """
    items = totals.copied + totals.skipped + totals.failed
    handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes
    return WorkDone(items, totals.found, handled, totals.found_bytes, totals.moved, totals.unscanned == 0)


def _progress_of_verification(totals: JobCounters) -> WorkDone:
    """Return how much of the verification is done: items and bytes that were read back, of those to be read."""
    read, items = totals.verified_bytes, totals.verified + totals.refuted
    return WorkDone(items, totals.to_verify, read, totals.to_verify_bytes, read, True)


def _progress_without_total(totals: JobCounters) -> WorkDone:
    """Return what is done in a stage whose total is unknown.

    Its bytes are the sizes of files that are complete, skipped or failed; how many bytes were transferred for them does
    not count.
    """
    finished_bytes = totals.bytes + totals.skipped_bytes + totals.failed_bytes
    return _progress_of_copying(totals)._replace(bytes=finished_bytes, is_total_known=False)


JOB_STAGES: StagesByPhase = {
    "copy": ProgressStage(_progress_of_copying, finds_total=True),
    "verify": ProgressStage(_progress_of_verification),
    "repair": ProgressStage(_progress_without_total),
    "reverify": ProgressStage(_progress_of_verification),
    "sign": ProgressStage(_progress_without_total, is_measured=False),
}
"""The stages by which the progress of a job is shown, by name of the phase (``phase_name``). In programs that only
read, an item that was read counts as copied.
"""


def _per_pair(stage: ProgressStage) -> ProgressStage:
    """Return ``stage`` for a job that reads two trees: an item and its counterpart count as one, and so do their
    bytes.
    """

    def measure(totals: JobCounters) -> WorkDone:
        done = stage.measure(totals)
        is_over = done.items == done.items_total  # If the trees have an odd number of items, the last one is no pair.
        return WorkDone(
            (done.items + is_over) // 2,
            (done.items_total + 1) // 2,
            done.bytes // 2,
            done.bytes_total // 2,
            done.moved // 2,
            done.is_total_known,
        )

    return stage._replace(measure=measure)


PAIR_STAGES: StagesByPhase = {phase: _per_pair(stage) for phase, stage in JOB_STAGES.items()}
"""The stages of a job that compares two trees by reading both."""


def stages_of_single_walk(name: str) -> StagesByPhase:
    """Return the stages of a program that walks trees once and transfers no data: a single one, for the phase
    ``name``.
    """
    return {name: ProgressStage(_progress_of_walk, finds_total=True)}


def _progress_of_walk(totals: JobCounters) -> WorkDone:
    """Return how much of a walk is done: items found so far. The total is known when all directories were read."""
    return _progress_without_total(totals)._replace(moved=totals.bytes, is_total_known=totals.unscanned == 0)


class UnrecordedJobTool(Tool):
    """Base class of programs that do not record jobs: after an interruption, the user repeats the command."""

    unfinished_status = errors.EXIT_STOPPED
    spool_advice = TMPDIR_ADVICE
    stages = JOB_STAGES
    durable_before: tuple[int, ...] = ()

    def initial_counts(self, job: Job) -> list[int]:
        """Return the counters (``JobCounters``) before the first task. All are 0, since each PATH is counted when it is
        examined.

        A list of paths counts as one directory that is not read yet.
        """
        return list(JobCounters(unscanned=int(bool(job.listed))))


def _one_task_per_rank(ranks: Iterable[int], phase: int, value: Any) -> list[NewTask]:
    """Return one task for each of ``ranks``, which only this rank may run.

    All have the same description ``value`` (an object of a class of tasks) and the cost 0.
    """
    payload = encode_task(value)
    return [NewTask(phase, payload, 0, owner=rank) for rank in ranks]


class JobDirector:
    """Decides on rank 0 which phases a job has, what their first tasks are, and the exit status. This class is for jobs
    that only read, such as ``pverify``; the directors of other programs are subclasses.

    Implements the protocol ``pcopy.launch.tool.JobDirector``.
    """

    failed_status = errors.EXIT_REFUSED
    """Exit status of a job that ended by itself, but in which items or syncs have failed."""

    def __init__(self, rank: Rank, complete: CompleteJob, unfinished: int) -> None:
        """Create the director of the job of ``rank``, which is rank 0.

        Args:
            rank: rank 0.
            complete: called when all items were processed without failures. It does the remaining work, such as
                writing the signature, and returns the exit status.
            unfinished: exit status of a job that ended early. But if the job is not recorded and a signal has ended it,
                the status is that of the signal.
        """
        self._rank = rank
        self._job = rank.job
        self._complete = complete
        self._unfinished_status = unfinished
        self._mount_codes = mount_codes(rank.job.roots)
        self.result = JobResult(errors.EXIT_INTERNAL, JobCounters(), None)
        """How the job ended. It is set by ``status``; if the job is asked to halt after that, it does not change."""
        self._undeleted_before = 0
        """Number of extra items (items of the target that the source lacks) that earlier runs of this job have counted
        in ``JobCounters.to_delete`` but not deleted. It is set when the phase COUNT begins.
        """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks with which the phase ``phase`` begins. Depending on the phase, they are for rank 0, for one
        rank of each host, for each rank, or for any rank.
        """
        ranks: Sequence[int] = range(self._rank.size)
        if phase == Phase.COPY:
            return [*self._root_walk_tasks(), *self._manifest_task()]
        if phase in (Phase.SYNC, Phase.REPAIR_SYNC, Phase.STORE):
            from pcopy.tasks.directories.sync_files import SyncFileSystems

            return _one_task_per_rank(
                ranks if phase == Phase.STORE else self._rank.first_ranks, phase, SyncFileSystems(None)
            )
        if phase in (Phase.COUNT, Phase.DELETE):
            return [self._deletion_task(number, phase) for number, root in enumerate(self._job.roots) if not root.item]
        return self._signing_tasks(phase) if phase >= Phase.SIGN else []

    def _deletion_task(self, number: int, phase: int) -> NewTask:
        """Return the task that deletes the extra items (those that the source lacks) from the target of root
        ``number``.

        In the phase COUNT the task only counts them.
        """
        from pcopy.tasks.remove.delete_extra import ExamineMounts

        place = Place(number, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False)
        counted = self._undeleted_before if phase == Phase.COUNT else 0
        return NewTask(phase, encode_task(ExamineMounts(place, counted)), SCAN_COST, True, self._rank.first_ranks[0])

    def _manifest_task(self) -> list[NewTask]:
        """Return the task that reads the manifest (``Job.against``) with which a tree is compared; an empty list if the
        job has no manifest.
        """
        if not self._job.against:
            return []
        from pcopy.tasks.sign.manifest_lines import ReadManifest

        return _one_task_per_rank((0,), int(Phase.COPY), ReadManifest())

    def _signing_tasks(self, phase: int) -> list[NewTask]:
        """Return the tasks of a phase that computes the signature, one per rank.

        In the phase SIGN they send the entries of directories to the ranks that own these directories. Each phase from
        LEVEL on computes the digests of the directories of one depth, the deepest first. In the last phase rank 0
        writes the manifest.
        """
        from pcopy.tasks.sign.digest_level import DigestDirectoriesOfDepth, SendSignatureEntries
        from pcopy.tasks.sign.manifest_lines import WriteManifest

        ranks = range(self._rank.size)
        if phase == Phase.SIGN:
            return [*self._common_top_directory_task(), *_one_task_per_rank(ranks, phase, SendSignatureEntries())]
        depth = self._depth_of_phase(phase)
        return (
            _one_task_per_rank((0,), phase, WriteManifest())
            if depth < 0
            else _one_task_per_rank(ranks, phase, DigestDirectoriesOfDepth(depth))
        )

    def _root_walk_tasks(self) -> Iterator[NewTask]:
        """Yield the tasks that start the walk of all roots (pairs of source and target): one task for each root."""
        yield from map(self._root_walk_task, range(len(self._job.roots)))

    def _root_walk_task(self, number: int) -> NewTask:
        """Return the task that starts the walk of root (pair of source and target) ``number``."""
        root = self._job.roots[number]
        source_id = ItemIdentity(self._mount_codes[number][0], root.source_id[1])
        if self._job.listed:
            from pcopy.tasks.directories.copy_listed import CopyListedPaths

            return NewTask(int(Phase.COPY), encode_task(CopyListedPaths(number)), SCAN_COST, True, 0)
        from pcopy.tasks.directories.scan_dir import ScanDir

        if not root.item:
            return NewTask(int(Phase.COPY), encode_task(ScanDir(number, b"", source_id, None)), SCAN_COST, True)
        return self._task_for_single_items(number, root.item, 1)

    def _task_for_single_items(self, number: int, names: bytes, count: int) -> NewTask:
        """Return the task that examines single items in the source directory of root (pair of source and target)
        ``number``.

        Args:
            names: the names of the items, joined by slashes.
            count: the number of names.
        """
        from pcopy.tasks.directories.scan_dir import ScanNames

        root, (source_mount, target_mount) = self._job.roots[number], self._mount_codes[number]
        source_id = ItemIdentity(source_mount, root.source_id[1])
        target_id = ItemIdentity(target_mount, root.target_id[1]) if self._job.copies else NO_DIRECTORY_IDENTITY
        place = Place(number, b"", source_id, target_id, False, False)
        return NewTask(
            int(Phase.COPY), encode_task(ScanNames(place, names, 0)), max(SCAN_COST, count * CALL_COST), True
        )

    def _common_top_directory_task(self) -> Iterator[NewTask]:
        """Yield a task that records the directory at the top of a data set of several sources, for the signature.

        Its entries are the sources. No directory of the source corresponds to it, so no scan finds it. Yield nothing if
        there is only one source.
        """
        from pcopy.tasks.sign.digest_level import SignatureEntriesNote

        if self._job.copies and len(self._job.roots) > 1:
            size = self._rank.job_item_hasher.algorithm.digest_size
            root = SignatureEntries(0, b"", b"", b"d", pack_numbers([0]), bytes(size), 0)
            owner = rank_digesting_directory(b"", self._rank.size)
            yield NewTask(int(Phase.SIGN), encode_task(SignatureEntriesNote((root,))), 0, owner=owner)

    def _depth_of_phase(self, phase: int) -> int:
        """Return the depth of the directories whose digests ``phase`` computes. The top has depth 0.

        -1 means the last phase, which writes the manifest.
        """
        return self._depth_of_deepest_directory() - (phase - Phase.LEVEL)

    def _depth_of_deepest_directory(self) -> int:
        """Return the depth of the deepest directory of the copied data set; the top has depth 0."""
        from pcopy.tasks.sign.digest_level import UnsentSignatureEntries

        return self._rank.shared_instance(UnsentSignatureEntries).deepest_level

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        """Return the next phase after ``phase`` that has work; None if there is none, so that the job ends.

        Args:
            totals: the counters over all ranks (``JobCounters``) at the end of ``phase``.
        """
        sums = JobCounters(*totals)
        options, copy_options = self._job.options, self._job.copy_options
        if phase >= Phase.SIGN:
            last = Phase.LEVEL + self._depth_of_deepest_directory() + bool(options.manifest)
            return phase + 1 if phase < last else None
        repaired = bool(sums.for_repair)
        due = {
            Phase.LINK: sums.for_link,
            Phase.STORE: options.sync and (sums.for_name or self._may_delete_extra_items(sums)),
            Phase.NAME: sums.for_name,
            Phase.COUNT: copy_options.max_delete >= 0 and self._may_delete_extra_items(sums),
            Phase.DELETE: self._may_delete_extra_items(sums) and (sums.to_delete or copy_options.max_delete < 0),
            Phase.AGAIN: sums.for_again,
            Phase.FINISH: sums.for_finish,
            Phase.SEAL: sums.for_seal,
            Phase.SYNC: options.sync,
            Phase.VERIFY: copy_options.verify,
            Phase.REPAIR: repaired,
            Phase.REPAIR_LINK: repaired,
            Phase.REPAIR_FINISH: repaired,
            Phase.REPAIR_SYNC: repaired,
            Phase.REPAIR_VERIFY: repaired,
            Phase.SIGN: self._rank.collects_signature_entries and not sums.failed,
        }
        following = next(
            (int(candidate) for candidate, is_needed in due.items() if candidate > phase and is_needed), None
        )
        if following == Phase.COUNT:
            self._undeleted_before = sums.to_delete - sums.deleted
        return following

    def _may_delete_extra_items(self, sums: JobCounters) -> bool:
        """True if extra items of the target may be deleted. This class never deletes any: ``CopyDirector`` overrides
        the method.
        """
        return False

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        """Return the exit status of the job. Before, store it in ``result``, together with the counters and the reason
        to halt.

        Args:
            totals: the counters over all ranks.
            halted: why the job ended early; None if it ended by itself.
        """
        sums = JobCounters(*totals)
        status = self._determine_exit_status(sums, halted)
        self.result = JobResult(
            status, sums, halted, tuple(sorted(self._rank.shared_instance(LayoutPoliciesAndCounts).job_totals.items()))
        )
        return status

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        if halted is not None:
            is_kept = self._rank.storage is not None
            return self._unfinished_status if is_kept else exit_status_after_stop(halted) or self._unfinished_status
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return errors.EXIT_INTERNAL
        if sums.failed or sums.unsynced:
            return self.failed_status
        return self._complete(self._rank, sums)


class UnrecordedJobDirector(JobDirector):
    """Director of a job that is not recorded: after an interruption, the user repeats the command."""

    failed_status = errors.EXIT_INCOMPLETE

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        return errors.EXIT_STOPPED if halted is not None else super()._determine_exit_status(sums, halted)


class BottomUpDirector(UnrecordedJobDirector):
    """Director of programs that must process some directories after everything in them: ``prm`` and ``pchmod``.

    The first phase walks the paths, or the items of a list of paths (``--from``), and reports to rank 0 the directories
    that must wait. Each further phase processes those of one depth, the deepest first, until none is left.
    """

    def task_for_item(self, place: Place, item: bytes) -> TaskKind:
        """Return the task that processes the item ``item`` of the directory ``place``, with everything below it."""
        raise NotImplementedError

    def _root_walk_task(self, number: int) -> NewTask:
        if self._job.listed:
            from pcopy.tasks.listed.hand_out import DistributeListedPaths

            return NewTask(0, encode_task(DistributeListedPaths(self._job.listed_record_size)), SCAN_COST, True, 0)
        root = self._job.roots[number]
        identity = ItemIdentity(self._mount_codes[number][0], root.source_id[1])
        place = Place(number, b"", identity, NO_DIRECTORY_IDENTITY, False, False)
        return NewTask(0, encode_task(self.task_for_item(place, root.item)), SCAN_COST, True)

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        from pcopy.tasks.listed.deepest_first import SpawnDeepestDirectoryTasks

        return (
            super().first_tasks_of_phase(phase)
            if phase == 0
            else [NewTask(phase, encode_task(SpawnDeepestDirectoryTasks()), 0, owner=0)]
        )

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        from pcopy.tasks.listed.deepest_first import DeferredDirectories

        return None if self._rank.shared_instance(DeferredDirectories).is_empty else phase + 1


class CopyDirector(JobDirector):
    """Director of ``pcopy``: the object on rank 0 that chooses the phases of the job, their first tasks, and the exit
    status.

    With ``--delete``, extra items (those of the target that the source lacks) are deleted only if no item has failed,
    and only if there are no more than ``--max-delete`` of them.
    """

    failed_status = errors.EXIT_INCOMPLETE

    def _root_walk_tasks(self) -> Iterator[NewTask]:
        """Yield the tasks that start the walk of the roots (pairs of source and target).

        Roots that are single items of the same directory, are copied to the same directory, and keep their names share
        tasks of up to ``NAMES_PER_BATCH`` names. Such a task has the number of its first root; the other roots are
        found by name (``SourceAndTargetDirectories.root_of_single_file``). Each other root has a task of its own.
        """
        roots = self._job.roots
        if self._job.copy_options.compresses_or_decompresses_files or self._job.listed:
            yield from super()._root_walk_tasks()
            return
        groups: dict[tuple[bytes, bytes] | int, list[int]] = {}
        for number, root in enumerate(roots):
            is_renamed = not root.item or root.item != root.name
            groups.setdefault(number if is_renamed else (root.source, root.target), []).append(number)
        for numbers in groups.values():
            for start in range(0, len(numbers), NAMES_PER_BATCH):
                part = numbers[start : start + NAMES_PER_BATCH]
                names = pack_names([roots[number].item for number in part])
                yield (
                    self._root_walk_task(part[0])
                    if len(part) == 1
                    else self._task_for_single_items(part[0], names, len(part))
                )

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        following = super().next_phase(phase, totals)
        sums = JobCounters(*totals)
        is_over = phase < Phase.DELETE and (following is None or following > Phase.DELETE)
        is_empty = phase == Phase.DELETE and not sums.deleted
        if self._job.copy_options.delete and (is_over or is_empty) and not self._may_delete_extra_items(sums):
            nothing = "nothing more was deleted" if sums.deleted else "nothing was deleted"
            self._rank.report_failures_and_notices((), (f"{nothing}: {self._reason_not_deleted(sums)}",))
        return following

    def _may_delete_extra_items(self, sums: JobCounters) -> bool:
        return self._job.copy_options.delete and not (sums.failed or self._exceeds_max_delete(sums))

    def _exceeds_max_delete(self, sums: JobCounters) -> bool:
        """True if the target has more extra items (which the source lacks) than ``--max-delete`` allows.

        Extra items that earlier runs of the job have deleted count, too.
        """
        return 0 <= self._job.copy_options.max_delete < sums.to_delete

    def _reason_not_deleted(self, sums: JobCounters) -> str:
        """Return the reason why nothing, or nothing more, was deleted: failed items, or too many extra items."""
        if sums.failed:
            return f"{count_with_noun(sums.failed, 'item has', 'items have')} failed"
        items = count_with_noun(sums.to_delete - sums.deleted, "item", "items")
        earlier = f" and earlier runs of the job have deleted {sums.deleted:,}" if sums.deleted else ""
        return (
            f"the source lacks {items}{earlier}, which is more than --max-delete {self._job.copy_options.max_delete:,}"
        )

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        if halted is None:
            self._remove_leftover_temporary_files()
        status = super()._determine_exit_status(sums, halted)
        return self.failed_status if status == errors.EXIT_OK and self._exceeds_max_delete(sums) else status

    def _remove_leftover_temporary_files(self) -> None:
        """Remove temporary files of earlier runs of this job from the target directory, if a root is a single item.

        In other directories, the task that sets the final metadata of the directory removes them; this directory has no
        such task. If several roots are single items, they have the same target directory.
        """
        number = next((number for number, root in enumerate(self._job.roots) if root.item), None)
        if number is None:
            return
        try:
            problem_text = self._rank.remove_leftover_files(self._rank.targets[number].open(b""))
            text = problem_text and problem_text.strerror
        except Problem as problem:
            text = f"temporary files may be left in the destination: {problem.operation}: {problem.strerror}"
        if text:
            self._rank.report_failures_and_notices((), (text,))
