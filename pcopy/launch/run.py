"""One job from its command line to its exit status, on ranks that are forked here or were started by a launcher.

Rules: a refusal touches nothing, is told by one rank, and ends all of them with status 2. Only rank 0 writes to
standard output. Steps that a launcher's ranks do together are done by the one process alone where ranks are forked
later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.errors import HINDRANCES, INCOMPLETE, Hindered, JobAborted, Refused, hindrance
from pcopy.fsio.durable import boots_of_job
from pcopy.fsio.kernel.choose import kernel_name
from pcopy.jobs.lifecycle import Keeping, options_as_primitives, options_from_primitives, resuming
from pcopy.jobs.rank_store import check_shared
from pcopy.launch.group import Group, kernels, leaders, on_all, on_root
from pcopy.launch.mounts import Mounts, agree_on_mounts, open_roots, show_same_targets
from pcopy.launch.rank import RankSetup
from pcopy.launch.tool import Command, Ended, Preparation, Tool
from pcopy.launch.watch.signals import StoppedBefore, StopSignals
from pcopy.launch.watch.watchdog import NoticePipe
from pcopy.named import NamedTuple
from pcopy.report.bar import open_screen
from pcopy.report.screen import Screen, Telling
from pcopy.report.streams import tell
from pcopy.report.unexpected import missing_package
from pcopy.tasks.base.both_sides import RootDescriptors
from pcopy.tasks.base.job import Job, Root

if TYPE_CHECKING:
    from pcopy.launch.recording import Recording

SHARED_WITHIN = 3.0
"""Seconds after which a job's file that rank 0 has made has to be seen by another host."""


