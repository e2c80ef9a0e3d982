"""What files are called that are compressed, or decompressed, on their way; which of them are, their names tell."""

from __future__ import annotations

import os

from pcopy.tasks.base.job import Job, Options, Root
from pcopy.tasks.base.values import Place

ENDING = b".zst"
"""Of the names of files that zstd has compressed."""


def recoded_name(options: Options, name: bytes) -> bytes | None:
    """What the regular file ``name`` is called then; None if it is copied as it is."""
    if options.compress:
        return None if name.endswith(ENDING) else name + ENDING
    if options.decompress and name.endswith(ENDING):
        stem = name[: -len(ENDING)]
        return None if stem in (b"", b".", b"..") else stem
    return None


def recoded_in(job: Job, place: Place, name: bytes) -> bytes | None:
    """The same, in the target of ``place``, where a single file may have a name that the user has given it: that gets
    the ending, or loses it, if it has to."""
    root = job.roots[place.root]
    return recoded_root(job.options, root) if root.item else recoded_name(job.options, name)


def with_recoded_names(job: Job) -> tuple[Root, ...]:
    """The roots by the names that they get."""
    return tuple(with_final_name(job.options, root) for root in job.roots)


def with_final_name(options: Options, root: Root) -> Root:
    """By the name that it gets."""
    path = os.path.join(root.source, root.item)
    is_file = bool(root.item) and os.path.isfile(path) and (options.dereference or not os.path.islink(path))
    return root._replace(name=(recoded_root(options, root) if is_file else None) or root.name)


def recoded_root(options: Options, root: Root) -> bytes | None:
    """The same, of a root that is a regular file."""
    new_name = recoded_name(options, root.item)
    if new_name is None:
        return None
    stem = root.name.removesuffix(ENDING)
    return stem + ENDING if options.compress else stem or new_name
