"""Notices about Lustre options of a copy that have no effect, or not the whole effect, on the given file systems."""

from __future__ import annotations

import os

from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.retries import open_with_retries
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.job import Job

_OPTIONS_ONLY_FOR_LUSTRE = ("stripe", "stripe_table", "stripe_affinity", "group_lock")
"""Fields of ``CopyOptions`` that have an effect only if the destination is on Lustre."""


def useless_options_notice(job: Job) -> str:
    """Return a notice about an option for Lustre that was given but has no effect; "" if there is no such option.

    Reasons: DST is not on Lustre, SRC is not on Lustre (``--stripe preserve``), or more stripes are asked for than
    there are OSTs.
    """
    options = job.copy_options
    given = [f"--{name.replace('_', '-')}" for name in _OPTIONS_ONLY_FOR_LUSTRE if getattr(options, name)]
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
    """True if ``path`` is on Lustre; False also if it cannot be opened."""
    try:
        descriptor = open_with_retries(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # The error is reported when the path is copied.
        return False
    try:
        return type_of_file_system(descriptor) == LUSTRE_TYPE
    except OSError:
        return False
    finally:
        os.close(descriptor)
