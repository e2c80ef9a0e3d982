"""A job under mpiexec or srun: rank 0 prepares it and tells the others.

Rules: a refusal touches nothing, is told by one rank, and ends all of them with status 2. Nobody ends before rank 0 has
told how the job ended, because launchers kill the other ranks as soon as one has ended with a status that is not 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from pcopy.cli import hosts
from pcopy.cli.command import Command, Preparation
from pcopy.cli.interrupts import raise_again
from pcopy.cli.keeping import Keeping, check_shared
from pcopy.cli.kept_job import resuming
from pcopy.cli.launcher import Launch, identify, is_killed_with_others, speaks, speaks_for_host
from pcopy.cli.local_run import begin, run_locally, store
from pcopy.cli.mounts import Place, agree_on_mounts, show_same_mounts
from pcopy.cli.mpi_library import alone, load
from pcopy.cli.rank import open_roots, run_rank
from pcopy.cli.screen import open_screen
from pcopy.cli.signals import StoppedBefore, StopSignals
from pcopy.cli.streams import tell
from pcopy.cli.unexpected import missing_package, tell_unexpected
from pcopy.errors import INTERNAL, OK, STOPPED, Hindered, JobAborted, PcopyError, PeerLost, Refused
from pcopy.fsio.preserve import Preserve
from pcopy.tasks.context import RootDescriptors
from pcopy.tasks.job import Job, Options, Root

INIT_PATIENCE = 30.0
INIT_PATIENCE_PER_RANK = 0.1
"""Seconds that MPI_Init may take: large jobs start slowly."""

SPEAKER_PATIENCE = 5.0
"""Seconds that the other ranks leave rank 0 to tell of a refusal, where its launcher would kill it with them."""

TELLING_PATIENCE = 1.0
"""Seconds for what is told, by rank 0 or by this rank, to reach the launcher, before a rank has all of them killed."""

DISORDER_PATIENCE = 5.0
"""Seconds that a rank waits for the others to end with it, before it has all of them killed."""


def run_under_launcher(words: Sequence[str], command: Command) -> int:
    """Runs this rank; returns the exit status on which all ranks agree. Raises ``PcopyError`` if it is alone."""
    raise_again()
    try:
        launch = identify(os.environ)
        transport = None if launch.alone else _join(launch, words, command)
    except Refused as refusal:
        return _leave(refusal, command)
    if transport is None:
        return run_locally(words if launch.is_plain else ["-n", "1", *words], command)
    try:
        return _run(transport, words, command)
    except KeyboardInterrupt:
        transport.abort(128 + signal.SIGINT)
    except PcopyError as error:
        tell(command.name, error)
        _abort(transport, error.status)
    except Exception as error:  # without an end of MPI the others would wait for this rank
        _abort(transport, tell_unexpected(command.name, error))
    except BaseException:
        traceback.print_exc()
        _abort(transport, INTERNAL)
    return INTERNAL


def _abort(transport: Any, status: int) -> None:
    """Has all ranks killed, after somebody has told why: launchers lose what they have not read by then."""
    sys.stderr.flush()
    time.sleep(TELLING_PATIENCE)
    transport.abort(status)


def _join(launch: Launch, words: Sequence[str], command: Command) -> Any:
    """All ranks as one transport; raises ``Refused``."""
    mpi = load(launch, words)
    patience = INIT_PATIENCE + launch.size * INIT_PATIENCE_PER_RANK
    text = (
        f"{command.name}: {launch.name} has started {launch.size} ranks, but MPI ({mpi.vendor()}) has not found all of "
        f"them in {patience:.0f} seconds: do all hosts have the same MPI?\n"
    )
    transport = mpi.initialise(patience, text if launch.rank == 0 else "")
    transport.keep()
    if transport.size != launch.size:
        size = transport.size
        if size == 1:
            transport.end()
        raise alone(launch, mpi.vendor(), size)
    return transport


def _leave(refusal: Refused, command: Command) -> int:
    """Ends this rank without the others; says why if it is rank 0, or if that has nothing against the job."""
    if not speaks(os.environ):
        if is_killed_with_others(os.environ):
            time.sleep(SPEAKER_PATIENCE)
        if not speaks_for_host(os.environ):
            return refusal.status
        refusal = Refused(f"on {socket.gethostname()}: {refusal}")
    tell(command.name, refusal)
    return refusal.status


def _run(transport: Any, words: Sequence[str], command: Command) -> int:
    told = transport.gather(tuple(hosts.introduce(words)))
    try:
        hellos = hosts.read_hellos(told)
    except Refused as refused:
        return _refuse(transport, refused, command)
    following = hosts.neighbour(hellos, transport.rank)
    if following is not None:
        transport.watch(following, hellos[following].pid)
    preparation, refusal = _prepare(transport, words, command)
    signals = StopSignals()
    if transport.broadcast(preparation is not None and preparation.kept is not None):
        signals.install()  # a job that is stored is stopped in order, whichever rank is told to
        transport.gather(None)
    plain, trouble = _begin(transport, preparation, refusal, signals)
    if plain is None:
        return _refuse(transport, trouble, command, preparation)
    job, keeping = _from_primitives(plain)
    signals.install()  # before the ranks meet for the last time: whoever works can be sure that all can be stopped
    try:
        roots = _open_roots(transport, job, hellos)
        where = job.roots[0]
        name = f".pcopy-{job.name}-probe"
        with closing(Place.of(job, roots)) as place:
            job = job._replace(mounts=agree_on_mounts(job, place, transport, hellos))
            if job.copies:  # else nothing may be written there
                hosts.show_same_directory(transport, hellos, roots[0].target, where.target, name)
                show_same_mounts(transport, hellos, place, job)
        if preparation is not None and preparation.kept is not None:
            preparation.kept.note_mounts(job.mounts)
        _store(transport, preparation, keeping, hellos, signals)
    except (Refused, StoppedBefore) as refused:
        return _refuse(transport, refused, command, preparation)
    os.umask(0o077)
    leaders, names = hosts.leaders(hellos), [hello.host for hello in hellos]
    try:
        if preparation is None:
            status = run_rank(job, transport, roots, leaders, None, signals, hosts=names, keeping=keeping).status
        else:
            with open_screen(preparation.arguments, sys.stderr) as screen:
                preparation.announce()
                kept = preparation.kept
                # Launchers kill all ranks at once when one is lost: nobody can say this then.
                advice = "" if kept is None or preparation.arguments.quiet else f"if ranks are lost: {kept.command}"
                sink, settle = preparation.sink(screen), preparation.settle
                ended = run_rank(
                    job,
                    transport,
                    roots,
                    leaders,
                    sink,
                    signals,
                    hosts=names,
                    settle=settle,
                    keeping=keeping,
                    keeper=kept,
                    advice=advice,
                )
            status = preparation.tell_end(ended, transport.size)
    except (JobAborted, Hindered) as abort:
        if isinstance(abort, Hindered):
            tell(command.name, abort)
        advice = ""
        if preparation is not None:
            preparation.tell_how_to_go_on()
        elif os.path.lexists(os.path.join(keeping.directory, b"job")):
            advice = f"{command.name}: to go on: {resuming(keeping.directory)}\n"
        if isinstance(abort, Hindered):  # the others don't know of it, and would wait
            sys.stderr.write(advice)
            _abort(transport, abort.status)
        return _end_in_disorder(transport, str(abort), abort.status, advice)
    transport.end()
    return status


def _prepare(transport: Any, words: Sequence[str], command: Command) -> tuple[Preparation | None, Refused | None]:
    """The job, which has not begun, or why there is none; neither on the other ranks."""
    if transport.rank:
        return None, None
    try:
        preparation = command.prepare(words)
        if preparation.arguments.ranks:
            raise Refused(
                f"-n {preparation.arguments.ranks}: the launcher has started {transport.size} ranks; leave -n out"
            )
    except Refused as refusal:
        return None, refusal
    except ImportError as error:  # all ranks end in order, with one status
        if text := missing_package(error):
            return None, Refused(text)
        raise
    return preparation, None


def _begin(
    transport: Any, preparation: Preparation | None, refusal: Refused | None, signals: StopSignals
) -> tuple[Any, Refused | StoppedBefore | None]:
    """The job as primitives on all ranks; None if there is none, and then rank 0 has the reason."""
    plain = None
    trouble: Refused | StoppedBefore | None = refusal
    try:
        if preparation is not None:
            begin(preparation, transport.size, signals)
            plain = _to_primitives(preparation)
    except (Refused, StoppedBefore) as refused:
        trouble = refused
    return transport.broadcast(plain), trouble


def _open_roots(transport: Any, job: Job, hellos: Sequence[hosts.Hello]) -> list[RootDescriptors]:
    """Opens the roots on all ranks; raises ``Refused`` on all of them if one can't."""
    here = hellos[transport.rank]
    trouble, roots = "", []
    try:
        roots = open_roots(job, compare_devices=here.place == hellos[0].place)
    except Refused as refusal:
        trouble = str(refusal)
    for hello, text in zip(hellos, transport.gather(trouble), strict=True):
        if text:
            raise Refused(text if hello.host in text else f"on {hello.host}: {text}")
    return roots


