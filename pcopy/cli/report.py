"""What has become of a job, for people and for programs.

Rule: found = copied + skipped + failed is spelled out and never rounded; what a job that stopped early has not reached
is named as the rest.
"""

from __future__ import annotations

import base64
import errno
import json
import os

from pcopy.cli.units import show_seconds, show_size
from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED
from pcopy.tasks.job import Failure, Totals
from pcopy.text import counted, harmless, shown

_OUTCOMES = {
    INCOMPLETE: "incomplete: not everything is in the destination (status 1)",
    INTERNAL: "internal error (status 70)",
    STOPPED: "stopped early (status 75)",
}


def summary_lines(totals: Totals, seconds: float, ranks: int, status: int, before: int | None = None) -> list[str]:
    """The summary for people, a few lines; ``seconds`` is the wall time, ``status`` the exit status.

    ``before`` are bytes that earlier runs of the job have copied: the rate is this run's.
    """
    rest = totals.found - totals.copied - totals.skipped - totals.failed
    sums = [f"{totals.copied:,} copied", f"{totals.skipped:,} skipped", f"{totals.failed:,} failed"]
    if rest:
        sums.append(f"{rest:,} not reached")
    lines = [f"{totals.found:,} found = {' + '.join(sums)}"]
    kinds = [
        counted(totals.files, "file", "files") + f" of {show_size(totals.bytes)}",
        counted(totals.directories, "directory", "directories"),
        counted(totals.symlinks, "symbolic link", "symbolic links"),
        counted(totals.hardlinks, "hard link", "hard links"),
        counted(totals.special, "special file", "special files"),
    ]
    lines += _listed("copied", kinds)
    if totals.verified:
        lines += [
            f"  verified: {counted(totals.verified, 'item', 'items')}, {show_size(totals.confirmed_bytes)} read back"
        ]
    if totals.skipped_bytes:
        lines += _listed("skipped", [show_size(totals.skipped_bytes)])
    lines += _listed("failed", [f"{totals.changed:,} changed meanwhile", f"{totals.vanished:,} vanished"])
    remarks = [
        f"{totals.deleted:,} deleted",
        f"{totals.excused:,} left without the source's owner",
        counted(totals.warnings, "warning", "warnings"),
    ]
    lines += _listed("besides", remarks)
    copied = _copied_now(totals, before)
    lines.append(
        f"{show_size(copied)}{'' if before is None else ' by this run'} in {show_seconds(seconds)}: "
        f"{show_size(_rate(copied, seconds))}/s with {counted(ranks, 'rank', 'ranks')}"
    )
    if status != OK:
        lines.append(_OUTCOMES.get(status, f"ended with status {status}"))
    return lines


def summary_json(
    totals: Totals,
    seconds: float,
    ranks: int,
    status: int,
    signature: str | None = None,
    job: str | None = None,
    before: int | None = None,
) -> str:
    """The summary as one JSON object on one line; sizes in bytes, ``bytes_per_second`` a whole number.

    ``before`` as for ``summary_lines``.
    """
    values = {
        "found": totals.found,
        "copied": totals.copied,
        "files": totals.files,
        "directories": totals.directories,
        "symlinks": totals.symlinks,
        "special": totals.special,
        "hardlinks": totals.hardlinks,
        "bytes": totals.bytes,
        "skipped": totals.skipped,
        "deleted": totals.deleted,
        "failed": totals.failed,
        "changed": totals.changed,
        "vanished": totals.vanished,
        "excused": totals.excused,
        "warnings": totals.warnings,
        "seconds": round(seconds, 3),
        "bytes_per_second": round(_rate(_copied_now(totals, before), seconds)),
        "ranks": ranks,
        "signature": signature,
        "job": job,
        "exit_status": status,
    }
    return json.dumps(values)


def failure_line(failure: Failure, program: str = "pcopy") -> str:
    """One line for people, without a newline: ``pcopy: PATH: OPERATION: reason (ERRNO-NAME)``."""
    line = f"{program}: {shown(failure.path)}: {_operation(failure)}: {_reason(failure)}"
    if not failure.errno:
        return line
    return f"{line} ({errno.errorcode.get(failure.errno, f'errno {failure.errno}')})"


def failure_json(failure: Failure) -> str:
    """One JSON object on one line; ``path`` as it is shown, ``path_b64`` its exact bytes."""
    values = {
        "path": shown(failure.path),
        "path_b64": base64.b64encode(failure.path).decode("ascii"),
        "operation": _operation(failure),
        "errno": failure.errno,
        "message": _reason(failure),
    }
    return json.dumps(values)


def _operation(failure: Failure) -> str:
    """It may name an extended attribute, which is the file owner's choice as much as a path is."""
    return shown(os.fsencode(failure.operation))


def _reason(failure: Failure) -> str:
    """What the system says, and what the message adds to it."""
    system = os.strerror(failure.errno) if failure.errno else ""
    message = harmless(failure.message)
    if not message or not system or system == message:
        return message or system or "failed"
    return f"{system}: {message}"


def _copied_now(totals: Totals, before: int | None) -> int:
    """The bytes that this run has copied. What it found to be wrong of earlier ones may be more."""
    return max(0, totals.bytes - (before or 0))


def _rate(copied: int, seconds: float) -> float:
    return copied / seconds if seconds > 0 else 0.0


def _listed(title: str, parts: list[str]) -> list[str]:
    """A line of those ``parts`` that do not begin with a count of 0; none if all do."""
    some = [part for part in parts if not part.startswith("0 ")]
    return [f"  {title}: {', '.join(some)}"] if some else []
