"""``pcopy``: copy trees. All ranks load this module; rank 0 turns the command line into a job and reports
its result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from pcopy.engine.task import Task
from pcopy.errors import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STOPPED,
    RequestRefused,
    path_refused,
    resource_error_text,
    unwritable_directory_code,
)
from pcopy.fsio.copy_methods import keeps_times_on_close
from pcopy.jobs.directories import StoredJob, has_unfinished_job
from pcopy.jobs.earlier_jobs import EarlierJobsDecision, decide_about_earlier_jobs, jobs_superseded_by_resume
from pcopy.jobs.lifecycle import (
    FINAL_RECORD_TIMEOUT,
    CheckpointSettings,
    JobDirectory,
    new_job_directory,
    prepare_resume,
    recorded_roots_and_options,
    resume_command,
)
from pcopy.jobs.lock import RankLock
from pcopy.jobs.paths import destination_directory, positions_in_sources, resolve_sources_and_targets, target_path
from pcopy.jobs.rank_store import refuse_unsyncable_targets
from pcopy.jobs.roots import refuse_unwritable_targets
from pcopy.jobs.spool import SPOOL_ADVICE, spool_errors_as_refusal, spool_factory
from pcopy.launch.mounts import check_mounts_before_resume
from pcopy.launch.tool import JobResult, PreparedJob, Tool
from pcopy.launch.watch.signals import exit_status_after_stop
from pcopy.report.streams import print_error
from pcopy.tasks.base.codec import decode_task
from pcopy.tasks.base.job import Job, JobCounters, ProgressSink, Root
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.copying import make_visitor
from pcopy.tasks.files.chunk_ledger import remove_all_temporary_files
from pcopy.text import count_with_noun, printable_path, shell_quoted
from pcopy.tools.arguments import (
    CopyArguments,
    options_determining_result,
    options_of_resumed_job,
    refuse_changed_arguments,
)
from pcopy.tools.director import JOB_STAGES, CopyDirector
from pcopy.tools.outputs import check_output_and_signature_files, has_other_entries_than_sources, write_signature_file
from pcopy.tools.summary import (
    copy_json_summary,
    copy_summary_lines,
    filter_origins_json_values,
    halt_reason_text,
    is_only_deletion_missing,
)
from pcopy.walk.preliminary_walk import PreliminaryWalk
from pcopy.walk.visitor import DirectoryVisitor

_SUSPICIOUS_BWLIMIT = 64 << 10
"""A ``--bwlimit`` below this number of bytes per second is suspicious, and a hint about its unit is printed.