def _store(
    transport: Any,
    preparation: Preparation | None,
    keeping: Keeping,
    hellos: Sequence[hosts.Hello],
    signals: StopSignals,
) -> None:
    """Rank 0 stores a job that is to be in its directory from the start, and each host shows that it sees it there.

    Collective; raises ``Refused`` or ``StoppedBefore`` on all ranks alike.
    """
    if not keeping.at_start:
        return
    kept = preparation.kept if preparation else None
    status, trouble = _trouble(lambda: store(preparation, signals)) if preparation else (OK, "")
    status, trouble = transport.broadcast((status, trouble))
    if trouble:
        raise StoppedBefore(trouble) if status == STOPPED else Refused(trouble)
    if transport.rank in hosts.leaders(hellos):
        _, trouble = _trouble(lambda: check_shared(keeping, hosts.PATIENCE))
    for hello, text in zip(hellos, transport.gather(trouble), strict=True):
        if text:
            if kept:
                kept.withdraw()
            raise Refused(f"on {hello.host}: {text}")


def _trouble(action: Callable[[], object]) -> tuple[int, str]:
    """The status, and why ``action`` is refused or was stopped, or nothing."""
    try:
        action()
    except (Refused, StoppedBefore) as refusal:
        return refusal.status, str(refusal)
    return OK, ""


