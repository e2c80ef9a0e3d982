"""The summary of a copy, for people and for programs.

Rule: found = copied + skipped + failed is spelled out and never rounded. If a job stopped early, the items that it has
not reached are named as the rest.
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

_COUNTED = (
    *("found", "copied", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "deleted"),
    *("failed", "changed", "vanished", "excused", "warnings", "mended", "excluded"),
)
"""Counters that ``--json`` shows, by their names in ``Totals``."""


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
    """As ``summary_lines``, with what there is to say of the job. ``unwritten``: something that tells of it could not
    be written."""
    from pcopy.jobs.earlier_jobs import KEEPING_UNREAD

    options, lines = job.options, summary_lines(ended.totals, seconds, ranks, ended.status, before, filters)
    if options.sequential and ended.totals.files:
        lines.insert(1, "  each file was written under its own name, in order, by one rank (sequential)")
    if unwritten:
        lines[-1] = "incomplete: everything is copied, but not all is written that tells of it (status 1)"
    elif lacks_only_deletion(job, ended.totals):
        nothing = "nothing more" if ended.totals.deleted else "nothing"
        lines[-1] = f"incomplete: everything is copied, but {nothing} was deleted (status 1)"
    if options.verify and options.existing in KEEPING_UNREAD and (kept := ended.totals.skipped):
        were = counted(kept, "item was", "items were")
        lines.append(f"{were} skipped and not verified (see --existing changed, --checksum)")
    return lines


def lacks_only_deletion(job: Job, totals: Totals) -> bool:
    """Is all copied, and what the source lacks more than may be deleted? There is nothing to go on with then."""
    return 0 <= job.options.max_delete < totals.to_delete and not (totals.failed or totals.unsynced)


def summary_lines(
    totals: Totals, seconds: float, ranks: int, status: int, before: int | None = None, filters: Sequence[str] = ()
) -> list[str]:
    """The summary for people, a few lines; ``seconds`` is the wall time, ``status`` the exit status.

    ``before`` are bytes that earlier runs of the job have copied: the rate is this run's. ``filters``
    as in ``Telling``.
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
    """Return what ``--json`` shows of filters that files set."""
    return {"filters": list(origins)}


def sums_lines(totals: Totals, done: str, left: str, *, sizes: bool = True) -> list[str]:
    """What was found, and what has become of it: what is ``done`` by kind, too; ``left`` are items that stay. Without
    ``sizes`` nobody has asked how large files are."""
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
        f"{totals.mended:,} mended (metadata alone)",
        f"{totals.excused:,} excused (owner, group or attributes that cannot be set)",
        counted(totals.warnings, "warning", "warnings"),
    ]
    return _listed("besides", remarks)


def origins_of(filters: Sequence[str]) -> str:
    """Return where filters are set, from ``Telling.filters``, which is empty if all stand on the command line."""
    return ", ".join(filters) or "on the command line"


def pace_line(totals: Totals, seconds: float, ranks: int) -> str:
    """How fast items were done, of tools that move no bytes."""
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
    """The summary for programs; sizes in bytes, ``bytes_per_second`` a whole number.

    ``before`` as for ``summary_lines``; ``sequential`` as in ``Options``.
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
    """What each program tells of a job, with the counters that are ``counted``."""
    counts = {name: getattr(totals, name) for name in counted}
    return {**counts, "seconds": round(seconds, 3), "ranks": ranks, "exit_status": status}


def _copied_now(totals: Totals, before: int | None) -> int:
    """The bytes that this run has copied. What it found to be wrong of earlier ones may be more; and earlier ones may
    have copied a part of a large file that it has ended."""
    return totals.bytes if before is None else max(0, min(totals.bytes - before, totals.moved))


def _rate(copied: int, seconds: float) -> float:
    return copied / seconds if seconds > 0 else 0.0


def _listed(title: str, parts: list[str]) -> list[str]:
    """A line of those ``parts`` that do not begin with a count of 0; none if all do."""
    some = [part for part in parts if not part.startswith("0 ")]
    return [f"  {title}: {', '.join(some)}"] if some else []


def told_of_halt(reason: Halt, cut_short: bool) -> str:
    """Why the job halted, and what that means for the copy: nobody knows that after a sync that failed.

    ``cut_short``: an earlier run may have left files that are.
    """
    brief = told(reason)
    but = "; but what an earlier run was writing when it ended early may be cut short" if cut_short else ""
    return brief if reason.code == UNSYNCED else f"{brief}; every file that has been copied is whole{but}"
