"""The files that a job writes beside its copies: where they may be, and how the signature's is written.

Rule: none of them may take the place of anything but an older file of its kind, and none may lie in what it describes,
where it would change it. What is there is looked at before anything is copied, also when a job goes on.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pcopy import __version__
from pcopy.errors import Refused
from pcopy.fsio.directories import count_entries
from pcopy.fsio.ways import is_ordinary
from pcopy.jobs.meant import meant_or_made, unwritable
from pcopy.jobs.paths import filled_by, lies_in, refuse_within, source_of
from pcopy.report.screen import Telling
from pcopy.signature.algorithms import algorithm
from pcopy.tasks.base.job import DeviceInode, Job, Options, Root
from pcopy.text import shown

if TYPE_CHECKING:
    from pcopy.tasks.sign.signing import SignState


_CALLED = {each: f"not what --{each} has written" for each in ("metrics", "svg")}
"""What is said of a file that is none of its kind."""

_KINDS = {"metrics": "a file of metrics", "svg": "a picture", "errors": "a file of errors"}
"""What outputs are called whose words in the code are no nouns with an article."""

DRAWN = "<!-- drawn by pdbench -->\n"
"""The beginning of a picture."""

_WRITTEN_THROUGH = ("errors", "log")
"""What is made or emptied when the job begins."""


def check_outputs(roots: Sequence[Root], options: Options, telling: Telling, *, copies: bool = True) -> None:
    """Raises ``Refused`` unless signature, manifest, and what tells of the job can be where the user wants them.

    Raises that or ``ImportError`` where the library of the digests is not there.
    """
    described = {"signature": options.signature, "manifest": options.manifest}
    outputs = {what: path for what, path in {**described, **_told(telling)}.items() if path}
    _refuse_the_same(outputs)
    if copies and options.signs and len(roots) == 1 and _is_socket(roots[0]):
        raise Refused(f"{shown(roots[0].source_shown)}: is a socket, and no part of a dataset that could be signed")
    trees = {os.path.realpath(source_of(root)) for root in roots} if outputs else set()
    if copies:
        trees.add(filled_by(roots))
    for what, path in outputs.items():
        file = _real_name(path, what)
        for tree in trees:
            if lies_in(file, tree):
                read = "which is copied from or to" if copies else "which is read"
                why = "which it describes" if what in described else read
                raise Refused(f"{shown(path)}: lies in {shown(tree)}, {why}; write it elsewhere")
        _check_output(what, path)
    if options.hash:
        algorithm(options.hash)


def _told(telling: Telling) -> dict[str, bytes]:
    """What tells of a job while it runs, or when it has ended; an empty path stands for nothing."""
    reports = {f"report ({number})": path for number, path in enumerate(telling.reports, 1)}
    if len(telling.reports) == 1:
        reports = {"report": telling.reports[0]}
    told = {"errors": telling.errors or b"", "log": telling.log or b"", "metrics": telling.metrics}
    return {**told, **reports}


def check_told(telling: Telling, roots: Sequence[Root], what: str, *, svg: bytes = b"") -> None:
    """As ``check_outputs``, for a program that writes nothing else, but for a picture; ``what`` it does to the roots:
    "is removed"."""
    outputs = {name: path for name, path in {**_told(telling), "svg": svg}.items() if path}
    _refuse_the_same(outputs)
    for name, path in outputs.items():
        refuse_within(f"--{name}", path, roots, what)
        _check_output(name, path)


def refuse_replacing(telling: Telling, sent: Mapping[bytes, DeviceInode], directory: bytes) -> None:
    """Raises ``Refused`` if what tells of a job would take the place of a file that is ``sent``, by its name, or of its
    copy in the ``directory``."""
    inodes = set(sent.values())
    for path in filter(None, _told(telling).values()):
        parent, name = os.path.split(path)
        with suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in inodes:
                raise Refused(f"{shown(path)}: is a file that is sent; name another one")
        with suppress(OSError):
            if name in sent and os.path.samefile(parent or b".", directory):
                raise Refused(f"{shown(path)}: is where a file is sent to; name another one")


def check_lists(paths: Sequence[bytes], roots: Sequence[Root], telling: Telling, *, force: bool) -> None:
    """Raises ``Refused`` unless these files can be written as lists, of which nothing tells that they are older ones: a
    file that is there and not empty is kept, but for ``force``."""
    lists = {f"output ({number})": path for number, path in enumerate(paths, 1)}
    _refuse_the_same({**{name: path for name, path in _told(telling).items() if path}, **lists})
    for path in paths:
        refuse_within("--output", path, roots, "is compared")
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
        else:
            _refuse_no_file(path, status, "list")
            if status.st_size and not force:
                raise Refused(f"{shown(path)}: is there already, and kept; --force replaces it")
        _check_directory(path)
        _check_renames(path)


def _refuse_the_same(outputs: Mapping[str, bytes]) -> None:
    names: dict[bytes, str] = {}
    for what, path in outputs.items():
        other = names.setdefault(_real_name(path, what), what)
        if other != what:
            raise Refused(f"{shown(path)}: {other} and {what} cannot be the same file")


def _real_name(path: bytes, what: str) -> bytes:
    """Return the path of an output from the root, without symbolic links. Raises ``Refused``.

    The name itself may be a link only for files that are written through; a link of another output's name stays one.
    """
    from pcopy.fsio.named_file import NotTrusted, look, look_at_directory_of

    try:
        if what in _WRITTEN_THROUGH:
            return look(path).path
        return os.path.join(look_at_directory_of(path).path, os.path.basename(path))
    except NotTrusted as error:
        raise Refused(f"{shown(path)}: {error.strerror}") from None
    except OSError:  # ``_check_output`` says what is wrong
        directory, name = os.path.split(path)
        return os.path.join(os.path.realpath(directory or b"."), name)


def _is_socket(root: Root) -> bool:
    try:
        return bool(root.item) and stat.S_ISSOCK(os.lstat(source_of(root)).st_mode)
    except OSError:
        return False  # it will fail, and say why


def _check_output(what: str, path: bytes) -> None:
    """Raises ``Refused`` unless ``path`` can become the file, and nothing else is lost by that.

    What is new takes the name as a whole: whatever else has it would be gone. The file of errors and the log are
    emptied and written through, also where a symbolic link leads to them; a stream loses nothing. (Both are checked
    once more, on the open file, when they are opened.)
    """
    if what in _WRITTEN_THROUGH:
        _check_written_through(what, path)
        return
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        _check_directory(path)
        _check_renames(path)
        return
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
    _refuse_no_file(path, status, what)
    if not _is_older(path, what):
        called = _CALLED.get(what, f"no {what}")
        raise Refused(f"{shown(path)}: is there already, and is {called}; name another file, or remove it")
    _check_directory(path)
    _check_renames(path)


def _check_written_through(what: str, path: bytes) -> None:
    """Raises ``Refused`` unless ``LinesFile`` can write to what ``path`` leads to."""
    from pcopy.fsio.named_file import check_to_write, look
    from pcopy.report.lines_file import BEGINNINGS, refusal

    try:
        found = look(path)
        if found.status is None:
            _check_directory(found.path, path)
            return
        if stat.S_ISDIR(found.status.st_mode):
            _refuse_no_file(path, found.status, what)
        if found.inherited:
            return
        check_to_write(found.status)
        if found.is_stream:
            return
        beginning = _beginning(path, max(map(len, BEGINNINGS.values())))
    except FileNotFoundError:
        _check_directory(path)
        raise Refused(f"{shown(path)}: leads through something that does not exist; name another file") from None
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
    if why := refusal(what, found.status, beginning):
        raise Refused(f"{shown(path)}: {why}")


def _beginning(path: bytes, size: int) -> bytes:
    """Up to ``size`` bytes of a regular file. Raises ``Refused`` if it cannot be read."""
    from pcopy.fsio.named_file import open_to_read

    try:
        with open(open_to_read(path, regular=True, keep_atime=True).descriptor, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise Refused(f"{shown(path)}: is there already, and cannot be read: {error.strerror}") from None


def _is_older(path: bytes, what: str) -> bool:
    """Is the file an older one of its kind, or empty?"""
    from pcopy.report.metrics import begins_as_metrics
    from pcopy.report.report import begins_as_report
    from pcopy.signature.manifest import begins_as_manifest
    from pcopy.signature.signature_file import LOOK, begins_as_signature

    beginning = _beginning(path, LOOK)
    begins: Mapping[str, Callable[[bytes], bool]] = {
        "signature": begins_as_signature,
        "manifest": begins_as_manifest,
        "metrics": begins_as_metrics,
        "report": begins_as_report,
        "svg": partial(_begins, DRAWN.encode()),
    }
    return not beginning or begins[what.partition(" ")[0]](beginning)


def _begins(words: bytes, beginning: bytes) -> bool:
    return beginning.startswith(words)


def _refuse_no_file(path: bytes, status: os.stat_result, what: str) -> None:
    from pcopy.fsio.named_file import obstacle

    if stat.S_ISDIR(status.st_mode):
        within = os.path.join(path, b"errors.jsonl" if what == "errors" else what.encode())
        raise Refused(f"{shown(path)}: is a directory; name a file, as {shown(within)}")
    kind = what.partition(" ")[0]
    if why := obstacle(path, status.st_mode, _KINDS.get(kind, f"a {kind}")):
        raise Refused(f"{shown(path)}: {why}")


def _check_directory(path: bytes, called: bytes = b"") -> None:
    """Raises ``Refused`` unless ``path``, which users know as ``called``, can be made."""
    directory = os.path.dirname(_real_name(path, ""))
    if not os.path.isdir(directory):
        named = os.path.dirname(path) or directory
        advice = meant_or_made(named, "make it first")
        raise Refused(f"{shown(called or path)}: the directory {shown(named)} does not exist; {advice}")
    if why := unwritable(directory):
        raise Refused(f"{shown(called or path)}: cannot be written, since {why}; name another file")


def _check_renames(path: bytes) -> None:
    """Raises ``Refused`` unless a file with another name can be renamed to ``path``."""
    directory = os.path.dirname(_real_name(path, ""))
    if not is_ordinary(directory):
        from pcopy.tools.sequential import refuse_restricted  # few directories need it

        refuse_restricted(directory, path, "name a file elsewhere", writes=False)


def umask_of_user() -> int:
    """With which these files are made. It can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def holds_more(roots: Sequence[Root]) -> bool:
    """Has the directory that several sources were copied into entries that are none of theirs? False if that is hidden.

    Each of them is its basename there, or its contents.
    """
    if len(roots) == 1:
        return False  # the tasks have counted
    try:
        expected = sum(not _is_socket(root) if root.name else _entries(root.source) for root in roots)
        return _entries(roots[0].target) > expected
    except OSError:
        return False


