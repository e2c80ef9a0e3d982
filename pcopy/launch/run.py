"""One job from its command line to its exit status, on forked ranks or on ranks that a launcher has started.

Rules: a refusal changes nothing, is reported by one rank, and ends all ranks with status 2. Only rank 0 writes to
standard output. Steps that the ranks of a launcher do together are done by the single process if ranks are forked
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
"""Seconds within which other hosts must see a job file that rank 0 created."""


class Ranks(Group):
    """How the ranks of a job are started: by forks, or by a launcher."""

    def meet(self, words: Sequence[str]) -> None:
        """Exchange the descriptions of all ranks; raise ``Refused`` on all ranks if they do not run the same
        ``words``.
        """

    def number(self, asked: int) -> int:
        """Return the number of ranks if the user has asked for ``asked`` (0: for none); raise ``Refused``."""
        raise NotImplementedError

    def start(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        """Start the ranks as processes; return the transport, and the pipe for notices to rank 0."""
        raise NotImplementedError

    def work(self, setup: RankSetup) -> Ended:
        """Run this rank; raise ``JobAborted`` or ``Hindered``. A forked rank exits in this call."""
        raise NotImplementedError

    def lose(self, abort: JobAborted | Hindered, tool: Tool, advise: Callable[[], None]) -> None:
        """Report why the job failed, call ``advise`` to print what to do, and end all ranks."""
        raise NotImplementedError

    def end(self) -> None:
        """Let all ranks exit, after rank 0 has reported how the job ended."""


class _Begun(NamedTuple):
    """The job as all ranks know it.

    Fields: the job and how it is recorded, the number ``size`` of ranks, the number of operations ``in_flight`` (0:
    automatic), and whether each rank ``gathers`` what a report needs.
    """

    job: Job
    keeping: Keeping
    size: int
    in_flight: int
    gathers: bool


def run(command: Command, words: Sequence[str], ranks: Ranks) -> int:
    """Run the job on this process's ranks; return the exit status on which all ranks agree."""
    signals = StopSignals()
    prepared: list[Preparation] = []  # filled on rank 0 only
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
    """Return the prepared job of a command line; raise ``Refused``. Only called on rank 0."""
    try:
        preparation = command.prepare(words)
        preparation.words = words
        preparation.places = len({(*hello.place, hello.processes) for hello in ranks.hellos})
    except ImportError as error:  # As a refusal it ends all ranks in order, with the same status.
        if text := missing_package(error):
            raise Refused(text) from None
        raise
    ranks.number(preparation.ranks)
    return preparation


def _run(tool: Tool, preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> int:
    """Run a prepared job (None on all ranks but 0); return the exit status."""
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
                os.umask(0o077)  # The preparation has done the same on rank 0.
            signals.install()
            sys.stderr.flush()  # A forked rank would inherit buffered text, and print it again.
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
    """Return the screen, and the recorders if there are any; raise ``Refused`` if a file cannot be created. For
    rank 0.
    """
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
    """Return the setup of rank 0, and notify the user that the job begins."""
    screen.begin()
    _tell_kernels(screen, preparation, ranks)
    preparation.announce()
    sink = recording.begin(screen, setup, preparation, ranks) if recording else screen
    setup = setup._replace(sink=preparation.sink(sink), settle=preparation.settle, kept=preparation.kept)
    if not preparation.telling.quiet:
        setup = setup._replace(steered=screen.steered)
    if setup.kept and setup.hosts and not preparation.telling.quiet:
        # When a rank is lost, launchers kill all ranks immediately, so this must be printed before.
        setup = setup._replace(advice=f"if ranks are lost: {resuming(setup.keeping.directory)}")
    return setup


def _begin(preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> _Begun:
    """Send the prepared job from rank 0 to all ranks; return it. Collective.

    From now on signals stop a recorded job in order.
    """
    if ranks.broadcast(preparation is not None and preparation.kept is not None):
        signals.install()
        ranks.gather(None)  # a barrier: all ranks handle signals before the job is prepared
    begun = ranks.broadcast(on_root(ranks, lambda: _begun(preparation, ranks, signals)))
    size, in_flight, gathers, job, keeping = begun
    if len(ranks.hellos) > 1:
        signals.install()  # A signal must not kill one rank during collective calls while the others handle it.
    roots = tuple(Root(**root) for root in job["roots"])
    options = options_from_primitives(job["options"])
    return _Begun(Job(**{**job, "roots": roots, "options": options}), Keeping(**keeping), size, in_flight, gathers)


def _begun(preparation: Preparation | None, ranks: Ranks, signals: StopSignals) -> tuple[int, int, bool, Any, Any]:
    """Complete the preparation for this number of ranks; return what all ranks must know, as primitive values.
    For rank 0.
    """
    assert preparation is not None
    size = ranks.number(preparation.ranks)
    begin = partial(preparation.begin, size)
    signals.unless_stopped(begin) if preparation.kept else begin()
    job = preparation.job
    plain = {**job._asdict(), "roots": [root._asdict() for root in job.roots]}
    plain["options"] = options_as_primitives(job.options)
    return size, preparation.in_flight, bool(preparation.telling.reports), plain, preparation.keeping._asdict()


def _with_mounts(tool: Tool, job: Job, roots: Sequence[RootDescriptors], ranks: Ranks) -> Job:
    """Return the job with the mounts below its roots, after checking that all hosts see the same."""
    with closing(Mounts(job, roots, targets=tool.writes)) as mounts:
        job = job._replace(mounts=agree_on_mounts(job, mounts, ranks))
        if tool.writes and not job.options.dry_run:  # This check creates a file.
            show_same_targets(ranks, mounts, job, roots[0].target)
    return job


def _store(preparation: Preparation | None, keeping: Keeping, ranks: Ranks, signals: StopSignals) -> None:
    """Create the job directory if that must be done before the start, and check that each host sees it. Collective."""
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
    """Warn if hosts use different backends: they do the same, but the Python backend is slower. With -v, print
    which one is used.
    """
    if preparation.telling.quiet:
        return
    text = kernels(ranks.hellos)
    if ";" in text:
        screen.notice(f"warning: hosts have different kernels, and the one in Python is slower: {text}")
    elif screen.is_verbose:
        screen.notice(text)


def _advise(tool: Tool, preparation: Preparation | None, keeping: Keeping) -> None:
    """Print how to resume the job after a failure."""
    if preparation:
        preparation.tell_how_to_go_on()
    elif keeping.directory and os.path.lexists(os.path.join(keeping.directory, b"job")):
        tell(tool.name, f"to go on: {resuming(keeping.directory)}")


def _tell_end(tool: Tool, preparation: Preparation, ended: Ended, size: int) -> int:
    """Print how the job ended; return the exit status."""
    try:
        return preparation.tell_end(ended, size)
    except HINDRANCES as error:
        tell(tool.name, f"cannot report how the job ended: {hindrance(error)}")
        return max(ended.status, INCOMPLETE)
