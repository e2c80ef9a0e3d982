"""The summary of a copy, as text for people and as values for ``--json``.

Rule: the numbers of found, copied, skipped and failed items are printed exactly, so that found = copied + skipped +
failed can be checked. If a job stopped early, the items that it did not reach are printed as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.messages import Halt
from pcopy.errors import INCOMPLETE, INTERNAL, OK, REFUSED, STOPPED, UNSYNCED
from pcopy.launch.tool import Ended
from pcopy.launch.watch.signals import told
from pcopy.tasks.base.job import Job, Totals
from pcopy.text import counted
from pcopy.units import show_seconds, show_size

_OUTCOMES = {
    INCOMPLETE: "incomplete: not everything is in the destination (status 1)",
    INTERNAL: "internal error (status 70)",
    STOPPED: "stopped early (status 75)",
    REFUSED: "nothing but directories was copied (status 2)",
}
"""Last line of the summary, by exit status."""

_COUNTED = (
    *("found", "copied", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "deleted"),
    *("failed", "changed", "vanished", "excused", "warnings", "mended", "excluded"),
)
"""Counters of ``Totals`` that ``--json`` shows."""


def job_lines(
    job: Job,
    ended: Ended,
    seconds: float,
    ranks: int,
    before: int | None,
    *,
    unwritten: bool,
    filters: Sequence[str] = (),
) -> list[str]:
    """Return the summary of a copy for people.

    Args:
        job: the job.
        ended: how it ended.
        seconds: wall time.
        ranks: number of ranks.
        before: bytes that earlier runs of the job copied; None for a new job.
        unwritten: True if the signature or the manifest could not be written.
        filters: where filters are set, as in ``Telling``.
    """
    from pcopy.jobs.earlier_jobs import KEEPING_UNREAD

    options, lines = job.options, summary_lines(ended.totals, seconds, ranks, ended.status, before, filters)
    if options.sequential and ended.totals.files:
        lines.insert(1, "  each file was written under its own name, in order, by one rank (sequential)")
    if unwritten:
        lines[-1] = "incomplete: everything is copied, but the signature or manifest could not be written (status 1)"
    elif lacks_only_deletion(job, ended.totals):
        nothing = "nothing more" if ended.totals.deleted else "nothing"
        lines[-1] = f"incomplete: everything is copied, but {nothing} was deleted (status 1)"
    if options.verify and options.existing in KEEPING_UNREAD and (kept := ended.totals.skipped):
        were = counted(kept, "item was", "items were")
        lines.append(f"{were} skipped and not verified (see --existing changed, --checksum)")
    return lines


def lacks_only_deletion(job: Job, totals: Totals) -> bool:
    """True if everything was copied, but nothing was deleted since there are more extra items than ``--max-delete``.
    Resuming the job would not change that.
    """
    return 0 <= job.options.max_delete < totals.to_delete and not (totals.failed or totals.unsynced)


def summary_lines(
    totals: Totals, seconds: float, ranks: int, status: int, before: int | None = None, filters: Sequence[str] = ()
) -> list[str]:
    """Return the main lines of the summary for people.

    Args:
        totals: the counters.
        seconds: wall time.
        ranks: number of ranks.
        status: exit status.
        before: bytes that earlier runs of the job copied: they do not count for the rate. None for a new job.
        filters: where filters are set, as in ``Telling``.
    """
    lines = sums_lines(totals, "copied", "skipped")
    if totals.verified:
        read = show_size(totals.confirmed_bytes)
        lines.append(f"  verified: {counted(totals.verified, 'item', 'items')}, {read} read back")
    lines += _listed(
        "skipped", [show_size(totals.skipped_bytes), f"{totals.excluded:,} excluded by filters ({origins_of(filters)})"]
    )
    lines += _listed("failed", [f"{totals.changed:,} changed meanwhile", f"{totals.vanished:,} vanished"])
    lines += remarks_lines(totals)
    copied = _copied_now(totals, before)
    lines.append(
        f"{show_size(copied)}{'' if before is None else ' by this run'} in {show_seconds(seconds)}: "
        f"{show_size(_rate(copied, seconds))}/s with {counted(ranks, 'rank', 'ranks')}"
    )
    if status != OK:
        lines.append(_OUTCOMES.get(status, f"ended with status {status}"))
        if status == STOPPED and totals.found == totals.copied + totals.skipped + totals.failed:
            lines[-1] += ": all items are done, but the job is not: the last sync, for instance, is missing"
    return lines


def filter_values(origins: Sequence[str]) -> dict[str, object]:
    """Return the values of ``--json`` about filters that are set in files."""
    return {"filters": list(origins)}


def sums_lines(totals: Totals, done: str, left: str, *, sizes: bool = True) -> list[str]:
    """Return the line with the number of items found and their outcomes, and a line with the types of the items.

    Args:
        totals: the counters.
        done: word for items that count as copied.
        left: word for items that count as skipped.
        sizes: False if the sizes of files are unknown.
    """
    rest = totals.found - totals.copied - totals.skipped - totals.failed
    sums = [f"{totals.copied:,} {done}", f"{totals.skipped:,} {left}", f"{totals.failed:,} failed"]
    if rest:
        sums.append(f"{rest:,} not reached")
    kinds = [
        counted(totals.files, "file", "files") + (f" of {show_size(totals.bytes)}" if sizes else ""),
        counted(totals.directories, "directory", "directories"),
        counted(totals.symlinks, "symbolic link", "symbolic links"),
        counted(totals.hardlinks, "hard link", "hard links"),
        counted(totals.special, "special file", "special files"),
    ]
    return [f"{totals.found:,} found = {' + '.join(sums)}", *_listed(done, kinds)]


def remarks_lines(totals: Totals) -> list[str]:
    """Return the line of other counts, such as excused items and warnings, if any is not 0."""
    remarks = [
        f"{totals.deleted:,} deleted",
        f"{totals.mended:,} updated (metadata only)",
        f"{totals.excused:,} excused (owner, group or attributes that cannot be set)",
        counted(totals.warnings, "warning", "warnings"),
    ]
    return _listed("besides", remarks)


def origins_of(filters: Sequence[str]) -> str:
    """Return where filters are set, from ``Telling.filters``, which is empty if all stand on the command line."""
    return ", ".join(filters) or "on the command line"


def pace_line(totals: Totals, seconds: float, ranks: int) -> str:
    """Return a line with the wall time and the items per second, for programs that transfer no data."""
    rate = _rate(totals.copied, seconds)
    return f"{show_seconds(seconds)}: {rate:,.0f} items/s with {counted(ranks, 'rank', 'ranks')}"


def summary_of(
    ended: Ended,
    seconds: float,
    ranks: int,
    *,
    signature: str | None = None,
    job: str | None = None,
    before: int | None = None,
    sequential: bool = False,
) -> dict[str, object]:
    """Return the summary of a copy as values for ``--json``; sizes are in bytes, and ``bytes_per_second`` is an
    integer.

    ``before`` as for ``summary_lines``; ``sequential`` as in ``Options``. ``job`` is the name of the job if it can be
    resumed.
    """
    totals = ended.totals
    values = summary_values(totals, _COUNTED, seconds, ranks, ended.status)
    values |= {"verified": totals.verified, "verified_bytes": totals.confirmed_bytes}
    values["layouts"] = [{"layout": text, "files": files} for text, files in ended.layouts]
    rate = round(_rate(_copied_now(totals, before), seconds))
    values |= {"bytes_per_second": rate, "sequential": sequential}
    return {**values, "signature": signature, "job": job}


def summary_values(
    totals: Totals, counted: Sequence[str], seconds: float, ranks: int, status: int
) -> dict[str, object]:
    """Return the values of ``--json`` that all programs have, with the counters named by ``counted``."""
    counts = {name: getattr(totals, name) for name in counted}
    return {**counts, "seconds": round(seconds, 3), "ranks": ranks, "exit_status": status}


def _copied_now(totals: Totals, earlier_bytes: int | None) -> int:
    """The bytes that this run has copied. What it found to be wrong of earlier ones may be more; and earlier ones may
    have copied a part of a large file that it has ended.
    """
    return totals.bytes if earlier_bytes is None else max(0, min(totals.bytes - earlier_bytes, totals.moved))


def _rate(copied: int, seconds: float) -> float:
    return copied / seconds if seconds > 0 else 0.0


def _listed(title: str, parts: list[str]) -> list[str]:
    """Return a line with those ``parts`` that do not begin with a count of 0; no line if all do."""
    nonzero = [part for part in parts if not part.startswith("0 ")]
    return [f"  {title}: {', '.join(nonzero)}"] if nonzero else []


def told_of_halt(reason: Halt, cut_short: bool) -> str:
    """Return the reason why the job halted, and the consequence for the files that were copied.

    Every copied file is complete, except after a failed sync: then it is unknown. ``cut_short``: an earlier run may
    have left incomplete files.
    """
    text = told(reason)
    exception = "; but what an earlier run was writing when it ended early may be cut short" if cut_short else ""
    return text if reason.code == UNSYNCED else f"{text}; every file that has been copied is whole{exception}"
