"""The recorders of a job (``pcopy.report.recorder``), and their notification at its beginning and end; on rank 0 only.

This module is imported only if the user asks for a file that describes the job (``--metrics``, ``--report``).
"""

from __future__ import annotations

import os
import time

from pcopy.launch.group import Group, kernels
from pcopy.launch.rank import RankSetup
from pcopy.launch.tool import Ended, Preparation
from pcopy.launch.watch.signals import told
from pcopy.report.recorder import End, Facts, Recorder, Records
from pcopy.report.screen import Screen, Telling
from pcopy.tasks.base.job import Sink, Totals


class Recording:
    """The recorders that the user has asked for."""

    def __init__(self, telling: Telling) -> None:
        """Create the recorders; raise ``Refused`` if a file cannot be created."""
        recorders: list[Recorder] = []
        if telling.metrics:
            from pcopy.report.metrics import Metrics

            recorders.append(Metrics(telling.metrics, telling.umask, telling.interval))
        if telling.reports:
            from pcopy.report.report import JobReport

            recorders.append(JobReport(telling.reports, telling.umask))
        self._records = Records(recorders)

    def begin(self, screen: Screen, setup: RankSetup, preparation: Preparation, group: Group) -> Sink:
        """Notify the recorders that the job begins; return a sink that passes everything to them and to ``screen``."""
        tool, hosts = setup.tool, setup.hosts or [os.uname().nodename] * setup.transport.size
        facts = Facts(
            tool.name,
            tool.done,
            tool.writes,
            tool.stages,
            setup.job,
            hosts,
            kernels(group.hellos),
            time.time() - (time.monotonic() - preparation.began),
            Totals(*preparation.keeping.counts) if preparation.keeping.resumed else Totals(),
            preparation.words,
            tool.meanings,
        )
        self._records.begin(facts, screen.notice)
        return self._records.before(screen)

    def end(self, preparation: Preparation, ended: Ended, status: int) -> None:
        """Notify the recorders how the job ended, after the user was notified."""
        halted = told(ended.halted) if ended.halted is not None else ""
        self._records.end(End(status, ended.totals, halted, preparation.values, ended.gathered))

    def end_in_disorder(self, status: int) -> None:
        """Notify the recorders that a rank failed."""
        self._records.end_in_disorder(status)
