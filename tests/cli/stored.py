"""Stored jobs whose runs were killed, and the output about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pcopy.jobs.directories import StoredJob, create_job
from tests.checkpoint.made import job_of, root_of

BEGUN = 1_700_000_000.0


def made(area: Path, name: str, directory: Path | None = None, **fields: Any) -> StoredJob:
    """Create a job from ``area/source`` to ``area/target`` whose run was killed."""
    for tree in ("source", "target"):
        (area / tree).mkdir(exist_ok=True)
    fields = {"created": BEGUN, **fields}
    file = job_of(root_of(area / "source", area / "target"), name=name, **fields)
    job, lock = create_job(None if directory is None else bytes(directory), file)
    lock.close()
    return job


class RecordedLines(list[str]):
    """The lines that were printed."""

    def __call__(self, line: str) -> None:
        assert all(part.isprintable() for part in line.split("\n"))
        self.append(line)


def without_spaces(lines: list[str]) -> str:
    """Return a table without its white space, as wrapping changes it."""
    return "".join(lines).replace(" ", "")
