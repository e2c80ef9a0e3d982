"""Names of files that are recoded, that is, compressed or decompressed while they are copied. The name of a file
decides whether it is recoded.
"""

from __future__ import annotations

import os

from pcopy.tasks.base.job import CopyOptions, Job, Root
from pcopy.tasks.base.values import Place

COMPRESSED_SUFFIX = b".zst"
"""Suffix of a file that zstd has compressed. Compression adds it to the name, decompression removes it."""


def recoded_file_name(options: CopyOptions, name: bytes) -> bytes | None:
    """Return the name of the copy of the regular file ``name`` if the file is compressed (it gets the suffix) or
    decompressed (it loses the suffix). Return None if the file is copied unchanged.
    """
    if options.compress:
        return None if name.endswith(COMPRESSED_SUFFIX) else name + COMPRESSED_SUFFIX
    if options.decompress and name.endswith(COMPRESSED_SUFFIX):
        stem = name[: -len(COMPRESSED_SUFFIX)]
        return None if stem in (b"", b".", b"..") else stem
    return None


def recoded_target_name(job: Job, place: Place, name: bytes) -> bytes | None:
    """Return the name of the copy of the file ``name`` in the directory ``place`` if the file is compressed or
    decompressed; None if it is copied unchanged.

    If the root is a single file, the user may have given the name of the copy. Then that name is returned, with or
    without the suffix.
    """
    root = job.roots[place.root]
    return recoded_root_name(job.copy_options, root) if root.item else recoded_file_name(job.copy_options, name)


def roots_with_recoded_names(job: Job) -> tuple[Root, ...]:
    """Return the roots of the job. If a root is a single file that will be compressed or decompressed, its ``name`` is
    replaced by the name that the copy gets, with or without the suffix.
    """
    return tuple(root_with_recoded_name(job.copy_options, root) for root in job.roots)


def root_with_recoded_name(options: CopyOptions, root: Root) -> Root:
    """Return ``root``. If it is a single file that will be compressed or decompressed, its ``name`` is replaced by the
    name that the copy gets, with or without the suffix.
    """
    path = os.path.join(root.source, root.item)
    is_file = bool(root.item) and os.path.isfile(path) and (options.dereference or not os.path.islink(path))
    return root._replace(name=(recoded_root_name(options, root) if is_file else None) or root.name)


def recoded_root_name(options: CopyOptions, root: Root) -> bytes | None:
    """Return the name of the copy of ``root``, a single regular file, if it is compressed or decompressed; None if it
    is copied unchanged.
    """
    new_name = recoded_file_name(options, root.item)
    if new_name is None:
        return None
    stem = root.name.removesuffix(COMPRESSED_SUFFIX)
    return stem + COMPRESSED_SUFFIX if options.compress else stem or new_name