rsync counts in KiB, and the user may have meant that.
"""


def _make_visitor(rank: Rank, result: TaskResult, place: Place, attempt: int) -> DirectoryVisitor:
    """Return the object that receives the items of one directory which a task has found, and copies them.

    With ``--compress`` or ``--decompress``, it also compresses or decompresses files while they are copied.

    Args:
        rank: this rank.
        result: collects the result of the task.
        place: the directory.
        attempt: how often this run has already tried to copy these items.
    """
    if not rank.copy_options.compresses_or_decompresses_files:
        return make_visitor(rank, result, place, attempt)
    from pcopy.tasks.recode import recode_visitor  # Imported here since few jobs need it.

    return recode_visitor.recode_visitor_of_directory(rank, result, place, attempt)


class CopyTool(Tool):
    """The program ``pcopy``, or ``psync``, which is the same program under another name."""

    writes_to_targets = True
    unfinished_status = EXIT_STOPPED
    spool_advice = SPOOL_ADVICE
    stages = JOB_STAGES
    make_director = CopyDirector
    make_visitor = staticmethod(_make_visitor)

    def __init__(self, name: str = "pcopy") -> None:
        self.name = name

    def remove_temporary_files(self, rank: Rank, dropped_tasks: Iterable[Task], since: int) -> None:
        """Remove the temporary files that this job has created and will not complete.

        They are in directories, or belong to files that are copied in several chunks.

        Args:
            dropped_tasks: the tasks that were waiting and will not run. If the temporary file that holds them cannot be
                read, the temporary files of these tasks remain.
            since: number of the first run whose files are removed.
        """
        remove_all_temporary_files(rank, since)
        if rank.copy_options.compresses_or_decompresses_files:
            from pcopy.tasks.recode import recode_file

            recode_file.discard_unfinished_files(rank, since)
        with suppress(OSError):  # The temporary file with the tasks cannot be read, for instance on a full disk.
            for task in dropped_tasks:
                decode_task(task.payload).remove_temporary_files(rank, since)


COPY_TOOL = CopyTool()
"""The only instance of ``CopyTool``, under the program name ``pcopy``."""


class CopyJob(PreparedJob):
    """The job of ``pcopy`` on rank 0: a new job, or a stored job that is resumed.

    The methods are called in this order. ``__init__`` checks the command line. ``complete_preparation`` records a new
    job, or loads the progress of a resumed one. ``complete_job`` writes the signature. ``report_job_result`` prints the
    summary, and removes the job directory (the records for ``--resume``) or keeps it.
    """

    def __init__(self, words: Sequence[str], arguments: CopyArguments) -> None:
        """Check the arguments and prepare the job; nothing is modified. Raise ``RequestRefused`` if the job must not
        start.

        Args:
            words: the command line from which ``arguments`` were parsed.
            arguments: the parsed command line.
        """
        super().__init__(arguments.ranks, arguments.in_flight, arguments.output)
        self.arguments = arguments
        self._print_message = partial(print_error, arguments.program)
        self._command_words = words
        if arguments.checkpoint.spool:
            _check_spool_directory(arguments.checkpoint.spool)
        self._earlier_jobs = EarlierJobsDecision()
        self._path_list: BinaryIO | None = None
        self._has_enough_space = arguments.force
        """True with ``--force``, or if the sources of a new job were found to fit into the free space. If False, a
        warning is printed if the remaining files will not fit, as soon as all of them have been found.
        """
        self._resumed_job = self._stored_job_to_resume()
        if self._resumed_job is None:
            roots = self._resolve_roots()
            refuse_unwritable_targets(roots)
            options, copy_options = arguments.options._replace(umask=_set_private_umask()), arguments.copy_options
            check_output_and_signature_files(roots, options, arguments.output)
            if copy_options.backup:
                from pcopy.tools.mirror import checked_backup_directory

                backup = checked_backup_directory(copy_options.backup, roots)
                copy_options = copy_options._replace(backup=backup)
            if copy_options.delete:
                from pcopy.tools.mirror import check_deletion_is_intended

                check_deletion_is_intended(arguments, roots, "--mirror" if "--mirror" in words else "--delete")
            self._earlier_jobs = decide_about_earlier_jobs(
                roots, options, copy_options, has_default_directory=not arguments.checkpoint.directory
            )
            self.job = Job(os.urandom(5).hex(), 1, roots, options, copy_options, doubted=self._earlier_jobs.doubted)
            self._has_enough_space = self._check_space_and_filters(self.job)
            self.output = self.output._replace(umask=options.umask)
            if options.sequential or not keeps_times_on_close(destination_directory(roots)):
                from pcopy.tools.sequential import (
                    options_for_destination,  # Imported here since few destinations need the function.
                )

                options, notices = options_for_destination(options, destination_directory(roots), copy_options)
                self.job = self.job._replace(options=options)
                self._earlier_jobs = self._earlier_jobs._replace(notices=(*self._earlier_jobs.notices, *notices))
            self._path_list = self._read_list(roots) if copy_options.list_file else None
        self._signature: str | None = None
        self._write_error = ""
        self._remarks: list[str] = []
        self._hints = list(self._earlier_jobs.notices)
        """Notices that are printed at the start. With ``-q`` they are printed only at the end, and only if the exit
        status is not 0.
        """

    def _check_space_and_filters(self, job: Job) -> bool:
        """Walk the sources for a short time, before the job starts. Return True if the destination has enough free
        space as far as is known, or if that is not checked (``--force``, compression).

        Raise ``RequestRefused`` if there is certainly too little space, or if filters certainly exclude everything.
        """
        ahead = PreliminaryWalk()
        if job.options.select.has_filters:
            from pcopy.tools.filter_messages import refuse_empty_selection

            refuse_empty_selection(job, ahead)
        return (
            self.arguments.force
            or job.copy_options.compresses_or_decompresses_files
            or self._is_space_sufficient(job, ahead)
        )

    def _is_space_sufficient(self, job: Job, ahead: PreliminaryWalk) -> bool:
        """Return True if the destination has enough free space as far as is known; False if that is unknown. Raise
        ``InsufficientSpace`` if it certainly has too little.

        Args:
            job: the job.
            ahead: a walk of the sources before the job starts, which ends at a limit of entries and seconds.
        """
        from pcopy.tools.space import is_space_sufficient

        return is_space_sufficient(job, ahead)

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        if self._has_enough_space:
            return screen
        from pcopy.tools.space import FreeSpaceWarningSink

        return FreeSpaceWarningSink(screen, self.job.roots[0].target)

    def _read_list(self, roots: Sequence[Root]) -> BinaryIO:
        """Read and sort the list of ``--from``, and return the temporary file with the result. Raise
        ``RequestRefused`` if it cannot be used.
        """
        from pcopy.jobs.sorted_list import sorted_paths_to_copy

        if len(roots) > 1 or roots[0].item:
            reason = (
                "takes one SRC" if len(roots) > 1 else f"{printable_path(roots[0].source_shown)} is not a directory"
            )
            raise RequestRefused(f"--from: {reason}: name the directory below which the listed paths are")
        arguments = self.arguments
        open_spool = spool_factory(arguments.checkpoint.spool)
        with spool_errors_as_refusal(arguments.checkpoint.spool):
            return sorted_paths_to_copy(
                arguments.copy_options.list_file, roots[0], open_spool, nul=arguments.copy_options.nul_separated
            )

    def _stored_job_to_resume(self) -> tuple[StoredJob, RankLock] | None:
        """Return the stored job that the command line resumes, and the lock of its directory, which this process holds
        from now on. Return None for a new job.

        A job is resumed with ``--resume``, or if the directory of ``--checkpoint`` contains an unfinished job.
        """
        arguments = self.arguments
        directory = arguments.checkpoint.directory
        if arguments.job_request.resume is None and not (directory and has_unfinished_job(directory)):
            return None
        from pcopy.jobs.job_choice import job_to_resume, print_to_stderr

        word = arguments.job_request.resume if not directory else directory + b"/"
        assert word is not None
        stored, lock = job_to_resume(word, print_to_stderr)
        try:
            if directory:
                refuse_changed_arguments(stored, arguments, self._command_words, self._resolve_roots)
            roots, options, copy_options = recorded_roots_and_options(stored)
            check_output_and_signature_files(roots, options, arguments.output)
            self._earlier_jobs = jobs_superseded_by_resume(stored, roots, options, copy_options)
        except BaseException:
            lock.close()
            raise
        keeping = arguments.checkpoint._replace(directory=stored.path, nonce=stored.file.nonce, durable_at_start=False)
        self.job_directory = JobDirectory(keeping, stored.file, lock)
        return stored, lock

    def _resolve_roots(self) -> tuple[Root, ...]:
        """Return the roots (pairs of source and target) to which the paths of the command line lead now. Raise
        ``RequestRefused`` if a source cannot be copied to its target.
        """
        arguments, options = self.arguments, self.arguments.copy_options
        return resolve_sources_and_targets(
            arguments.sources,
            arguments.destination,
            arguments.no_target_directory,
            follow=options.dereference,
            one_file_system=arguments.options.one_file_system,
            recoding=options if options.compresses_or_decompresses_files else None,
        )

    def complete_preparation(self, ranks: int) -> None:
        """Complete the preparation for this number of ranks: distribute the tasks of a resumed job among them, or
        record a new job.
        """
        arguments = self.arguments
        if self._resumed_job is not None:
            stored, lock = self._resumed_job
            roots, options, copy_options = recorded_roots_and_options(stored)
            check_mounts_before_resume(stored.file, roots, options)
            given = None if arguments.job_request.resume is None else arguments.job_request.given_options
            options = options_of_resumed_job(
                options, arguments.options, given, arguments.changeable_fields, verifies=copy_options.verify
            )
            self.job, self.job_directory = prepare_resume(stored, lock, ranks, arguments.checkpoint, options)
            self.output = self.output._replace(umask=self.job.options.umask)
            self._remarks += self.job_directory.notices
            from pcopy.jobs.leftovers import remove_unfinished_result_files

            self._remarks += remove_unfinished_result_files(self.job.options._asdict(), self.job.name, self.job.run)
            _set_private_umask()
        elif arguments.is_recorded:
            self._prepare_job_directory()
        if self.job.copy_options.list_file:
            self._set_path_list()
        if self.job_directory and (
            own_places := positions_in_sources(self.job_directory.checkpoint.directory, self.job.roots)
        ):
            self.job = self.job._replace(own=own_places)
            self._hints.append(
                f"{printable_path(self.job_directory.checkpoint.directory)}: is the directory in which this "
                "job is recorded, and is not copied"
            )
        if self.job.copy_options.delete:
            from pcopy.tools.mirror import paths_spared_from_deletion

            kept = self.job_directory.checkpoint.directory if self.job_directory else b""
            self.job = self.job._replace(
                spared=paths_spared_from_deletion((kept, self.job.copy_options.backup), self.job.roots)
            )

    def _set_path_list(self) -> None:
        """Store the path of the sorted list of ``--from`` in the job. The list of a resumed job is in its job
        directory.
        """
        from pcopy.jobs.sorted_list import path_list_file_in_job_directory, proc_path_of_descriptor

        if self._path_list is None:
            self.job = self.job._replace(listed=path_list_file_in_job_directory(self.checkpoint_settings.directory))
            return
        self.job = self.job._replace(listed=proc_path_of_descriptor(self._path_list))
        if self.job_directory is not None:
            self.job_directory.list_of_files = self._path_list

    def _prepare_job_directory(self) -> None:
        """Choose the job directory, in which this job is recorded. If the destination cannot be synced, records would
        be worthless: the job goes on without them, and a notice says so.
        """
        try:
            refuse_unsyncable_targets(self.job.roots)
        except RequestRefused as refused:
            self._remarks.append(f"no checkpoints, the job goes on without: {refused}")
        else:
            self.job, self.job_directory = new_job_directory(
                self.job, self.arguments.checkpoint, options_determining_result(self.arguments)
            )

    @property
    def checkpoint_settings(self) -> CheckpointSettings:
        """The settings by which all ranks record the job. ``directory`` is empty if the job is not recorded."""
        return (
            self.job_directory.checkpoint
            if self.job_directory
            else self.arguments.checkpoint._replace(directory=b"", durable_at_start=False)
        )

    def print_job_start_notices(self) -> None:
        from pcopy.tools.stripe_notices import useless_options_notice

        if useless := useless_options_notice(self.job):
            self._hints.append(useless)
        if 0 < self.job.options.bwlimit < _SUSPICIOUS_BWLIMIT:
            rate = self.job.options.bwlimit
            self._hints.append(f"--bwlimit: {rate:,} bytes a second; a number alone is bytes (rsync's: {rate}K)")
        if nested := self._nested_copy_notice():
            self._hints.append(nested)
        if not self.output.quiet:
            roots = self.job.roots
            if self.job.copy_options.compresses_or_decompresses_files:
                from pcopy.tasks.base.recoded_names import roots_with_recoded_names

                roots = roots_with_recoded_names(self.job)
            targets = {target_path(root) for root in roots} if len(roots) == 1 else {roots[0].target}
            sources = printable_path(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
            stream = sys.stderr if self.output.json else sys.stdout
            print(f"{sources} -> {printable_path(targets.pop())}", file=stream, flush=True)
            self._remarks += self._hints
        while self._remarks:
            self._print_message(self._remarks.pop(0))

    def _nested_copy_notice(self) -> str:
        """Return a notice if the copy is created inside what seems to be an older copy; "" if not."""
        root, given = self.job.roots[0], self.arguments.destination
        is_one = len(self.job.roots) == 1 and root.name and not root.item and self.arguments.job_request.resume is None
        if not is_one or self.job.run > 1 or os.path.realpath(given) != os.path.realpath(root.target):
            return ""
        from pcopy.jobs.suggestions import nested_copy_notice

        return nested_copy_notice(root.source, root.source_shown, root.target, given, root.name)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        """Write the signature, if one was asked for, and return the exit status: 2 if filters have excluded everything,
        1 if the signature or manifest could not be written, else 0.
        """
        if self.job.options.select.has_filters:
            from pcopy.tools.filter_messages import empty_selection_text

            if nothing := empty_selection_text(self.job, totals):
                self._remarks.append(nothing)
                return EXIT_REFUSED
        if not self.job.options.writes_signature:
            return EXIT_OK
        if totals.extra or has_other_entries_than_sources(self.job.roots):
            self._remarks.append("DST holds more than the source: its contents will not match the signature")
        from pcopy.tasks.sign.signing import SignatureState

        sign = rank.shared_instance(SignatureState)
        self._write_error = write_signature_file(self.job, sign)
        if self._write_error:
            return EXIT_INCOMPLETE
        self._signature = sign.signatures[0][0].hex()
        return EXIT_OK

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        earlier_bytes = (
            JobCounters(*self.checkpoint_settings.counts).bytes if self.checkpoint_settings.resumed else None
        )
        if ended.halt is not None:
            cut_short = self._resumed_job is not None and self._resumed_job[0].file.may_have_incomplete_files
            self._print_message(halt_reason_text(ended.halt, cut_short))
        is_quiet = self.output.quiet and ended.status == EXIT_OK
        if self.output.quiet and not is_quiet:
            self._remarks = self._hints + self._remarks
        for remark in filter(None, (*self._remarks, self._write_error)):
            self._print_message(remark)
        if self.job.options.writes_signature and self._signature is None and not self._write_error:
            self._print_message("no signature or manifest was written, since not everything was copied")
        is_done = ended.status == EXIT_OK or is_only_deletion_missing(self.job, ended.totals)
        goes_on = not is_done and self.job_directory is not None and self.job_directory.is_created
        job = self.job.name if goes_on else None
        in_order, signature = self.job.options.sequential, self._signature
        self.json_values = copy_json_summary(
            ended, seconds, ranks, signature=signature, job=job, earlier_bytes=earlier_bytes, sequential=in_order
        )
        self.json_values |= filter_origins_json_values(self.output.filter_origins)
        if self.output.json:
            print(json.dumps(self.json_values), flush=True)
        elif not is_quiet:
            lines = copy_summary_lines(
                self.job,
                ended,
                seconds,
                ranks,
                earlier_bytes,
                has_write_error=bool(self._write_error),
                filters=self.output.filter_origins,
            )
            if self.output.verbose:
                lines += [
                    f"layout of {count_with_noun(files, 'file', 'files')}: {text}" for text, files in ended.layouts
                ]
            if self._signature:
                lines.append(f"signature {self._signature} ({self.job.options.hash})")
            print("\n".join(lines), flush=True)
        self._finish_job_directory(ended)
        return ended.status

    def _finish_job_directory(self, ended: JobResult) -> None:
        """Remove the job directory if the job is done, otherwise keep it and print how to resume the job.

        After success, also discard the older, unfinished jobs whose work this job has done. ``ended`` says how the job
        ended.
        """
        is_done = ended.status == EXIT_REFUSED or (
            ended.status == EXIT_INCOMPLETE and is_only_deletion_missing(self.job, ended.totals)
        )
        status = EXIT_OK if is_done else ended.status
        if status == EXIT_OK and self._earlier_jobs.superseded:
            from pcopy.jobs.job_choice import discard_superseded_jobs
            from pcopy.jobs.leftovers import remove_temporary_files

            discard_superseded_jobs(
                self._earlier_jobs.superseded,
                partial(remove_temporary_files, report=self._print_message),
                self._print_message,
            )
        if self.job_directory is None:
            return
        patience = None if ended.halt is None or exit_status_after_stop(ended.halt) is None else FINAL_RECORD_TIMEOUT
        try:
            for remark in self.job_directory.finish_job(status, ended.totals, patience, is_durable=ended.is_durable):
                self._print_message(remark)
        except RequestRefused as refused:
            self._print_message(refused)
        except OSError as error:
            self._print_message(f"the job directory may remain: {resource_error_text(error)}")
        if status != EXIT_OK:
            self._print_resume_command()

    @property
    def state_after_second_sigint(self) -> str:
        directory = self.job_directory
        if directory is None:
            return super().state_after_second_sigint
        if not directory.exists():
            return "no checkpoint was stored: start it again"
        return f"the job is kept; to go on: {resume_command(directory.checkpoint.directory)}"

    def print_resume_advice(self) -> None:
        if self.job_directory is not None:
            self.job_directory.exists()  # Updates ``is_created`` and ``was_removed``, which the advice depends on.
        self._print_resume_command()

    def _print_resume_command(self) -> None:
        """Print the command that resumes the job, or, if no records of it exist, how to start it again. Print nothing
        if the job was not to be recorded.
        """
        if self.job_directory is not None and self.job_directory.is_created:
            self._print_message(f"to go on: {resume_command(self.job_directory.checkpoint.directory)}")
        elif self.job_directory is not None:
            vanished = f"{printable_path(self.job_directory.checkpoint.directory)}: the job directory has vanished"
            why = vanished if self.job_directory.was_removed else "no checkpoint was stored"
            self._print_message(f"{why}: start it again{self._advice_if_target_changed()}")

    def _advice_if_target_changed(self) -> str:
        """Return words that follow "start it again", if the same command would now copy to another target; else "".

        They name the command with ``--no-target-directory``, and the reason. The target changes if a directory was
        copied to a DST that did not exist: DST exists now, so the original command would copy to DST/SRC.
        """
        if self._resumed_job is not None:
            return ""
        try:
            roots = self._resolve_roots()
        except RequestRefused:  # The next start reports the reason.
            return ""
        if target_path(roots[0]) == target_path(self.job.roots[0]):
            return ""
        words = [
            self.arguments.program,
            "--no-target-directory",
            *(shell_quoted(os.fsencode(word)) for word in self._command_words),
        ]
        return f" as {' '.join(words)}, since {printable_path(self.arguments.destination)} exists now"


def _check_spool_directory(directory: bytes) -> None:
    """Raise ``RequestRefused`` unless files can be created in the directory of ``--spool`` (for temporary files with
    work that does not fit into memory).
    """
    from pcopy.fsio.named_file import UntrustedFileError, rename_proof_directory_path

    why = "not a directory that can be written"
    try:
        with rename_proof_directory_path(directory) as spool:
            if os.access(spool, os.W_OK | os.X_OK):
                return
        code = unwritable_directory_code(directory)
    except UntrustedFileError as error:
        why, code = str(error.strerror), error.errno or 0
    except OSError as error:
        code = error.errno or 0
    raise path_refused(directory, why, option="--spool", code=code)


def _set_private_umask() -> int:
    """Set the umask of this process to 077, and return the old one.

    So other users cannot open a new file before it is complete and gets its final mode.
    """
    return os.umask(0o077)
