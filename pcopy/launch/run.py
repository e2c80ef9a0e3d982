"""One job from its command line to its exit status, on forked ranks or on ranks that a launcher has started.

Rules: if a job is refused (``RequestRefused``), nothing is changed, one rank prints the reason, and all ranks end with
status 2. Only rank 0 writes to standard output. All functions here are called on every rank that a launcher has
started, or in the single process if the ranks are forked later. "Collective" means that all ranks must call a function.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from pcopy.errors import (
    EXIT_INCOMPLETE,
    RESOURCE_EXCEPTIONS,
    JobAborted,
    RequestRefused,
    ResourceUnavailable,
    resource_error_text,
)
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.choose import backend_name, free_threading_notice
from pcopy.fsio.durable import boot_ids_of_job
from pcopy.jobs.lifecycle import CheckpointSettings, options_as_primitives, options_from_primitives, resume_command
from pcopy.jobs.rank_store import wait_until_job_is_visible
from pcopy.launch.group import RankGroup, backends_text, first_ranks_of_hosts, run_on_all_ranks, run_on_rank_0
from pcopy.launch.interrupts import interrupted_line
from pcopy.launch.mounts import (
    MountsBelowRoots,
    agree_on_mounts,
    check_targets_are_same_on_all_hosts,
    open_source_and_target_directories,
)
from pcopy.launch.rank import RankSetup
from pcopy.launch.tool import JobResult, PreparedJob, Tool, ToolEntryPoint
from pcopy.launch.watch.signals import StoppedBeforeStart, StopSignalHandler
from pcopy.launch.watch.watchdog import NoticePipe
from pcopy.report.bar import open_progress_screen
from pcopy.report.screen import ProgressScreen
from pcopy.report.streams import print_error, report_refusal
from pcopy.report.unexpected import missing_package_text
from pcopy.tasks.base.both_sides import SourceAndTargetDescriptors
from pcopy.tasks.base.job import Job, ProgramOptions, Root

if TYPE_CHECKING:
    from pcopy.launch.recording import JobRecorders

JOB_FILE_VISIBLE_TIMEOUT = 3.0
"""Maximum seconds until other hosts see the file that rank 0 has created in the job directory. If they do not, the job
is refused.
"""


class RankStarter(RankGroup):
    """Interface of the two ways to start the ranks of a job: by forking this process, or by a launcher (mpiexec, srun),
    which has started them already.
    """

    def exchange_rank_descriptions(self, words: Sequence[str]) -> None:
        """Let all ranks send each other their descriptions (version of pcopy, host, command line), which are then in
        ``descriptions``. Raise ``RequestRefused`` on all ranks if they do not all run the same version of pcopy with
        the command line arguments ``words``.
        """

    def number_of_ranks(self, asked: int) -> int:
        """Return the number of ranks. ``asked`` is the number that the user wants; 0: the user gave none. Raise
        ``RequestRefused`` if that many ranks cannot be started.
        """
        raise NotImplementedError

    def start_ranks(self, size: int, program: str) -> tuple[Any, NoticePipe | None]:
        """Start ``size`` ranks as processes, if a launcher has not done so already. Return, in each process, the
        transport of its rank, and the pipe by which forked ranks send messages to rank 0 (None under a launcher).
        ``program`` is the name of the program.
        """
        raise NotImplementedError

    def run_rank(self, setup: RankSetup) -> JobResult:
        """Run this rank of the job and return the result. A forked rank other than 0 exits in this call. Raise
        ``JobAborted`` if a rank failed, and ``ResourceUnavailable`` if the system refused this rank a resource.
        """
        raise NotImplementedError

    def end_failed_job(self, abort: JobAborted | ResourceUnavailable, tool: Tool, advise: Callable[[], None]) -> None:
        """Print why the job failed, call ``advise``, which prints what the user can do, and end all ranks. ``abort`` is
        the exception that has ended the job on this rank.
        """
        raise NotImplementedError

    def wait_until_ranks_may_exit(self) -> None:
        """Wait until all ranks have called this, so that each may exit. Called after rank 0 has printed the result of
        the job. Collective: all ranks must call it. Forked ranks need no such wait.
        """


class _JobSentToAllRanks(NamedTuple):
    """The job and its settings as rank 0 has sent them to all ranks.

    Fields:
    - ``job``: the job.
    - ``checkpoint``: how the job is recorded.
    - ``size``: number of ranks.
    - ``in_flight``: number of operations that each rank performs at the same time; 0: automatic.
    - ``collects_report``: True if each rank must collect the statistics of ``--report``.
    """

    job: Job
    checkpoint: CheckpointSettings
    size: int
    in_flight: int
    collects_report: bool


def run_job(command: ToolEntryPoint, words: Sequence[str], ranks: RankStarter) -> int:
    """Run the job of the command line arguments ``words`` on ``ranks``; return the exit status on which all ranks
    agree.
    """
    signals = StopSignalHandler()
    if ranks.rank == 0:
        signals.last_message = partial(interrupted_line, command.tool.name)
    prepared: list[PreparedJob] = []  # filled on rank 0 only
    try:
        ranks.exchange_rank_descriptions(words)
        run_on_all_ranks(ranks, backend_name)
        boot_ids_of_job.update(hello.machine for hello in ranks.descriptions)
        run_on_rank_0(ranks, lambda: prepared.append(_prepare_job(command, words, ranks)))
        return _run_prepared_job(command.tool, prepared[0] if prepared else None, ranks, signals)
    except (RequestRefused, StoppedBeforeStart) as refusal:
        status = max(ranks.gather(refusal.status))
        if ranks.rank == 0:
            report_refusal(command.tool.name, refusal, words)
            if prepared and isinstance(refusal, StoppedBeforeStart):
                prepared[0].print_resume_advice()
        ranks.wait_until_ranks_may_exit()
        return int(status)


def _prepare_job(command: ToolEntryPoint, words: Sequence[str], ranks: RankStarter) -> PreparedJob:
    """On rank 0: read the command line arguments ``words``, and return the job that they describe, prepared so far that
    the number of ranks is known. Raise ``RequestRefused``.
    """
    try:
        preparation = command.prepare(words)
        preparation.command_line = words
        preparation.host_count = len({(*hello.place, hello.process_namespace) for hello in ranks.descriptions})
    except (
        ImportError
    ) as error:  # A missing package is reported like a refused request, so that all ranks end in order.
        if text := missing_package_text(error):
            raise RequestRefused(text) from None
        raise
    ranks.number_of_ranks(preparation.ranks)
    return preparation


def _run_prepared_job(
    tool: Tool, preparation: PreparedJob | None, ranks: RankStarter, signals: StopSignalHandler
) -> int:
    """Run a job that was prepared on rank 0; return the exit status. ``preparation`` is None on all other ranks."""
    job, keeping, size, in_flight, gathers = _send_job_to_all_ranks(preparation, ranks, signals)
    roots = run_on_all_ranks(
        ranks,
        partial(
            open_source_and_target_directories,
            job,
            compare_devices=ranks.descriptions[ranks.rank].place == ranks.descriptions[0].place,
        ),
    )
    job = _job_with_mounts(tool, job, roots, ranks)
    if preparation and preparation.job_directory:
        preparation.job_directory.record_mounts(job.mounts)
    with ExitStack() as stack:
        try:
            _create_job_directory(preparation, keeping, ranks, signals)
            opened = run_on_rank_0(
                ranks, lambda: preparation and _open_progress_screen_and_recorders(tool, preparation, stack, signals)
            )
            screen, recording = opened or (None, None)
            if not screen:
                os.umask(0o077)  # The preparation has done the same on rank 0.
            signals.install_handlers()
            sys.stderr.flush()  # A forked rank would inherit buffered text, and print it again.
            transport, notices = ranks.start_ranks(size, tool.name)
        except (RequestRefused, StoppedBeforeStart):
            if preparation and preparation.job_directory:
                preparation.job_directory.remove_if_created_by_this_run()
            raise
        hosts = [hello.host for hello in ranks.descriptions] if len(ranks.descriptions) > 1 else []
        first = first_ranks_of_hosts(ranks.descriptions)
        setup = RankSetup(tool, job, keeping, transport, roots, first, hosts, signals, notices, in_flight, gathers)
        if transport.rank == 0 and preparation and screen:
            setup = _rank_0_setup(setup, preparation, screen, recording, ranks)
        try:
            ended = ranks.run_rank(setup)
        except (JobAborted, ResourceUnavailable) as abort:
            if recording:
                recording.record_end_after_rank_failure(abort.status)
            stack.close()
            ranks.end_failed_job(abort, tool, partial(_print_resume_advice, tool, preparation, keeping))
            return abort.status
        status = ended.status
    if preparation:
        status = _report_end_of_job(tool, preparation, ended, size)
        if recording:
            recording.end(preparation, ended, status)
    ranks.wait_until_ranks_may_exit()
    signals.ignore_stop_signals()
    return status


def _message_after_second_sigint(tool: Tool, preparation: PreparedJob, screen: ProgressScreen) -> str:
    """Return what to print on standard error when a second SIGINT ends the job at once."""
    before = screen.clearing_sequence or ("\n" if sys.stderr.isatty() else "")  # The terminal shows ^C.
    return f"{before}{tool.name}: ended at once by a second SIGINT; {preparation.state_after_second_sigint}\n"


def _open_progress_screen_and_recorders(
    tool: Tool, preparation: PreparedJob, stack: ExitStack, signals: StopSignalHandler
) -> tuple[ProgressScreen, JobRecorders | None]:
    """On rank 0: return the object that shows progress on the terminal, and the recorders of ``--metrics`` and
    ``--report`` (None if there are none). Raise ``RequestRefused`` if a file cannot be created.

    ``stack`` closes the screen at the end, and removes the created files if the job is refused. ``signals`` gets the
    message for a second SIGINT.
    """
    output_options, stages = preparation.output, tool.stages_of_job(preparation.job)
    screen = stack.enter_context(closing(open_progress_screen(tool.name, stages, output_options, sys.stderr)))
    stack.push(partial(_remove_created_files, screen))
    signals.last_message = partial(_message_after_second_sigint, tool, preparation, screen)
    if not (output_options.metrics or output_options.reports):
        return screen, None
    from pcopy.launch.recording import JobRecorders

    return screen, JobRecorders(output_options)


def _remove_created_files(screen: ProgressScreen, kind: object, error: BaseException | None, trace: object) -> None:
    """Remove the files that ``screen`` has created, if ``error``, which ends the job, is a refusal or an early stop.
    Called by an ``ExitStack``, hence the unused arguments ``kind`` and ``trace``.
    """
    if isinstance(error, (RequestRefused, StoppedBeforeStart)):
        screen.remove_new_files()


def _rank_0_setup(
    setup: RankSetup,
    preparation: PreparedJob,
    screen: ProgressScreen,
    recording: JobRecorders | None,
    ranks: RankStarter,
) -> RankSetup:
    """On rank 0: print on ``screen`` that the job begins, and return a copy of ``setup`` with the fields that only rank
    0 has, such as the sink for progress and failures.

    ``recording`` has the recorders of ``--metrics`` and ``--report``; None if there are none.
    """
    screen.job_name = preparation.job.name if preparation.job_directory else None
    screen.truncate_output_files()
    _report_backends(screen, preparation, ranks)
    preparation.print_job_start_notices()
    sink = recording.begin_recording(screen, setup, preparation, ranks) if recording else screen
    setup = setup._replace(
        sink=preparation.job_event_sink(sink),
        complete=preparation.complete_job,
        job_directory=preparation.job_directory,
    )
    if not preparation.output.quiet:
        setup = setup._replace(on_control=screen.report_changed_limits)
    if setup.job_directory and setup.hosts and not preparation.output.quiet:
        # When a rank is lost, launchers kill all ranks immediately, so the advice must be printed before.
        setup = setup._replace(resume_advice=f"if ranks are lost: {resume_command(setup.checkpoint.directory)}")
    return setup


def _send_job_to_all_ranks(
    preparation: PreparedJob | None, ranks: RankStarter, signals: StopSignalHandler
) -> _JobSentToAllRanks:
    """Complete the preparation of the job on rank 0, and send the job to all ranks; return it. Collective: all ranks
    must call it.

    This also installs the handlers of signals that stop the job in order, if the job is recorded or was started by a
    launcher.
    """
    if ranks.broadcast(preparation is not None and preparation.job_directory is not None):
        signals.install_handlers()
        ranks.gather(None)  # a barrier: all ranks handle signals before the job is prepared
    begun = ranks.broadcast(run_on_rank_0(ranks, lambda: _complete_preparation(preparation, ranks, signals)))
    size, in_flight, gathers, job, keeping = begun
    if len(ranks.descriptions) > 1:
        # A signal must not kill one rank during collective calls while the others handle it.
        signals.install_handlers()
    roots = tuple(Root(**root) for root in job["roots"])
    options, program = options_from_primitives(job["options"]), None
    if job["program"] is not None:
        name, values = job["program"]
        program = next(each for each in get_args(ProgramOptions) if each.__name__ == name)(*values)
    job = Job(**{**job, "roots": roots, "options": options, "program": program})
    return _JobSentToAllRanks(job, CheckpointSettings(**keeping), size, in_flight, gathers)


def _complete_preparation(
    preparation: PreparedJob | None, ranks: RankStarter, signals: StopSignalHandler
) -> tuple[int, int, bool, Any, Any]:
    """On rank 0: complete the preparation of the job, now that the number of ranks is known. Return the fields of
    ``_JobSentToAllRanks`` as numbers, strings and containers, which can be sent to all ranks, in the order size,
    in_flight, collects_report, job, checkpoint.
    """
    assert preparation is not None
    size = ranks.number_of_ranks(preparation.ranks)
    begin = partial(preparation.complete_preparation, size)
    signals.run_unless_stopped(begin) if preparation.job_directory else begin()
    job = preparation.job
    primitives = {**job._asdict(), "roots": [root._asdict() for root in job.roots]}
    primitives["options"] = options_as_primitives(job.options)
    primitives["program"] = None if job.program is None else (type(job.program).__name__, tuple(job.program))
    return (
        size,
        preparation.in_flight,
        bool(preparation.output.reports),
        primitives,
        preparation.checkpoint_settings._asdict(),
    )


def _job_with_mounts(tool: Tool, job: Job, roots: Sequence[SourceAndTargetDescriptors], ranks: RankStarter) -> Job:
    """Return the job with the mounts in its sources and destination, after checking that all hosts see the same mounts
    and the same destination. Collective: all ranks must call it.
    """
    with closing(MountsBelowRoots(job, roots, targets=tool.writes_to_targets)) as mounts:
        job = job._replace(mounts=agree_on_mounts(job, mounts, ranks))
        if tool.writes_to_targets and not job.options.dry_run:  # This check creates a file.
            check_targets_are_same_on_all_hosts(ranks, mounts, job, roots[0].target)
    return job


def _create_job_directory(
    preparation: PreparedJob | None, keeping: CheckpointSettings, ranks: RankStarter, signals: StopSignalHandler
) -> None:
    """Create the job directory if that must be done before the first task, and check that each host sees it.
    Collective: all ranks must call it. Raise ``RequestRefused``, or ``StoppedBeforeStart`` after a signal.

    ``preparation`` is the prepared job, on rank 0 only; ``keeping`` says how the job is recorded.
    """
    if not keeping.durable_at_start:
        return
    kept = preparation.job_directory if preparation else None

    def create() -> None:
        signals.install_handlers()
        assert kept is not None
        kept.create_durably()
        signals.raise_if_stopped()

    def look() -> None:
        if ranks.rank in first_ranks_of_hosts(ranks.descriptions)[1:]:
            wait_until_job_is_visible(keeping, JOB_FILE_VISIBLE_TIMEOUT)

    run_on_rank_0(ranks, create)
    run_on_all_ranks(ranks, look)


def _report_backends(screen: ProgressScreen, preparation: PreparedJob, ranks: RankStarter) -> None:
    """Warn if hosts use different backends (code in C or in Python that performs the system calls), because the Python
    backend is slower, and print a notice if a free-threaded Python cannot use the C backend. With -v, print which one
    is used.
    """
    if preparation.output.quiet:
        return
    if notice := free_threading_notice():
        screen.receive_notice(notice)
    text = backends_text(ranks.descriptions)
    if ";" in text:
        screen.receive_notice(f"warning: hosts use different backends, and the Python backend is slower: {text}")
    elif screen.is_verbose:
        screen.receive_notice(text)


def _print_resume_advice(tool: Tool, preparation: PreparedJob | None, keeping: CheckpointSettings) -> None:
    """Print how to resume the job after a failure, if it was recorded. ``preparation`` is None on ranks other than 0;
    ``keeping`` says how the job is recorded.
    """
    if preparation:
        preparation.print_resume_advice()
    elif keeping.directory and os.path.lexists(os.path.join(keeping.directory, b"job")):
        print_error(tool.name, f"to go on: {resume_command(keeping.directory)}")


def _report_end_of_job(tool: Tool, preparation: PreparedJob, ended: JobResult, size: int) -> int:
    """Print the result ``ended`` of the job, which ran on ``size`` ranks; return the exit status. If the result cannot
    be printed, return a status other than 0.
    """
    try:
        return preparation.report_job_result(ended, size)
    except RESOURCE_EXCEPTIONS as error:
        print_error(tool.name, f"cannot report how the job ended: {resource_error_text(error)}")
        return max(ended.status, EXIT_INCOMPLETE)
