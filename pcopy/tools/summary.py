"""The summary of a copy, as text for people and as values for ``--json``.

Rule: the numbers of found, copied, skipped and failed items are exact, not rounded, so that users can check that found
= copied + skipped + failed. If a job stopped early, the number of items that it did not reach is a fourth term.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.messages import HaltMessage
from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_REFUSED, EXIT_STOPPED, SYNC_FAILED_CODE
from pcopy.launch.tool import JobResult
from pcopy.launch.watch.signals import stop_message
from pcopy.tasks.base.job import Job, JobCounters
from pcopy.text import count_with_noun
from pcopy.units import format_seconds, format_size

_OUTCOME_LINE_BY_STATUS = {
    EXIT_INCOMPLETE: "incomplete: not everything is in the destination (status 1)",
    EXIT_INTERNAL: "internal error (status 70)",
    EXIT_STOPPED: "stopped early (status 75)",
    EXIT_REFUSED: "nothing but directories was copied (status 2)",
}
"""The last line of the summary for each exit status but 0, for which there is none."""

_SHOWN_COUNTERS = (
    *("found", "copied", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "deleted"),
    *("failed", "changed", "vanished", "excused", "warnings", "mended", "excluded"),
)
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""


def copy_summary_lines(
    job: Job,
    ended: JobResult,
    seconds: float,
    ranks: int,
    earlier_bytes: int | None,
    *,
    has_write_error: bool,
    filters: Sequence[str] = (),
) -> list[str]:
    """Return the summary of a copy for people.

    Args:
        job: the job.
        ended: how the job ended.
        seconds: wall time of this run.
        ranks: number of ranks.
        earlier_bytes: bytes that earlier runs of the job copied; None for a new job.
        has_write_error: True if the signature or the manifest could not be written.
        filters: where filters are set: file and line of each; empty if all are on the command line.
    """
    from pcopy.jobs.earlier_jobs import POLICIES_KEEPING_UNREAD_FILES

    options, copying = job.options, job.copy_options
    lines = summary_lines(ended.totals, seconds, ranks, ended.status, earlier_bytes, filters)
    if options.sequential and ended.totals.files:
        lines.insert(1, "  each file was written under its own name, in order, by one rank (sequential)")
    if has_write_error:
        lines[-1] = "incomplete: everything is copied, but the signature or manifest could not be written (status 1)"
    elif is_only_deletion_missing(job, ended.totals):
        nothing = "nothing more" if ended.totals.deleted else "nothing"
        lines[-1] = f"incomplete: everything is copied, but {nothing} was deleted (status 1)"
    if copying.verify and copying.existing in POLICIES_KEEPING_UNREAD_FILES and (kept := ended.totals.skipped):
        were = count_with_noun(kept, "item was", "items were")
        lines.append(f"{were} skipped and not verified (see --existing changed, --checksum)")
    return lines


def is_only_deletion_missing(job: Job, totals: JobCounters) -> bool:
    """True if everything was copied, but extra items are not deleted, because there are more of them than
    ``--max-delete`` allows.

    A resume of such a job would have the same result.
    """
    return 0 <= job.copy_options.max_delete < totals.to_delete and not (totals.failed or totals.unsynced)


def summary_lines(
    totals: JobCounters,
    seconds: float,
    ranks: int,
    status: int,
    earlier_bytes: int | None = None,
    filters: Sequence[str] = (),
) -> list[str]:
    """Return the main lines of the summary for people.

    Args:
        totals: the counters.
        seconds: wall time.
        ranks: number of ranks.
        status: exit status.
        earlier_bytes: bytes that earlier runs of the job copied: they do not count for the rate. None for a new job.
        filters: where filters are set: file and line of each; empty if all are on the command line.
    """
    lines = item_counts_lines(totals, "copied", "skipped")
    if totals.verified:
        read = format_size(totals.confirmed_bytes)
        lines.append(f"  verified: {count_with_noun(totals.verified, 'item', 'items')}, {read} read back")
    lines += _line_of_nonzero_counts(
        "skipped",
        [
            format_size(totals.skipped_bytes),
            f"{totals.excluded:,} excluded by filters ({filter_origins_text(filters)})",
        ],
    )
    lines += _line_of_nonzero_counts(
        "failed", [f"{totals.changed:,} changed meanwhile", f"{totals.vanished:,} vanished"]
    )
    lines += deletion_and_warning_count_lines(totals)
    copied = _bytes_of_this_run(totals, earlier_bytes)
    if earlier_bytes is not None and status in (EXIT_OK, EXIT_INCOMPLETE) and copied < totals.bytes:
        lines.append(f"  kept: {format_size(totals.bytes - copied)} of {format_size(totals.bytes)}, from earlier runs")
    lines.append(
        f"{format_size(copied)}{'' if earlier_bytes is None else ' by this run'} in {format_seconds(seconds)}: "
        f"{format_size(_rate_per_second(copied, seconds))}/s with {count_with_noun(ranks, 'rank', 'ranks')}"
    )
    if status != EXIT_OK:
        lines.append(_OUTCOME_LINE_BY_STATUS.get(status, f"ended with status {status}"))
        if status == EXIT_STOPPED and totals.found == totals.copied + totals.skipped + totals.failed:
            lines[-1] += ": no item is waiting, but the job is not finished (for example, the last sync is missing)"
    return lines


def filter_origins_json_values(origins: Sequence[str]) -> dict[str, object]:
    """Return a value for ``--json`` that says where the filters are set: a list with file and line of each.

    The list is empty if no configuration file sets filters.
    """
    return {"filters": list(origins)}


def item_counts_lines(totals: JobCounters, copied_word: str, skipped_word: str, *, sizes: bool = True) -> list[str]:
    """Return the line with the number of items found and their outcomes, and a line with the types of the items.

    Args:
        totals: the counters.
        copied_word: word for items that count as copied.
        skipped_word: word for items that count as skipped.
        sizes: False if the sizes of files are unknown.
    """
    rest = totals.found - totals.copied - totals.skipped - totals.failed
    sums = [f"{totals.copied:,} {copied_word}", f"{totals.skipped:,} {skipped_word}", f"{totals.failed:,} failed"]
    if rest:
        sums.append(f"{rest:,} not reached")
    kinds = [
        count_with_noun(totals.files, "file", "files") + (f" of {format_size(totals.bytes)}" if sizes else ""),
        count_with_noun(totals.directories, "directory", "directories"),
        count_with_noun(totals.symlinks, "symbolic link", "symbolic links"),
        count_with_noun(totals.hardlinks, "hard link", "hard links"),
        count_with_noun(totals.special, "special file", "special files"),
    ]
    return [f"{totals.found:,} found = {' + '.join(sums)}", *_line_of_nonzero_counts(copied_word, kinds)]


def deletion_and_warning_count_lines(totals: JobCounters) -> list[str]:
    """Return a line with the numbers of deleted and updated items, metadata that could not be set but is excused, and
    warnings.

    Numbers that are 0 are left out; the result is an empty list if all are 0.
    """
    remarks = [
        f"{totals.deleted:,} deleted",
        f"{totals.mended:,} updated (metadata only)",
        f"{totals.excused:,} excused (owner, group or attributes that cannot be set)",
        count_with_noun(totals.warnings, "warning", "warnings"),
    ]
    return _line_of_nonzero_counts("besides", remarks)


def filter_origins_text(filters: Sequence[str]) -> str:
    """Return a text that says where the filters are set.

    Args:
        filters: ``OutputOptions.filter_origins``: file and line of each; empty if all are on the command line.
    """
    return ", ".join(filters) or "on the command line"


def items_per_second_line(totals: JobCounters, seconds: float, ranks: int) -> str:
    """Return a line with the wall time and the number of items per second, for programs that transfer no data."""
    rate = _rate_per_second(totals.copied, seconds)
    return f"{format_seconds(seconds)}: {rate:,.0f} items/s with {count_with_noun(ranks, 'rank', 'ranks')}"


def copy_json_summary(
    ended: JobResult,
    seconds: float,
    ranks: int,
    *,
    signature: str | None = None,
    job: str | None = None,
    earlier_bytes: int | None = None,
    sequential: bool = False,
) -> dict[str, object]:
    """Return the summary of a copy as values for ``--json``; sizes are in bytes, and ``bytes_per_second`` is an
    integer.

    Args:
        signature: the signature in hexadecimal digits; None if none was written.
        job: the name of the job if it can be resumed, else None.
        earlier_bytes: bytes that earlier runs of the job copied: they do not count for the rate. None for a new job.
        sequential: True if each file was written from start to end under its final name.
    """
    totals = ended.totals
    values = common_json_values(totals, _SHOWN_COUNTERS, seconds, ranks, ended.status)
    values |= {"verified": totals.verified, "verified_bytes": totals.confirmed_bytes}
    values["layouts"] = [{"layout": text, "files": files} for text, files in ended.layouts]
    rate = round(_rate_per_second(_bytes_of_this_run(totals, earlier_bytes), seconds))
    values |= {"bytes_per_second": rate, "sequential": sequential}
    return {**values, "signature": signature, "job": job}


def common_json_values(
    totals: JobCounters, counted: Sequence[str], seconds: float, ranks: int, status: int
) -> dict[str, object]:
    """Return the values of ``--json`` that all programs have.

    Args:
        counted: names of the counters of ``totals`` that are shown.
        seconds: wall time.
        ranks: number of ranks.
        status: exit status.
    """
    counts = {name: getattr(totals, name) for name in counted}
    return {**counts, "seconds": round(seconds, 3), "ranks": ranks, "exit_status": status}


def _bytes_of_this_run(totals: JobCounters, earlier_bytes: int | None) -> int:
    """Return the bytes of complete files that this run has copied, from which its rate is computed.

    ``earlier_bytes`` are the bytes of earlier runs; None for a new job. The difference can be negative, if this run
    copies files of earlier runs again, and too large, if earlier runs have copied a part of a file that this run has
    completed. So it is at least 0, and at most the bytes that this run has transferred.
    """
    return totals.bytes if earlier_bytes is None else max(0, min(totals.bytes - earlier_bytes, totals.moved))


def _rate_per_second(copied: int, seconds: float) -> float:
    return copied / seconds if seconds > 0 else 0.0


def _line_of_nonzero_counts(title: str, parts: list[str]) -> list[str]:
    """Return a line that begins with ``title`` and lists those of ``parts`` (texts such as "3 failed") whose number is
    not 0.

    Return an empty list if all numbers are 0.
    """
    nonzero = [part for part in parts if not part.startswith("0 ")]
    return [f"  {title}: {', '.join(nonzero)}"] if nonzero else []


def halt_reason_text(reason: HaltMessage, may_be_cut_short: bool) -> str:
    """Return the message that says why the job halted, and whether the files that were copied are complete.

    Every copied file is complete. After a failed sync that is unknown, so the message does not say it.

    Args:
        may_be_cut_short: True if an earlier run was killed and may have left incomplete files under their final names.
    """
    text = stop_message(reason)
    exception = "; but what an earlier run was writing when it ended early may be cut short" if may_be_cut_short else ""
    return (
        text if reason.code == SYNC_FAILED_CODE else f"{text}; every file that has been copied is complete{exception}"
    )