class Ranks(Group):
    """How the ranks of a job are had: by forks, or from a launcher."""

    def meet(self, words: Sequence[str]) -> None:
        """All that were started run the same ``words``; raises ``Refused`` on all ranks alike."""

    def number(self, asked: int) -> int:
        """How many there will be, if the user has asked for so many (0: has not said); raises ``Refused``."""
        raise NotImplementedError

    def start(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        """Each rank is a process from now on: its transport, and what leads to rank 0."""
        raise NotImplementedError

    def work(self, setup: RankSetup) -> Ended:
        """Runs the rank; raises ``JobAborted`` and ``Hindered``. A forked one ends in here."""
        raise NotImplementedError

    def lose(self, abort: JobAborted | Hindered, tool: Tool, advise: Callable[[], None]) -> None:
        """Tells why the job ended in disorder, and by ``advise`` what to do, and ends all ranks."""
        raise NotImplementedError

    def end(self) -> None:
        """Rank 0 has told how the job ended: all may end."""


class _Begun(NamedTuple):
    """The job as it is on all ranks, how many they are, what the user wants each to keep under way, and whether each is
    to gather what a report tells."""

    job: Job
    keeping: Keeping
    size: int
    in_flight: int
    gathers: bool


def run(command: Command, words: Sequence[str], ranks: Ranks) -> int:
    """Runs the job, on this process's ranks; returns the exit status on which all ranks agree."""
    signals = StopSignals()
    prepared: list[Preparation] = []  # on rank 0, from then on
    try:
        ranks.meet(words)
        on_all(ranks, kernel_name)
        boots_of_job.update(hello.machine for hello in ranks.hellos)
        on_root(ranks, lambda: prepared.append(_prepare(command, words, ranks)))
        return _run(command.tool, prepared[0] if prepared else None, ranks, signals)
    except (Refused, StoppedBefore) as refusal:
        status = max(ranks.gather(refusal.status))
        if ranks.rank == 0:
            tell(command.tool.name, refusal)
            if prepared and isinstance(refusal, StoppedBefore):
                prepared[0].tell_how_to_go_on()
        ranks.end()
        return int(status)


def _prepare(command: Command, words: Sequence[str], ranks: Ranks) -> Preparation:
    try:
        preparation = command.prepare(words)
        preparation.words = words
        preparation.places = len({(*hello.place, hello.processes) for hello in ranks.hellos})
    except ImportError as error:  # all ranks end in order, with one status
        if text := missing_package(error):
            raise Refused(text) from None
        raise
    ranks.number(preparation.ranks)
    return preparation


def _run(tool: Tool, preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> int:
    job, keeping, size, in_flight, gathers = _begin(preparation, ranks, signals)
    roots = on_all(
        ranks, partial(open_roots, job, compare_devices=ranks.hellos[ranks.rank].place == ranks.hellos[0].place)
    )
    job = _with_mounts(tool, job, roots, ranks)
    if preparation and preparation.kept:
        preparation.kept.note_mounts(job.mounts)
    with ExitStack() as stack:
        try:
            _store(preparation, keeping, ranks, signals)
            opened = on_root(ranks, lambda: preparation and _opened(tool, preparation.telling, stack))
            screen, recording = opened or (None, None)
            if not screen:
                os.umask(0o077)  # as the preparation has done on rank 0
            signals.install()
            sys.stderr.flush()
            transport, notices = ranks.start(size, tool.name)
        except (Refused, StoppedBefore):
            if preparation and preparation.kept:
                preparation.kept.withdraw()
            raise
        hosts = [hello.host for hello in ranks.hellos] if len(ranks.hellos) > 1 else []
        first = leaders(ranks.hellos)
        setup = RankSetup(tool, job, keeping, transport, roots, first, hosts, signals, notices, in_flight, gathers)
        if transport.rank == 0 and preparation and screen:
            setup = _of_root(setup, preparation, screen, recording, ranks)
        try:
            ended = ranks.work(setup)
        except (JobAborted, Hindered) as abort:
            if recording:
                recording.end_in_disorder(abort.status)
            stack.close()
            ranks.lose(abort, tool, partial(_advise, tool, preparation, keeping))
            return abort.status
        status = ended.status
    if preparation:
        status = _tell_end(tool, preparation, ended, size)
        if recording:
            recording.end(preparation, ended, status)
    ranks.end()
    signals.ignore()
    return status


def _opened(tool: Tool, telling: Telling, stack: ExitStack) -> tuple[Screen, Recording | None]:
    """On rank 0: all that the user has asked to be told by. Raises ``Refused``."""
    screen = stack.enter_context(closing(open_screen(tool.name, tool.stages, telling, sys.stderr)))
    stack.push(partial(_withdraw, screen))
    if not (telling.metrics or telling.reports):
        return screen, None
    from pcopy.launch.recording import Recording

    return screen, Recording(telling)


def _withdraw(screen: Screen, kind: object, error: BaseException | None, trace: object) -> None:
    """Remove the files that were created for a job which is refused."""
    if isinstance(error, (Refused, StoppedBefore)):
        screen.withdraw()


def _of_root(
    setup: RankSetup, preparation: Preparation, screen: Screen, recording: Recording | None, ranks: Ranks
) -> RankSetup:
    """The job begins: what rank 0 alone has of it."""
    screen.begin()
    _tell_kernels(screen, preparation, ranks)
    preparation.announce()
    told = recording.begin(screen, setup, preparation, ranks) if recording else screen
    setup = setup._replace(sink=preparation.sink(told), settle=preparation.settle, kept=preparation.kept)
    if not preparation.telling.quiet:
        setup = setup._replace(steered=screen.steered)
    if setup.kept and setup.hosts and not preparation.telling.quiet:
        # Launchers kill all ranks at once when one is lost: nobody can say this then.
        setup = setup._replace(advice=f"if ranks are lost: {resuming(setup.keeping.directory)}")
    return setup


def _begin(preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> _Begun:
    """A job that is stored is stopped in order from now on."""
    if ranks.broadcast(preparation is not None and preparation.kept is not None):
        signals.install()
        ranks.gather(None)
    told = ranks.broadcast(on_root(ranks, lambda: _begun(preparation, ranks, signals)))
    size, in_flight, gathers, job, keeping = told
    if len(ranks.hellos) > 1:
        signals.install()  # while ranks meet none may be killed by what others are about to heed
    roots = tuple(Root(**root) for root in job["roots"])
    options = options_from_primitives(job["options"])
    return _Begun(Job(**{**job, "roots": roots, "options": options}), Keeping(**keeping), size, in_flight, gathers)


def _begun(preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> tuple[int, int, bool, Any, Any]:
    assert preparation is not None
    size = ranks.number(preparation.ranks)
    begin = partial(preparation.begin, size)
    signals.unless_stopped(begin) if preparation.kept else begin()
    job = preparation.job
    plain = {**job._asdict(), "roots": [root._asdict() for root in job.roots]}
    plain["options"] = options_as_primitives(job.options)
    return size, preparation.in_flight, bool(preparation.telling.reports), plain, preparation.keeping._asdict()


def _with_mounts(tool: Tool, job: Job, roots: Sequence[RootDescriptors], ranks: Ranks) -> Job:
    """The job with what is mounted below its roots, which all hosts see alike."""
    with closing(Mounts(job, roots, targets=tool.writes)) as below:
        job = job._replace(mounts=agree_on_mounts(job, below, ranks))
        if tool.writes and not job.options.dry_run:  # they do it by a file
            show_same_targets(ranks, below, job, roots[0].target)
    return job


def _store(preparation: Preparation | None, keeping: Keeping, ranks: Ranks, signals: StopSignals) -> None:
    """Stores a job that is to be in its directory from the start, and has each host show that it sees it there."""
    if not keeping.at_start:
        return
    kept = preparation.kept if preparation else None

    def create() -> None:
        signals.install()
        assert kept is not None
        kept.create()
        signals.heed()

    def look() -> None:
        if ranks.rank in leaders(ranks.hellos)[1:]:
            check_shared(keeping, SHARED_WITHIN)

    on_root(ranks, create)
    on_all(ranks, look)


def _tell_kernels(screen: Screen, preparation: Preparation, ranks: Ranks) -> None:
    """All do the same, but the one in Python more slowly: where hosts differ, the user may not have meant it."""
    if preparation.telling.quiet:
        return
    text = kernels(ranks.hellos)
    if ";" in text:
        screen.notice(f"warning: hosts have different kernels, and the one in Python is slower: {text}")
    elif screen.is_verbose:
        screen.notice(text)


def _advise(tool: Tool, preparation: Preparation | None, keeping: Keeping) -> None:
    if preparation:
        preparation.tell_how_to_go_on()
    elif keeping.directory and os.path.lexists(os.path.join(keeping.directory, b"job")):
        tell(tool.name, f"to go on: {resuming(keeping.directory)}")


def _tell_end(tool: Tool, preparation: Preparation, ended: Ended, size: int) -> int:
    try:
        return preparation.tell_end(ended, size)
    except HINDRANCES as error:
        tell(tool.name, f"the end cannot be told: {hindrance(error)}")
        return max(ended.status, INCOMPLETE)
