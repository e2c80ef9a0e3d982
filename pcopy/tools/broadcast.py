"""``pbcast``: send files to a directory of each host. All ranks load this module; rank 0 chooses the files and reports
the result.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from pcopy.engine.task import NewTask, Task
from pcopy.errors import EXIT_OK, RequestRefused, path_refused
from pcopy.jobs.paths import absolute_path
from pcopy.jobs.source_argument import cannot_examine_error
from pcopy.launch.launcher import is_started_by_launcher
from pcopy.launch.tool import JobResult
from pcopy.report.progress_gauge import ProgressStage, StagesByPhase, WorkDone
from pcopy.report.streams import print_error
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import BroadcastOptions, ForwardingProgressSink, Job, JobCounters, Options, ProgressSink
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.broadcast.directory import (
    CheckHostDirectory,
    FindHostsSharingDirectory,
    HostDirectory,
    OpenHostDirectory,
    SharedDirectories,
    SyncHostDirectory,
)
from pcopy.tasks.broadcast.send import FilesToSend, HostStreamRelay, SendFiles
from pcopy.text import count_with_noun, printable_path, shell_quoted
from pcopy.tools.arguments import BroadcastArguments
from pcopy.tools.director import UnrecordedJobDirector, UnrecordedJobTool
from pcopy.tools.final_output import UnrecordedJob
from pcopy.tools.outputs import check_output_files, refuse_replacing_sent_files
from pcopy.tools.summary import common_json_values
from pcopy.units import format_seconds, format_size

OPEN_PHASE, FIND_SHARED_TARGETS_PHASE, SEND_PHASE, SYNC_PHASE = range(4)
"""The phases in their order: each rank opens the target directory of its host; hosts that see the same target directory
(on a shared file system) are found; the files are sent; the target directories are synced.
"""

_SHOWN_COUNTERS = ("found", "files", "bytes", "skipped", "failed", "excused")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows; they are sums over all hosts."""


def _progress_of_sending(totals: JobCounters) -> WorkDone:
    """Return the progress of the phase ``send``, summed over all hosts."""
    items = totals.files + totals.skipped + totals.failed
    # Holes are not sent, so the sent bytes (``moved``) may be fewer than the sizes of the complete files (``bytes``).
    handled = max(totals.moved, totals.bytes) + totals.skipped_bytes + totals.failed_bytes
    return WorkDone(items, totals.found, handled, totals.found_bytes, totals.moved, False)


BROADCAST_STAGES: StagesByPhase = {"send": ProgressStage(_progress_of_sending)}
"""How progress is measured: there is one stage, for the phase ``send``."""


class BroadcastSink(ForwardingProgressSink):
    """Receives progress and failures on rank 0 and passes them on.

    It also holds the files and the target directory, which ``BroadcastDirector`` takes from it.
    """

    def __init__(
        self, screen: ProgressSink, files: tuple[bytes, ...], directory: bytes, needed: int, quiet: bool
    ) -> None:
        super().__init__(screen)
        self.files = files
        self.directory = directory
        self.needed_bytes = needed
        """Bytes that all files together occupy, without their holes: the space that each host needs."""
        self.quiet = quiet


