"""The directories of a job's roots, on both sides: what they share, and what has to be mounted below them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache, partial

from pcopy.fsio.directories import Directories, OpenDirectories, affordable
from pcopy.fsio.kernel.interface import Kernel
from pcopy.fsio.mounted import MountRoot
from pcopy.fsio.mounts import Followed
from pcopy.tasks.base.job import Job, Mount, mount_codes


def directories_of(
    job: Job, descriptors: Sequence[tuple[int, int]], kernel: Kernel, *, one_host: bool
) -> tuple[list[Directories], list[Directories]]:
    """Sources and targets of the roots, whose two directories are open as ``descriptors``; what of them tickets of the
    ``kernel`` work with stays open."""
    sources, targets = [], []
    capacity = affordable()
    kept = [OpenDirectories(capacity, kernel.pins, kernel.open_directory) for _ in range(2)]
    mounted = lru_cache(lambda top: mounted_below(top, job.mounts))
    both = list(zip(mount_codes(job.roots), descriptors, strict=True))
    bases = {os.fstat(source).st_dev: code for (code, _), (source, _) in reversed(both)}
    followed = Followed(bases, one_host) if job.options.dereference else None
    for number, ((source_code, target_code), (source, target)) in enumerate(both):
        root = job.roots[number]
        # Where nothing is copied, two trees may be read side by side: a deep one must not push the other out.
        side = 0 if job.copies else number % 2
        of_source = partial(Directories, number=2 * number, one_host=one_host, kept=kept[side])
        of_target = partial(Directories, number=2 * number + 1, one_host=one_host, kept=kept[1])
        below = mounted(root.source)
        sources.append(of_source(source, source_code, on_source=True, followed=followed, mounted=below))
        below = mounted(root.target)
        targets.append(of_target(target, target_code, on_source=False, mounted=below))
        targets[-1].keeps_atime = job.options.delete
    return sources, targets


def mounted_below(top: bytes, mounts: Sequence[Mount]) -> dict[bytes, MountRoot]:
    """Those of ``mounts`` that lie below the directory ``top``, by their paths there."""
    around = top.rstrip(b"/") + b"/"
    return {path[len(around) :]: MountRoot(*root) for path, root in mounts if path.startswith(around)}
