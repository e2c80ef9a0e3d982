"""The files that a job writes at its end: where they may be, and how the signature gets into its."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Sequence

from pcopy import __version__
from pcopy.errors import Refused
from pcopy.signature.signature_file import Signature, write_signature
from pcopy.tasks.job import Options, Root
from pcopy.tasks.signing import Tally
from pcopy.text import shown


def check_outputs(roots: Iterable[Root], options: Options, *, copies: bool = True) -> None:
    """Raises ``Refused`` unless the signature and the manifest can be written where the user wants them.

    Not into what they describe: there they would change it.
    """
    if options.signature and options.signature == options.manifest:
        raise Refused(f"{shown(options.signature)}: signature and manifest cannot be the same file")
    roots = tuple(roots)
    if copies and options.signs and len(roots) == 1 and _is_socket(roots[0]):
        raise Refused(f"{shown(roots[0].source_shown)}: is a socket, and no part of a dataset that could be signed")
    trees = {os.path.realpath(os.path.join(root.source, root.item)) for root in roots}
    if copies:
        trees |= {os.path.join(root.target, root.name) for root in roots}
    for path in filter(None, (options.signature, options.manifest)):
        directory = os.path.realpath(os.path.dirname(path))
        file = os.path.join(directory, os.path.basename(path))
        for tree in trees:
            if os.path.commonpath((file, tree)) == tree:
                raise Refused(f"{shown(path)}: lies in {shown(tree)}, which it describes; write it elsewhere")
        _check_writable(path, directory)


def _is_socket(root: Root) -> bool:
    try:
        return bool(root.item) and stat.S_ISSOCK(os.lstat(os.path.join(root.source, root.item)).st_mode)
    except OSError:
        return False  # it will fail, and say why


def _check_writable(path: bytes, directory: bytes) -> None:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise Refused(f"{shown(path)}: is a directory; name a file")
        if not stat.S_ISREG(mode):
            raise Refused(f"{shown(path)}: is no regular file, and is not replaced by one")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
    if not os.path.isdir(directory):
        raise Refused(f"{shown(path)}: its directory does not exist; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Refused(f"{shown(path)}: its directory may not be written")


def holds_more(roots: Sequence[Root]) -> bool:
    """Has the directory that several sources were copied into entries that are none of theirs? False if that is hidden.

    Each of them is its basename there, or its contents.
    """
    if len(roots) == 1:
        return False  # the tasks have counted
    try:
        expected = sum(1 if root.name else _entries(root.source) for root in roots)
        return _entries(roots[0].target) > expected
    except OSError:
        return False


def _entries(path: bytes) -> int:
    """How many entries a directory has; looked at without a trace, where that is allowed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            return sum(1 for _ in entries)
    finally:
        os.close(descriptor)


def write_result(options: Options, digest: bytes, tally: Tally, sources: Iterable[bytes]) -> str:
    """Writes the signature file, if that is wanted; returns what went wrong, or nothing."""
    if not options.signature:
        return ""
    signature = Signature(
        options.hash,
        options.block_size,
        digest.hex(),
        *tally,
        source=" ".join(shown(source) for source in sources),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        generator=f"pcopy {__version__}",
    )
    try:
        write_signature(options.signature, signature)
    except (OSError, Refused) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{shown(options.signature)}: the signature could not be written: {reason}"
    return ""