class BroadcastDirector(UnrecordedJobDirector):
    """Director of ``pbcast`` (the object on rank 0 that chooses phases and their first tasks).

    The phases are OPEN_PHASE, LOOK_PHASE, SEND_PHASE and, unless ``--no-sync`` was given, SYNC_PHASE. A dry run has
    OPEN_PHASE only: it checks the directory of each host.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        rank, sink = self._rank, self._sink
        owners: Sequence[int] = rank.first_ranks
        task: TaskKind = FindHostsSharingDirectory()
        if self._job.options.dry_run:
            task = CheckHostDirectory(sink.directory, tuple(map(os.path.basename, sink.files)), sink.needed_bytes)
        elif phase == OPEN_PHASE:
            owners, task = range(rank.size), OpenHostDirectory(sink.directory)
        elif phase == SEND_PHASE:
            owners, task = (0,), SendFiles(sink.files)
        elif phase == SYNC_PHASE:
            task = SyncHostDirectory()
        return [NewTask(phase, encode_task(task), 0, owner=owner) for owner in owners]

    @property
    def _sink(self) -> BroadcastSink:
        """The receiver of progress on rank 0, which also holds the files and the target directory."""
        sink = self._rank.sink
        assert isinstance(sink, BroadcastSink)
        return sink

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        if phase == FIND_SHARED_TARGETS_PHASE and not self._sink.quiet:
            self._rank.report_failures_and_notices(
                (), self._rank.shared_instance(SharedDirectories).shared_directory_messages(self._sink.directory)
            )
        last = OPEN_PHASE if self._job.options.dry_run else SYNC_PHASE if self._job.options.sync else SEND_PHASE
        return phase + 1 if phase < last else None


class BroadcastTool(UnrecordedJobTool):
    """The program ``pbcast``. In its counters, an item is one file on one host."""

    name = "pbcast"
    writes_to_targets = (
        False  # The target directories of the hosts may differ: no probe file has to show that they are one.
    )
    stages = BROADCAST_STAGES
    done_word = "sent"
    make_director = BroadcastDirector

    def phase_name(self, phase: int) -> str:
        return ("open", "look", "send", "sync")[phase] if 0 <= phase <= SYNC_PHASE else "send"

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        """Remove incomplete files and the probe files (by which hosts with the same target directory were found), and
        close the directories, whether the job has succeeded or not.

        Args:
            rank: this rank.
            dropped_tasks, since: not needed by this program.
        """
        if rank.number == 0:
            rank.shared_instance(FilesToSend).close()
        if rank.number in rank.first_ranks:
            rank.shared_instance(HostStreamRelay).close()
        rank.shared_instance(HostDirectory).close()


BROADCAST_TOOL = BroadcastTool()
"""The only instance of ``BroadcastTool``."""


class BroadcastJob(UnrecordedJob):
    """The job of ``pbcast`` on rank 0: checks the files and the target directory, and reports the result."""

    program, stopped_text = "pbcast", "repeat the command to send all files again"

    def __init__(self, arguments: BroadcastArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if a file cannot be sent; nothing is
        modified.
        """
        super().__init__(0 if is_started_by_launcher(os.environ) else 1, 1, arguments.output, dry_run=arguments.dry_run)
        self.incomplete_text = f"not every host {'can take' if self.dry_run else 'has'} all files"
        self.arguments = arguments
        checked = [_checked_file_to_send(path) for path in arguments.files]
        self._files = tuple(path for path, _ in checked)
        _refuse_equal_names(self._files)
        self._directory = _checked_target_directory(arguments.directory)
        for given, (path, status) in zip(arguments.files, checked, strict=True):
            _refuse_link_to_file(given, os.path.join(self._directory, os.path.basename(path)), status)
        sent = {os.path.basename(path): (status.st_dev, status.st_ino) for path, status in checked}
        refuse_replacing_sent_files(self.output, sent, self._directory)
        check_output_files(self.output, (), "is sent")
        self._size = sum(status.st_size for _, status in checked)
        self._needed_bytes = sum(min(status.st_size, status.st_blocks * 512) for _, status in checked)
        options = Options(
            termination=arguments.termination,
            sync=arguments.sync,
            dry_run=arguments.dry_run,
            bwlimit=arguments.bwlimit,
        )
        self.job = Job(os.urandom(5).hex(), 1, (), options, BroadcastOptions(arguments.fsync))

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        return BroadcastSink(screen, self._files, self._directory, self._needed_bytes, self.output.quiet)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        self._hosts = len(rank.first_ranks)
        return EXIT_OK

    def print_resume_advice(self) -> None:
        print_error("pbcast", "repeat the command to send all files again")

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        return {
            **common_json_values(ended.totals, _SHOWN_COUNTERS, seconds, ranks, ended.status),
            "sources": len(self._files),
            "dry_run": self.dry_run,
            "bytes_per_second": round(_bytes_written_per_second(ended.totals, seconds)),
        }

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        sums = [f"{totals.files:,} written", f"{totals.skipped:,} skipped", f"{totals.failed:,} failed"]
        if rest := totals.found - totals.files - totals.skipped - totals.failed:
            sums.append(f"{rest:,} not reached")
        sources = count_with_noun(len(self._files), "file", "files")
        if self.dry_run:
            hosts = count_with_noun(totals.found, "host", "hosts")
            failed = f": {totals.failed:,} cannot take them" if totals.failed else ", which can take them"
            yield f"{sources} of {format_size(self._size)} would be sent to {hosts}{failed}"
            return
        yield f"{sources} to each host: {totals.found:,} begun = {' + '.join(sums)}"
        rate, ways = format_size(_bytes_written_per_second(totals, seconds)), count_with_noun(ranks, "rank", "ranks")
        written = f"{format_size(totals.bytes)} written in {format_seconds(seconds)}"
        yield f"{written}: {rate}/s on all hosts together, with {ways}"


