"""Notices about Lustre options of a copy that have no effect, or only a part of it."""

from __future__ import annotations

import os

from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.retries import open_with_retries
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.job import Job

_LUSTRE_OPTIONS = ("stripe", "stripe_table", "stripe_affinity", "group_lock")
"""Fields of ``Options`` that apply to Lustre only."""


def useless_options_notice(job: Job) -> str:
    """Return a notice if Lustre options were given that have no effect, or not the full one, for this job; else ""."""
    options = job.options
    given = [f"--{name.replace('_', '-')}" for name in _LUSTRE_OPTIONS if getattr(options, name)]
    if not given:
        return ""
    if not any(_is_on_lustre(root.target) for root in job.roots):
        names = " and ".join(filter(None, (", ".join(given[:-1]), given[-1])))
        return f"{names} {'has' if len(given) == 1 else 'have'} no effect: DST is not on Lustre"
    if options.stripe == "preserve" and not any(_is_on_lustre(root.source) for root in job.roots):
        return "--stripe preserve has no effect: SRC is not on Lustre"
    from pcopy.lustre.layouts import stripe_count_notice  # Imported here since few jobs need it.

    return stripe_count_notice(options.stripe, job.roots[0].target)


def _is_on_lustre(path: bytes) -> bool:
    """True if ``path`` is on Lustre."""
    try:
        descriptor = open_with_retries(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # Copying it reports the error.
        return False
    try:
        return type_of_file_system(descriptor) == LUSTRE_TYPE
    except OSError:
        return False
    finally:
        os.close(descriptor)
