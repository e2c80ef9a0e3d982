"""Notices about Lustre options of a copy that have no effect, or only a part of it."""

from __future__ import annotations

import os

from pcopy.fsio.layout import LUSTRE
from pcopy.fsio.patience import open_patiently
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.job import Job

_OF_LUSTRE = ("stripe", "stripe_table", "stripe_affinity", "group_lock")
"""Fields of ``Options`` that apply to Lustre only."""


def useless_options(job: Job) -> str:
    """Return a notice if Lustre options were given that have no effect, or not the full one, for this job; else ""."""
    options = job.options
    given = [f"--{name.replace('_', '-')}" for name in _OF_LUSTRE if getattr(options, name)]
    if not given:
        return ""
    if not any(_is_on_lustre(root.target) for root in job.roots):
        names = " and ".join(filter(None, (", ".join(given[:-1]), given[-1])))
        return f"{names} {'has' if len(given) == 1 else 'have'} no effect: DST is not on Lustre"
    if options.stripe == "preserve" and not any(_is_on_lustre(root.source) for root in job.roots):
        return "--stripe preserve has no effect: SRC is not on Lustre"
    from pcopy.lustre.layouts import told_of_count  # Imported here since few jobs need it.

    return told_of_count(options.stripe, job.roots[0].target)


def _is_on_lustre(path: bytes) -> bool:
    """True if ``path`` is on Lustre."""
    try:
        descriptor = open_patiently(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # Copying it reports the error.
        return False
    try:
        return type_of_file_system(descriptor) == LUSTRE
    except OSError:
        return False
    finally:
        os.close(descriptor)