def _refuse(
    transport: Any,
    refusal: Refused | StoppedBefore | None,
    command: Command,
    preparation: Preparation | None = None,
) -> int:
    """Ends all ranks in order, after rank 0 has said why."""
    status = max(transport.gather(refusal.status if refusal else 0))
    if refusal is not None and transport.rank == 0:
        tell(command.name, refusal)
        if preparation is not None and isinstance(refusal, StoppedBefore):
            preparation.tell_how_to_go_on()
    transport.end()
    return int(status)


def _end_in_disorder(transport: Any, text: str, status: int, advice: str = "") -> int:
    """Ends all ranks, each with its own status if all still come here; ``text`` is told by rank 0 if that can.

    ``advice`` is what rank 0 has told besides; if that is gone, the rank that has noticed it tells it.
    """
    if transport.rank == 0:
        sys.stderr.write(text)
        sys.stderr.flush()
    try:
        missing = None if transport.end_within(DISORDER_PATIENCE) else 0
    except PcopyError as error:
        missing = error.rank if isinstance(error, PeerLost) else transport.rank
        if missing == 0:
            text += advice
    if missing is None:
        return status
    if transport.rank and missing == 0:
        sys.stderr.write(text)
    _abort(transport, status)
    return status


def _to_primitives(preparation: Preparation) -> tuple[Any, ...]:
    job = preparation.job
    roots, options = [tuple(root) for root in job.roots], tuple(job.options[1:])
    return (job.name, job.run, roots, options, tuple(job.options.preserve), job[4:], tuple(preparation.keeping))


def _from_primitives(plain: tuple[Any, ...]) -> tuple[Job, Keeping]:
    name, run, roots, options, preserve, rest, keeping = plain
    roots = tuple(Root(*root) for root in roots)
    job = Job(name, run, roots, Options(Preserve(*preserve), *options), *rest)
    return job, Keeping(*keeping)
