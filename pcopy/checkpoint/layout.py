"""Names in a job directory."""

from __future__ import annotations

import re

CURRENT = b"current"
RUN = re.compile(rb"run-[0-9]+")


def run_name(run: int) -> bytes:
    return b"run-%d" % run


def base_name(rank: int) -> bytes:
    return b"base-%d" % rank


def facts_name(rank: int) -> bytes:
    return b"facts-%d" % rank