def _entries(path: bytes) -> int:
    """How many entries a directory has, but for sockets."""
    descriptor = _open_without_trace(path)
    try:
        return count_entries(descriptor, sockets=False)
    finally:
        os.close(descriptor)


def _open_without_trace(path: bytes) -> int:
    """Its access time stays, where that is allowed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with suppress(PermissionError):
        return os.open(path, flags | os.O_NOATIME)
    return os.open(path, flags)


def write_result(job: Job, sign: SignState) -> str:
    """Writes the signature file, if that is wanted; returns what went wrong with it or the manifest, or nothing."""
    options = job.options
    if sign.unwritten is not None:  # an older signature fits an older manifest
        return _unwritten("manifest", options.manifest, sign.unwritten)
    if not options.signature:
        return ""
    from pcopy.signature.signature_file import Signature, write_signature

    digest, tally = sign.signatures[0]
    signature = Signature(
        options.hash,
        options.block_size,
        digest.hex(),
        *tally,
        source=" ".join(shown(root.source_shown) for root in job.roots),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        generator=f"pcopy {__version__}",
    )
    try:
        write_signature(options.signature, signature, options.umask, job.writer)
    except (OSError, Refused) as error:
        return _unwritten("signature", options.signature, error)
    return ""


def _unwritten(what: str, path: bytes, error: Exception) -> str:
    """Why ``what``, which was to be in the file ``path``, is not there."""
    if isinstance(error, Refused):  # which names the path
        return f"the {what} could not be written: {error}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"{shown(path)}: the {what} could not be written: {reason}"
