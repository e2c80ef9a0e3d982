"""ReportFailures: rank 0 hears of what failed anywhere.

The notes are held to the end of the job, since failed items are left to do. When the job is resumed, each of these
items no longer counts as failed, and is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.kernel.columns import pack_names
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.job import Failure
from pcopy.tasks.base.kind import Gone, Kind, Left, Note
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, RankSet
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place, Retry


class ReportFailures(Note, code=70, doing="telling what has failed"):
    """Tells rank 0 of failures: (path, operation, errno, message) each, with what a resumed job does about it.

    ``unknown`` are extended attributes that a file system doesn't know, each with the text of a notice, which is told
    once however many ranks meet it, and counts as a warning. ``once`` are notices of what counts already.
    """

    failures: tuple[tuple[bytes, str, int, str], ...]
    notices: tuple[str, ...]
    retries: tuple[Retry, ...]
    unknown: tuple[tuple[str, str], ...] = ()
    once: tuple[tuple[str, str], ...] = ()

    def readdress(self, task: Task, ranks: int) -> Task:
        """Tried from the beginning: names of one inode must be found before the phase in which they are linked."""
        return task._replace(phase=int(Phase.COPY))

    def held(self) -> Iterator[Kind]:
        return (decode(retry.task) for retry in self.retries if retry.task)

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        for again in self.held():
            yield from again.leftovers(first=first)

    def tell(self, task: Task, gone: Gone) -> None:
        for retry in self.retries:
            if retry.task and retry.phase < Phase.REPAIR:
                decode(retry.task).tell(task._replace(phase=int(Phase.COPY)), gone)

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        """What is tried instead is told by the same note: so the directories that it goes to are finished once more."""
        retries = tuple(each for retry in self.retries for each in _mended(retry, task, gone))
        yield task._replace(payload=encode(self._replace(retries=retries)))

    def run(self, rank: Rank, result: Result) -> None:
        if result.id[0] < rank.job.run:
            _try_again(self.retries, rank, result)
            return
        if self.failures:
            result.hold()
        told = rank.own(ToldOnce)
        unknown = [text for name, text in self.unknown if name not in told]
        told.update(name for name, _ in self.unknown)
        result.count(counts.WARNINGS, len(unknown))
        once = [text for key, text in self.once if key not in told]
        told.update(key for key, _ in self.once)
        rank.tell([Failure(*failure) for failure in self.failures], [*self.notices, *unknown, *once])


def _mended(retry: Retry, task: Task, gone: Gone) -> Iterator[Retry]:
    """What did not verify is copied anew, in REPAIR: no name may become a link to the copy that is there."""
    is_lost = retry.place is not None and gone.has(retry.place)
    kept = retry._replace(counted=()) if is_lost else retry
    if retry.task:
        again = decode(retry.task)
        gathers = gone.finds and retry.phase < Phase.REPAIR and again.unmade is not None
        if gathers or any(map(gone.has, again.places())):
            kept = kept._replace(task=b"")
            for one in again.reduced(task._replace(payload=retry.task, phase=retry.phase), gone):
                yield Retry(one.payload, one.phase)
    if kept.task or kept.counted:
        yield kept


class ToldOnce(RankSet[str]):
    """What rank 0 has told the user once, however often it is met: an attribute, a reason."""


def _try_again(retries: tuple[Retry, ...], rank: Rank, result: Result) -> None:
    """Names of one directory are tried together, so that they fail together if they do: in one note, not in many."""
    from pcopy.tasks.directories.scan_dir import ScanNames

    names: dict[tuple[Place, int, int], list[bytes]] = {}
    is_next = result.id[0] + 1 == rank.job.run  # else a run between the two may have made something, and not told
    for failed in retries:
        for counter, number in failed.counted:
            result.count(counter, -number, failed.place)
        if not failed.task:
            continue
        retry, phase = decode(failed.task), max(failed.phase, result.phase)
        if failed.untouched and is_next:
            retry = retry.begun_now((rank.job.run, rank.job.resumed))
        if isinstance(retry, ScanNames):
            names.setdefault((retry.place, retry.attempt, phase), []).append(retry.names)
        else:
            _again(retry, rank, result, phase)
    for (place, attempt, phase), each in names.items():
        _again(ScanNames(place, pack_names(each), attempt), rank, result, phase)


def _again(retry: Kind, rank: Rank, result: Result, phase: int) -> None:
    from pcopy.tasks.directories.finish_dir import finish_again

    retry.try_again(rank, result, phase)
    for place in retry.puts_into():
        finish_again(rank, result, place, phase)