def _bytes_written_per_second(totals: JobCounters, seconds: float) -> float:
    """Return the bytes per second that all hosts together wrote."""
    return totals.bytes / seconds if seconds > 0 else 0.0


def _checked_file_to_send(path: bytes) -> tuple[bytes, os.stat_result]:
    """Return the absolute path and the status of a regular file that can be read. Raise ``RequestRefused`` for
    anything else.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise cannot_examine_error(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        advice = f"pack it (ptar -c -f FILE.tar {shell_quoted(path)}), or copy it with pcopy to where all hosts see it"
        raise path_refused(path, f"is a directory, and pbcast sends files: {advice}", code=errno.EISDIR)
    if not stat.S_ISREG(status.st_mode):
        raise path_refused(path, "is not a regular file; put its contents into a file")
    if not os.access(path, os.R_OK):
        raise path_refused(path, "no permission to read it; check its mode", code=errno.EACCES)
    return absolute_path(path), status


def _refuse_equal_names(files: Sequence[bytes]) -> None:
    """Raise ``RequestRefused`` if two of the paths ``files`` have the same last component, or if a path is given twice.

    The last component is the name of the copy, so one copy would replace the other.
    """
    names: dict[bytes, bytes] = {}
    for path in files:
        name = os.path.basename(path)
        earlier = names.get(name)
        if earlier == path:
            raise path_refused(path, "is named twice")
        if earlier is not None:
            raise RequestRefused(
                f"{printable_path(earlier)} and {printable_path(path)} would get the same name; send them to two "
                "directories",
                path=earlier,
            )
        names[name] = path


def _refuse_link_to_file(given: bytes, target: bytes, status: os.stat_result) -> None:
    """Raise ``RequestRefused`` if ``target`` is a symbolic link to the file that is sent: the link would be replaced by
    a copy of its own target. (cp(1) refuses such a copy, too: both "are the same file".)

    Args:
        given: path of the file that is sent, as the user wrote it.
        target: path of its copy.
        status: status of the file that is sent.
    """
    with suppress(OSError):
        if os.path.islink(target) and os.path.samestat(os.stat(target), status):
            raise path_refused(
                target, f"is a symbolic link to {printable_path(given)}; remove it, or name another directory"
            )


def _checked_target_directory(path: bytes) -> bytes:
    """Return the absolute path of the target directory. Raise ``RequestRefused`` if it is no directory on the host of
    rank 0; the other hosts check it in the phase OPEN_PHASE.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise RequestRefused(
            f"{cannot_examine_error(path, error)}; the last argument must be a directory that exists on each host"
        ) from None
    if not is_directory:
        raise path_refused(path, "is not a directory; the last argument must be one that exists on each host")
    return absolute_path(path)
