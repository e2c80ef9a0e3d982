"""ReportFailures: rank 0 hears of what failed anywhere."""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.tasks.context import Context, Result
from pcopy.tasks.job import Failure
from pcopy.tasks.values import ReportFailures


def report_failures(task: ReportFailures, context: Context, result: Result) -> Slices:
    """Passes them on to where the job tells of them."""
    context.tell([Failure(*failure) for failure in task.failures], task.notices)
    return result.outcome()
    yield
