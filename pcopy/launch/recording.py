"""The recorders of a job, on rank 0: objects that write the files of ``--metrics`` and ``--report``, which describe the
job while it runs or at its end (``pcopy.report.recorder``).

This module is imported only if the user asks for one of these files.
"""

from __future__ import annotations

import os
import time

from pcopy.launch.group import RankGroup, backends_text
from pcopy.launch.rank import RankSetup
from pcopy.launch.tool import JobResult, PreparedJob
from pcopy.launch.watch.signals import stop_message
from pcopy.report.recorder import JobEnd, JobRecorder, RecorderSink, RunDescription
from pcopy.report.screen import OutputOptions, ProgressScreen
from pcopy.tasks.base.job import JobCounters, ProgressSink


class JobRecorders:
    """The recorders of a job that the user has asked for: objects that write the files of ``--metrics`` and
    ``--report``. Informs them when the job begins and how it ends.
    """

    def __init__(self, output_options: OutputOptions) -> None:
        """Create the recorders for the files that the user wants (``--metrics``, ``--report``); raise
        ``RequestRefused`` if a file cannot be created.
        """
        recorders: list[JobRecorder] = []
        if output_options.metrics:
            from pcopy.report.metrics import MetricsRecorder

            recorders.append(MetricsRecorder(output_options.metrics, output_options.umask, output_options.interval))
        if output_options.reports:
            from pcopy.report.report import JobReportRecorder

            recorders.append(JobReportRecorder(output_options.reports, output_options.umask))
        self._records = RecorderSink(recorders)

    def begin_recording(
        self, screen: ProgressScreen, setup: RankSetup, preparation: PreparedJob, group: RankGroup
    ) -> ProgressSink:
        """Tell the recorders that the job begins. Return the object that is to receive the progress, failures and
        notices of the job; it passes them on to the recorders and to ``screen``.
        """
        tool, hosts = setup.tool, setup.hosts or [os.uname().nodename] * setup.transport.size
        facts = RunDescription(
            tool.name,
            tool.done_word,
            tool.writes_to_targets,
            tool.stages_of_job(setup.job),
            setup.job,
            hosts,
            backends_text(group.descriptions),
            time.time() - (time.monotonic() - preparation.began),
            JobCounters(*preparation.checkpoint_settings.counts)
            if preparation.checkpoint_settings.resumed
            else JobCounters(),
            preparation.command_line,
            tool.status_meanings,
        )
        self._records.begin_all_recorders(facts, screen.receive_notice)
        return self._records.forward_to(screen)

    def end(self, preparation: PreparedJob, ended: JobResult, status: int) -> None:
        """Tell the recorders how the job ended. Called after the result was printed.

        Args:
            preparation: the job, with the values of ``--json``.
            ended: result of the job.
            status: exit status of the program, which may differ from that in ``ended``.
        """
        halted = stop_message(ended.halt) if ended.halt is not None else ""
        self._records.end(JobEnd(status, ended.totals, halted, preparation.json_values, ended.work_of_ranks))

    def record_end_after_rank_failure(self, status: int) -> None:
        """Tell the recorders that the job ended with the exit status ``status`` because a rank failed."""
        self._records.record_end_after_rank_failure(status)
