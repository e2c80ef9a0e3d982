"""Names of files that are compressed or decompressed while they are copied. The name of a file decides
whether it is.
"""

from __future__ import annotations

import os

from pcopy.tasks.base.job import Job, Options, Root
from pcopy.tasks.base.values import Place

COMPRESSED_SUFFIX = b".zst"
"""Suffix of the names of files that zstd has compressed."""


def recoded_name(options: Options, name: bytes) -> bytes | None:
    """Return the name of the copy of the regular file ``name`` if it is compressed or decompressed; None if it is
    copied unchanged.
    """
    if options.compress:
        return None if name.endswith(COMPRESSED_SUFFIX) else name + COMPRESSED_SUFFIX
    if options.decompress and name.endswith(COMPRESSED_SUFFIX):
        stem = name[: -len(COMPRESSED_SUFFIX)]
        return None if stem in (b"", b".", b"..") else stem
    return None


def recoded_target_name(job: Job, place: Place, name: bytes) -> bytes | None:
    """Return the same as ``recoded_name`` for a file of the directory ``place``, with the name that the user gave if
    the root is a single file.

    The suffix is added to that name, or removed from it, if it has to be.
    """
    root = job.roots[place.root]
    return recoded_root_name(job.options, root) if root.item else recoded_name(job.options, name)


def roots_with_recoded_names(job: Job) -> tuple[Root, ...]:
    """Return the roots of the job with the names that their copies get."""
    return tuple(root_with_recoded_name(job.options, root) for root in job.roots)


def root_with_recoded_name(options: Options, root: Root) -> Root:
    """Return the root with the name that its copy gets."""
    path = os.path.join(root.source, root.item)
    is_file = bool(root.item) and os.path.isfile(path) and (options.dereference or not os.path.islink(path))
    return root._replace(name=(recoded_root_name(options, root) if is_file else None) or root.name)


def recoded_root_name(options: Options, root: Root) -> bytes | None:
    """Return the name of the copy if the root, which is a regular file, is compressed or decompressed; None if it is
    copied unchanged.
    """
    new_name = recoded_name(options, root.item)
    if new_name is None:
        return None
    stem = root.name.removesuffix(COMPRESSED_SUFFIX)
    return stem + COMPRESSED_SUFFIX if options.compress else stem or new_name
