"""Names in a job directory, and the version of what is in it."""

from __future__ import annotations

import re

VERSION = 2
"""Of all files of a job. It rises whenever a kind of task, one of its fields, a counter or an option comes or goes:
tasks and counts are known by their places, so that another version would take them for others."""

END_IT = "end the job with the pcopy that began it, or give it up: pcopy --discard JOB"
"""What to do about a job of another version."""

CURRENT = b"current"
RUN = re.compile(rb"run-[0-9]+")


def run_name(run: int) -> bytes:
    return b"run-%d" % run


def base_name(rank: int) -> bytes:
    return b"base-%d" % rank


def facts_name(rank: int) -> bytes:
    return b"facts-%d" % rank
