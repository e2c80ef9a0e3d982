"""Checks of ``--delete`` and ``--backup`` on rank 0 before anything is deleted, and the list of directories that must
not be deleted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.directories import is_directory_empty
from pcopy.fsio.named_file import real_path
from pcopy.jobs.paths import is_in_tree, target_path
from pcopy.tasks.base.job import Root
from pcopy.tasks.files.backup import reason_others_may_write
from pcopy.text import printable_path, shell_quoted
from pcopy.tools.arguments import CopyArguments


def check_deletion_is_intended(arguments: CopyArguments, roots: Sequence[Root], option: str) -> None:
    """Raise ``RequestRefused`` if the deletion of extra items might remove more than the user intends.

    That is so if SRC is given without a slash, lies in the target, or is empty (perhaps because its file system is not
    mounted).

    Args:
        arguments: the parsed command line.
        roots: the roots of the job; with deletion there is only one.
        option: the option by which the user asked for deletion: ``--mirror`` or ``--delete``.
    """
    (source,), root = arguments.sources, roots[0]
    command = f"pcopy {option}"
    if arguments.program != "pcopy":  # ``psync`` has no such option: its name implies deletion.
        option = command = arguments.program
    if root.item:
        return
    if not (arguments.no_target_directory or _means_directory_contents(source)):
        destination = shell_quoted(arguments.destination)
        target_inside = shell_quoted(os.path.join(arguments.destination, os.path.basename(source)))
        raise path_refused(
            source,
            f"with {option} SRC needs a trailing slash, so that it is clear which directory becomes equal to SRC. For "
            f"{destination} itself: {command} {shell_quoted(source + b'/')} {destination}; for a directory in it: "
            f"{command} {shell_quoted(source + b'/')} {target_inside}",
        )
    target = target_path(root)
    if is_in_tree(root.source, target) or _device_and_inode(target) in _identities_of_directories_above(root.source):
        raise path_refused(
            source, f"lies in {printable_path(target)}, so that {option} would delete it; name another DST"
        )
    if not arguments.copy_options.delete_all and _is_empty_directory(root.source):
        raise path_refused(
            source,
            f"is empty, and {option} would delete all that is in {printable_path(target)}: is its file system "
            "mounted? If this is intended, use --delete-all",
        )


def _means_directory_contents(path: bytes) -> bool:
    """True if ``path`` means the contents of a directory (``SRC/``, ``.``, ``..``), or if it is not a directory."""
    return (
        path.endswith(b"/")
        or os.path.basename(path) in (b".", b"..")
        or not stat.S_ISDIR(_mode_without_following_link(path))
    )


def _mode_without_following_link(path: bytes) -> int:
    """Return the mode (with type) of ``path`` itself, not of the target of a link; 0 if lstat(2) fails."""
    try:
        return os.lstat(path).st_mode
    except OSError:  # The error is reported when the path is opened later.
        return 0


def _is_empty_directory(directory: bytes) -> bool:
    """True if ``directory`` is empty; False if it is not, or if it cannot be read."""
    try:
        return is_directory_empty(None, directory)
    except OSError:  # The job will fail to read it, too, and then nothing is deleted.
        return False


def _device_and_inode(path: bytes) -> tuple[int, int] | None:
    """Return device and inode number of ``path``, following symbolic links; None if it cannot be statted."""
    try:
        status = os.stat(path)
    except OSError:  # It does not exist yet.
        return None
    return status.st_dev, status.st_ino


def _identities_of_directories_above(directory: bytes) -> Iterator[tuple[int, int] | None]:
    """Yield device and inode number of ``directory`` and of all directories above it; None for any that cannot be
    statted. ``directory`` is an absolute path without symbolic links.
    """
    yield _device_and_inode(directory)
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield _device_and_inode(directory)


def paths_spared_from_deletion(directories: Sequence[bytes], roots: Sequence[Root]) -> tuple[tuple[int, bytes], ...]:
    """Return (number of the root, path below its target) for each of ``directories`` that lies in a target.

    These are the job directory and the directory of ``--backup``. The job must spare them; otherwise it would delete
    them as extra items.

    Args:
        directories: paths; empty ones are ignored.
        roots: those of the job.
    """
    spared = []
    for number, root in enumerate(roots):
        tree = os.path.realpath(target_path(root))
        for real in map(os.path.realpath, filter(None, directories)):
            if not root.item and real != tree and is_in_tree(real, tree):
                spared.append((number, os.path.relpath(real, tree)))
    return tuple(spared)


def _real_path(path: bytes, given: str) -> bytes:
    """Return ``path`` without symbolic links. Raise ``RequestRefused`` if it cannot be resolved, or leads through a
    symbolic link that another user might change.

    Args:
        given: the option with the path as the user wrote it, for the message.
    """
    try:
        return real_path(path)
    except OSError as error:
        raise RequestRefused(f"{given}: {error.strerror}", path=path) from None


def checked_backup_directory(directory: bytes, roots: Sequence[Root]) -> bytes:
    """Return the absolute path of the directory of ``--backup``. Raise ``RequestRefused`` if replaced items cannot be
    moved there safely.
    """
    parent = roots[0].target
    given = f"--backup {printable_path(directory)}"
    path = _real_path(os.path.join(parent, directory), given)
    if any(is_in_tree(target_path(root), path) for root in roots):
        raise RequestRefused(
            f"{given}: is or contains {printable_path(target_path(roots[0]))}, the target of the copy; "
            "name another directory",
            path=path,
        )
    for root in roots:
        if not root.item and is_in_tree(path, root.source):
            raise RequestRefused(
                f"{given}: lies in {printable_path(root.source_shown)}, which is copied; name another directory",
                path=path,
            )
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    try:
        status, target_status = os.stat(existing), os.stat(parent)
    except OSError as error:
        raise RequestRefused(f"{given}: {error.strerror}", path=path) from None
    if not stat.S_ISDIR(status.st_mode):
        raise RequestRefused(
            f"{given}: {printable_path(existing)} is not a directory", path=existing, code=errno.ENOTDIR
        )
    if status.st_dev != target_status.st_dev:
        raise RequestRefused(
            f"{given}: is not on the file system of {printable_path(parent)}: replaced items cannot be moved "
            "there; name a directory on that file system",
            path=path,
        )
    if existing == path and (strangers := reason_others_may_write(status)):
        raise RequestRefused(
            f"{given}: {printable_path(path)} {strangers}: backups would not be safe there; "
            "name a directory that you own and that only you may write to, or one that does not exist",
            path=path,
        )
    if (twin := next(_sources_copied_to_path(path, roots), None)) is not None:
        raise RequestRefused(
            f"{given}: {printable_path(twin)} would be copied to that path; name another directory", path=path
        )
    return path


def _sources_copied_to_path(path: bytes, roots: Sequence[Root]) -> Iterator[bytes]:
    """Yield the existing paths in the sources that would be copied to ``path`` (the directory of ``--backup``)."""
    for root in roots:
        if not root.item and is_in_tree(path, target_path(root)):
            twin = os.path.join(root.source, os.path.relpath(path, target_path(root)))
            if os.path.lexists(twin):
                yield twin
