"""What is refused before anything is deleted, and what is spared (``--delete``): rank 0 looks at it at the start."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from pcopy.errors import Refused
from pcopy.fsio.directories import is_empty
from pcopy.fsio.named_file import real_path
from pcopy.jobs.paths import lies_in, target_of
from pcopy.tasks.base.job import Options, Root
from pcopy.tasks.files.backup import strangers_of
from pcopy.text import for_shell, shown
from pcopy.tools.arguments import CopyArguments


def check_mirror(arguments: CopyArguments, roots: Sequence[Root], option: str) -> None:
    """Raises ``Refused`` if more might be deleted than the user means; ``option`` is how he has said it."""
    (source,), root = arguments.sources, roots[0]
    command = f"pcopy {option}"
    if arguments.program != "pcopy":  # which says it by its name
        option = command = arguments.program
    if root.item:
        return
    if not (arguments.no_target_directory or _is_contents(source)):
        destination = for_shell(arguments.destination)
        inside = for_shell(os.path.join(arguments.destination, os.path.basename(source)))
        raise Refused(
            f"{shown(source)}: with {option} a trailing slash says what is to be equal to it. "
            f"For {destination} itself: {command} {for_shell(source + b'/')} {destination}; "
            f"for a directory in it: {command} {for_shell(source + b'/')} {inside}"
        )
    target = target_of(root)
    if lies_in(root.source, target) or _identity(target) in _identities_upwards(root.source):
        raise Refused(f"{shown(source)}: lies in {shown(target)}, so that {option} would delete it; name another DST")
    if not arguments.options.delete_all and _is_empty(root.source):
        raise Refused(
            f"{shown(source)}: is empty, and {option} would delete all that is in {shown(target)}: is its file system "
            "mounted? --delete-all says that it is meant"
        )


def _is_contents(path: bytes) -> bool:
    return path.endswith(b"/") or os.path.basename(path) in (b".", b"..") or not stat.S_ISDIR(_mode(path))


def _mode(path: bytes) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:  # which is told where it is opened
        return 0


def _is_empty(directory: bytes) -> bool:
    try:
        return is_empty(None, directory)
    except OSError:  # it fails, and nothing is deleted then
        return False


def _identity(path: bytes) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # it is not there yet
        return None
    return status.st_dev, status.st_ino


def _identities_upwards(directory: bytes) -> Iterator[tuple[int, int] | None]:
    """Of a real path, and of all directories above it."""
    yield _identity(directory)
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield _identity(directory)


def spared_in(directories: Sequence[bytes], roots: Sequence[Root], options: Options) -> tuple[tuple[int, bytes], ...]:
    """Where ``directories`` lie in the targets: (number of the root, path below it)."""
    if not options.delete:
        return ()
    found = []
    for number, root in enumerate(roots):
        tree = os.path.realpath(target_of(root))
        for real in map(os.path.realpath, filter(None, directories)):
            if not root.item and real != tree and lies_in(real, tree):
                found.append((number, os.path.relpath(real, tree)))
    return tuple(found)


def _real_path(path: bytes, given: str) -> bytes:
    """``path`` without links; raises ``Refused`` if it leads through a link of another user."""
    try:
        return real_path(path)
    except OSError as error:
        raise Refused(f"{given}: {error.strerror}") from None


def backup_in(directory: bytes, roots: Sequence[Root]) -> bytes:
    """The directory of ``--backup``, from the root; raises ``Refused`` if nothing can be moved there."""
    top = roots[0].target
    given = f"--backup {shown(directory)}"
    path = _real_path(os.path.join(top, directory), given)
    if any(lies_in(target_of(root), path) for root in roots):
        raise Refused(f"{given}: {shown(target_of(roots[0]))} lies in it; name another directory")
    for root in roots:
        if not root.item and lies_in(path, root.source):
            raise Refused(f"{given}: lies in {shown(root.source_shown)}, which is copied; name another directory")
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        status, around = os.stat(there), os.stat(top)
    except OSError as error:
        raise Refused(f"{given}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{given}: {shown(there)} is no directory")
    if status.st_dev != around.st_dev:
        raise Refused(
            f"{given}: is not on the file system of {shown(top)}: nothing can be moved there; name a directory on it"
        )
    if there == path and (strangers := strangers_of(status)):
        raise Refused(
            f"{given}: {shown(path)} {strangers}: what is kept there would not be safe; "
            "name a directory of yours that only you may write, or one that is to be made"
        )
    if (twin := next(_twins(path, roots), None)) is not None:
        raise Refused(f"{given}: {shown(twin)} is to be copied there; name another directory")
    return path


def _twins(path: bytes, roots: Sequence[Root]) -> Iterator[bytes]:
    """What the sources have that would be copied to ``path``."""
    for root in roots:
        if not root.item and lies_in(path, target_of(root)):
            twin = os.path.join(root.source, os.path.relpath(path, target_of(root)))
            if os.path.lexists(twin):
                yield twin
