"""What happens between the phases of a job, and how it ends; asked at rank 0 only. And how far it is meanwhile.

Progress has stages: the copy (with all that belongs to it, up to the sync), the verification, the repair, its
verification, and the signature. Of the repair nobody knows beforehand how much it is, and of the signature only that it
goes over all items; so there is no fraction of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pcopy import errors
from pcopy.engine.messages import Halt
from pcopy.engine.task import Spawn
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.problem import Problem
from pcopy.jobs.spool import SET_ANOTHER
from pcopy.launch.tool import Ended, Settle, Tool
from pcopy.launch.watch.signals import status_of
from pcopy.report.gauge import Done, Stage, Stages
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Job, Totals, mount_codes
from pcopy.tasks.base.kind import Kind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.spreading import owner_of
from pcopy.tasks.base.values import NOWHERE, Entries, Place, pack_numbers
from pcopy.tasks.files.layouts import Layouts
from pcopy.text import counted
from pcopy.walk.listing import NAMES_AT_ONCE


def _copied(totals: Totals) -> Done:
    items = totals.copied + totals.skipped + totals.failed
    handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes
    return Done(items, totals.found, handled, totals.found_bytes, totals.moved, totals.unscanned == 0)


def _verified(totals: Totals) -> Done:
    read, items = totals.verified_bytes, totals.verified + totals.refuted
    return Done(items, totals.to_verify, read, totals.to_verify_bytes, read, True)


def _in_place(totals: Totals) -> Done:
    """The bytes of files that are there, or never will be, however many bytes have moved for them."""
    settled = totals.bytes + totals.skipped_bytes + totals.failed_bytes
    return _copied(totals)._replace(bytes=settled, final=False)


STAGES: Stages = {
    "copy": Stage(_copied, scans=True),
    "verify": Stage(_verified),
    "repair": Stage(_in_place),
    "reverify": Stage(_verified),
    "sign": Stage(_in_place, measured=False),
}
"""By the names of phases. What is only read is measured as what is copied."""


def one_stage(name: str) -> Stages:
    """Of a tool that goes through trees once, and moves nothing."""
    return {name: Stage(_gone_through, scans=True)}


def _gone_through(totals: Totals) -> Done:
    return _in_place(totals)._replace(moved=totals.bytes, final=totals.unscanned == 0)


class RepeatableTool(Tool):
    """One that keeps no jobs: whatever has stopped it, the same command goes on."""

    unfinished = errors.STOPPED
    spool_advice = SET_ANOTHER
    stages = STAGES
    durable_before: tuple[int, ...] = ()

    def first_counts(self, job: Job) -> list[int]:
        """Each path counts when it is looked at; a list is to be gone through first."""
        return list(Totals(unscanned=int(bool(job.listed))))


def _for_each(ranks: Iterable[int], phase: int, value: Any) -> list[Spawn]:
    payload = encode(value)
    return [Spawn(phase, payload, 0, owner=rank) for rank in ranks]


class JobDirector:
    """Fills ``pcopy.launch.tool.JobDirector``, with the statuses of a job that reads.

    ``settle`` is asked at the end of a job whose items are all there: it does what is left to do with them, and returns
    the status. ``unfinished`` is that of a job which ended before, unless a signal ends one that is not kept.
    """

    failed_status = errors.REFUSED
    """Of one of which items have failed."""

    def __init__(self, rank: Rank, settle: Settle, unfinished: int) -> None:
        self._rank = rank
        self._job = rank.job
        self._settle = settle
        self._unfinished = unfinished
        self._mount_codes = mount_codes(rank.job.roots)
        self.ended = Ended(errors.INTERNAL, Totals(), None)
        """A reason to halt that comes later counts no more."""
        self._counted = 0
        """What earlier runs have counted for ``to_delete`` and have not deleted, as COUNT begins."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        """What the first ranks of hosts, all ranks, or rank 0 do in this phase."""
        ranks: Sequence[int] = range(self._rank.size)
        if phase == Phase.COPY:
            return [*self._root_tasks(), *self._manifest_task()]
        if phase in (Phase.SYNC, Phase.REPAIR_SYNC, Phase.STORE):
            from pcopy.tasks.directories.sync_files import SyncFiles

            return _for_each(ranks if phase == Phase.STORE else self._rank.leaders, phase, SyncFiles(None))
        if phase in (Phase.COUNT, Phase.DELETE):
            return [self._deletion(number, phase) for number, root in enumerate(self._job.roots) if not root.item]
        return self._signing_tasks(phase) if phase >= Phase.SIGN else []

    def _deletion(self, number: int, phase: int) -> Spawn:
        from pcopy.tasks.remove.delete_extra import ExamineMounts

        place = Place(number, b"", NOWHERE, NOWHERE, False, False)
        counted = self._counted if phase == Phase.COUNT else 0
        return Spawn(phase, encode(ExamineMounts(place, counted)), SCAN_COST, True, self._rank.leaders[0])

    def _manifest_task(self) -> list[Spawn]:
        if not self._job.against:
            return []
        from pcopy.tasks.sign.manifest_lines import ReadManifest

        return _for_each((0,), int(Phase.COPY), ReadManifest())

    def _signing_tasks(self, phase: int) -> list[Spawn]:
        from pcopy.tasks.sign.digest_level import DigestLevel, SendEntries
        from pcopy.tasks.sign.manifest_lines import WriteManifest

        ranks = range(self._rank.size)
        if phase == Phase.SIGN:
            return [*self._common_root(), *_for_each(ranks, phase, SendEntries())]
        depth = self._depth(phase)
        return _for_each((0,), phase, WriteManifest()) if depth < 0 else _for_each(ranks, phase, DigestLevel(depth))

    def _root_tasks(self) -> Iterator[Spawn]:
        """Those that go through the roots."""
        yield from map(self._root_task, range(len(self._job.roots)))

    def _root_task(self, number: int) -> Spawn:
        root = self._job.roots[number]
        source_id = Identity(self._mount_codes[number][0], root.source_id[1])
        if self._job.listed:
            from pcopy.tasks.directories.copy_listed import CopyListed

            return Spawn(int(Phase.COPY), encode(CopyListed(number)), SCAN_COST, True, 0)
        from pcopy.tasks.directories.scan_dir import ScanDir

        if not root.item:
            return Spawn(int(Phase.COPY), encode(ScanDir(number, b"", source_id, None)), SCAN_COST, True)
        return self._names_task(number, root.item, 1)

    def _names_task(self, number: int, names: bytes, count: int) -> Spawn:
        """For ``count`` single items of the directory of a root."""
        from pcopy.tasks.directories.scan_dir import ScanNames

        root, (source_mount, target_mount) = self._job.roots[number], self._mount_codes[number]
        source_id = Identity(source_mount, root.source_id[1])
        target_id = Identity(target_mount, root.target_id[1]) if self._job.copies else NOWHERE
        place = Place(number, b"", source_id, target_id, False, False)
        return Spawn(int(Phase.COPY), encode(ScanNames(place, names, 0)), max(SCAN_COST, count * CALL_COST), True)

    def _common_root(self) -> Iterator[Spawn]:
        """Of several sources that are one dataset: a directory that none of them is."""
        from pcopy.tasks.sign.digest_level import EntriesNote

        if self._job.copies and len(self._job.roots) > 1:
            size = self._rank.hashing.algorithm.size
            root = Entries(0, b"", b"", b"d", pack_numbers([0]), bytes(size), 0)
            owner = owner_of(b"", self._rank.size)
            yield Spawn(int(Phase.SIGN), encode(EntriesNote((root,))), 0, owner=owner)

    def _depth(self, phase: int) -> int:
        """Of the directories that are digested in a phase; -1 for the phase after the last level."""
        return self._deepest() - (phase - Phase.LEVEL)

    def _deepest(self) -> int:
        from pcopy.tasks.sign.digest_level import FoundEntries

        return self._rank.own(FoundEntries).deepest

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = Totals(*totals)
        options = self._job.options
        if phase >= Phase.SIGN:
            last = Phase.LEVEL + self._deepest() + bool(options.manifest)
            return phase + 1 if phase < last else None
        repaired = bool(sums.for_repair)
        due = {
            Phase.LINK: sums.for_link,
            Phase.STORE: options.sync and (sums.for_name or self._may_delete(sums)),
            Phase.NAME: sums.for_name,
            Phase.COUNT: options.max_delete >= 0 and self._may_delete(sums),
            Phase.DELETE: self._may_delete(sums) and (sums.to_delete or options.max_delete < 0),
            Phase.AGAIN: sums.for_again,
            Phase.FINISH: sums.for_finish,
            Phase.SEAL: sums.for_seal,
            Phase.SYNC: options.sync,
            Phase.VERIFY: options.verify,
            Phase.REPAIR: repaired,
            Phase.REPAIR_LINK: repaired,
            Phase.REPAIR_FINISH: repaired,
            Phase.REPAIR_SYNC: repaired,
            Phase.REPAIR_VERIFY: repaired,
            Phase.SIGN: self._rank.signs and not sums.failed,
        }
        following = next((int(later) for later, wanted in due.items() if later > phase and wanted), None)
        if following == Phase.COUNT:
            self._counted = sums.to_delete - sums.deleted
        return following

    def _may_delete(self, sums: Totals) -> bool:
        return False

    def status(self, totals: tuple[int, ...], halted: Halt | None) -> int:
        sums = Totals(*totals)
        status = self._status(sums, halted)
        self.ended = Ended(status, sums, halted, tuple(sorted(self._rank.own(Layouts).of_job.items())))
        return status

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        if halted is not None:
            is_kept = self._rank.storage is not None
            return self._unfinished if is_kept else status_of(halted) or self._unfinished
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return errors.INTERNAL
        if sums.failed or sums.unsynced:
            return self.failed_status
        return self._settle(self._rank, sums)


class RepeatableDirector(JobDirector):
    """Of a job that is not kept, since there is nothing to lose: whatever has stopped it, the same command goes on."""

    failed_status = errors.INCOMPLETE

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        return errors.STOPPED if halted is not None else super()._status(sums, halted)


class LevelsDirector(RepeatableDirector):
    """Of a tool that takes lists (``--from``). The first phase begins with the paths, or goes through the list. Then
    there is one for each level of directories that wait for what is in them, the deepest first."""

    def first_task(self, place: Place, item: bytes) -> Kind:
        """The task that goes through ``item`` of the directory ``place``."""
        raise NotImplementedError

    def _root_task(self, number: int) -> Spawn:
        if self._job.listed:
            from pcopy.tasks.listed.hand_out import HandOut

            return Spawn(0, encode(HandOut(self._job.options.told)), SCAN_COST, True, 0)
        root = self._job.roots[number]
        identity = Identity(self._mount_codes[number][0], root.source_id[1])
        place = Place(number, b"", identity, NOWHERE, False, False)
        return Spawn(0, encode(self.first_task(place, root.item)), SCAN_COST, True)

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        from pcopy.tasks.listed.deepest_first import HandOutLevel

        return super().first_tasks(phase) if phase == 0 else [Spawn(phase, encode(HandOutLevel()), 0, owner=0)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        from pcopy.tasks.listed.deepest_first import DeepestFirst

        return None if self._rank.own(DeepestFirst).is_empty else phase + 1


class CopyDirector(JobDirector):
    """Nothing is deleted unless all is there that is to be copied, and none of it if it is more than may be."""

    failed_status = errors.INCOMPLETE

    def _root_tasks(self) -> Iterator[Spawn]:
        """One for each root; or one for several that are copied as names of one directory (``BothSides.root_of``)."""
        roots = self._job.roots
        if self._job.options.recodes or self._job.listed:
            yield from super()._root_tasks()
            return
        groups: dict[tuple[bytes, bytes] | int, list[int]] = {}
        for number, root in enumerate(roots):
            is_renamed = not root.item or root.item != root.name
            groups.setdefault(number if is_renamed else (root.source, root.target), []).append(number)
        for numbers in groups.values():
            for start in range(0, len(numbers), NAMES_AT_ONCE):
                part = numbers[start : start + NAMES_AT_ONCE]
                names = pack_names([roots[number].item for number in part])
                yield self._root_task(part[0]) if len(part) == 1 else self._names_task(part[0], names, len(part))

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        following = super().next_phase(phase, totals)
        sums = Totals(*totals)
        is_over = phase < Phase.DELETE and (following is None or following > Phase.DELETE)
        is_empty = phase == Phase.DELETE and not sums.deleted
        if self._job.options.delete and (is_over or is_empty) and not self._may_delete(sums):
            nothing = "nothing more was deleted" if sums.deleted else "nothing was deleted"
            self._rank.tell((), (f"{nothing}: {self._why_not(sums)}",))
        return following

    def _may_delete(self, sums: Totals) -> bool:
        return self._job.options.delete and not (sums.failed or self._are_too_many(sums))

    def _are_too_many(self, sums: Totals) -> bool:
        return 0 <= self._job.options.max_delete < sums.to_delete

    def _why_not(self, sums: Totals) -> str:
        if sums.failed:
            return f"{counted(sums.failed, 'item has', 'items have')} failed"
        items = counted(sums.to_delete - sums.deleted, "item", "items")
        before = f" and earlier runs of the job have deleted {sums.deleted:,}" if sums.deleted else ""
        return f"the source lacks {items}{before}, which is more than --max-delete {self._job.options.max_delete:,}"

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        if halted is None:
            self._remove_leftovers()
        status = super()._status(sums, halted)
        return self.failed_status if status == errors.OK and self._are_too_many(sums) else status

    def _remove_leftovers(self) -> None:
        """Single items lie in a directory that no task finishes: the same one, if there are several."""
        number = next((number for number, root in enumerate(self._job.roots) if root.item), None)
        if number is None:
            return
        try:
            left = self._rank.remove_leftovers(self._rank.targets[number].open(b""))
            text = left and left.strerror
        except Problem as problem:
            text = f"temporary files may be left in the destination: {problem.operation}: {problem.strerror}"
        if text:
            self._rank.tell((), (text,))
