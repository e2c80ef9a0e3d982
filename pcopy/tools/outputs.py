"""The output files of a job (signature, manifest, report, log, …): where they may be, and how the signature file is
written.

Rule: an output may replace only an older output of the same kind, which is recognised by its first bytes. It must not
be inside the data that it describes or inside a tree that is copied, because writing it would change them. These
conditions are checked before anything is copied, also when a job is resumed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pcopy import __version__
from pcopy.errors import RequestRefused, path_refused, unwritable_directory_code
from pcopy.fsio.copy_methods import supports_rename_and_random_writes
from pcopy.fsio.directories import entry_count
from pcopy.jobs.paths import destination_path, is_in_tree, refuse_file_in_source, source_path
from pcopy.jobs.suggestions import reason_directory_is_unwritable, suggestion_for_missing_directory
from pcopy.report.screen import OutputOptions
from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.tasks.base.job import DeviceInode, Job, Options, Root
from pcopy.text import printable_path

if TYPE_CHECKING:
    from pcopy.tasks.sign.signing import SignatureState


_NOT_AN_OUTPUT_TEXTS = {each: f"not what --{each} has written" for each in ("metrics", "svg")}
"""What messages say about an existing file that is not an older output of the same kind. For an output that has no
entry here they say "no NAME".
"""

_OUTPUT_NOUNS = {"metrics": "a file of metrics", "svg": "a picture", "errors": "a file of errors"}
"""What messages call an output whose option has a name that is no noun. An output that has no entry here is called "a
NAME".
"""

SVG_BEGINNING = "<!-- drawn by pdbench -->\n"
"""First line of a chart of ``pdbench --svg``, by which it is recognised."""

_OUTPUTS_WRITTEN_IN_PLACE = ("errors", "log")
"""Outputs that are created or truncated at the start of the job and written while it runs. All other outputs are
written to a temporary file, which is renamed to the final name when it is complete.
"""


def check_output_and_signature_files(
    roots: Sequence[Root], options: Options, output_options: OutputOptions, *, copies: bool = True
) -> None:
    """Raise ``RequestRefused`` unless the signature, the manifest and the output files can be written where the user
    wants them.

    Args:
        roots: the roots of the job.
        options: its options.
        output_options: the output options.
        copies: True if the job writes to the targets of the roots.

    Raise ``ImportError`` if the library of the hash algorithm is not installed.
    """
    descriptions = {"signature": options.signature, "manifest": options.manifest}
    outputs = {name: path for name, path in {**descriptions, **_output_paths(output_options)}.items() if path}
    _refuse_equal_outputs(outputs)
    if copies and options.writes_signature and len(roots) == 1 and _is_root_socket(roots[0]):
        raise path_refused(roots[0].source_shown, "is a socket, which a signature cannot describe")
    trees = {os.path.realpath(source_path(root)) for root in roots} if outputs else set()
    if copies:
        trees.add(destination_path(roots))
    for name, path in outputs.items():
        file = _real_path_of_output(path, name)
        for tree in trees:
            if is_in_tree(file, tree):
                read = "which is copied from or to" if copies else "which is read"
                why = "which it describes" if name in descriptions else read
                raise path_refused(path, f"lies in {printable_path(tree)}, {why}; write it elsewhere")
        _check_output_path(name, path)
    if options.hash:
        digest_algorithm_named(options.hash)


def _output_paths(output_options: OutputOptions) -> dict[str, bytes]:
    """Return the path of each output file, by the name of the output; the path is empty if the user did not ask for it.

    Several reports are called "report (1)", "report (2)" and so on.
    """
    reports = {f"report ({number})": path for number, path in enumerate(output_options.reports, 1)}
    if len(output_options.reports) == 1:
        reports = {"report": output_options.reports[0]}
    outputs = {
        "errors": output_options.errors or b"",
        "log": output_options.log or b"",
        "metrics": output_options.metrics,
    }
    return {**outputs, **reports}


def check_output_files(output_options: OutputOptions, roots: Sequence[Root], usage: str, *, svg: bytes = b"") -> None:
    """Raise ``RequestRefused`` unless the output files can be written.

    For programs that write no signature and no manifest; for the others there is ``check_output_and_signature_files``.

    Args:
        output_options: the output options.
        roots: the roots, in which no output file may be.
        usage: what the program does to the roots, for messages, for example "is removed".
        svg: the file for the chart of ``pdbench``, or empty.
    """
    outputs = {name: path for name, path in {**_output_paths(output_options), "svg": svg}.items() if path}
    _refuse_equal_outputs(outputs)
    for name, path in outputs.items():
        refuse_file_in_source(f"--{name}", path, roots, usage)
        _check_output_path(name, path)


def refuse_replacing_sent_files(
    output_options: OutputOptions, sent_files: Mapping[bytes, DeviceInode], directory: bytes
) -> None:
    """Raise ``RequestRefused`` if an output file would replace a file that ``pbcast`` sends, or its copy.

    Args:
        output_options: the output options.
        sent_files: device and inode number of each file that is sent, by its basename.
        directory: the target directory.
    """
    inodes = set(sent_files.values())
    for path in filter(None, _output_paths(output_options).values()):
        parent, name = os.path.split(path)
        with suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in inodes:
                raise path_refused(path, "is a file that is sent; name another output file")
        with suppress(OSError):
            if name in sent_files and os.path.samefile(parent or b".", directory):
                raise path_refused(path, "a file is sent to this path; name another output file")


def check_comparison_lists(
    paths: Sequence[bytes], roots: Sequence[Root], output_options: OutputOptions, *, force: bool
) -> None:
    """Raise ``RequestRefused`` unless the lists of ``pverify --compare --output`` can be written to ``paths``.

    A list consists of paths only, so an older list cannot be distinguished from another file. Therefore an existing
    file that is not empty is replaced only with ``force``.
    """
    lists = {f"output ({number})": path for number, path in enumerate(paths, 1)}
    _refuse_equal_outputs({**{name: path for name, path in _output_paths(output_options).items() if path}, **lists})
    for path in paths:
        refuse_file_in_source("--output", path, roots, "is compared")
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise path_refused(path, f"cannot be written: {error.strerror}") from None
        else:
            _refuse_unless_regular(path, status, "list")
            if status.st_size and not force:
                raise path_refused(path, "already exists and is not replaced; --force replaces it", code=errno.EEXIST)
        _check_output_directory(path)
        _check_renames_are_possible(path)


def _refuse_equal_outputs(outputs: Mapping[str, bytes]) -> None:
    """Raise ``RequestRefused`` if two outputs are the same file. ``outputs`` maps names of outputs to their paths."""
    names: dict[bytes, str] = {}
    for output, path in outputs.items():
        other_output = names.setdefault(_real_path_of_output(path, output), output)
        if other_output != output:
            raise path_refused(path, f"{other_output} and {output} cannot be the same file")


def _real_path_of_output(path: bytes, output: str) -> bytes:
    """Return the absolute path of an output without symbolic links. Raise ``RequestRefused`` if the path leads through
    a symbolic link that another user might change.

    If the last component is a symbolic link, the link is resolved only for outputs that are written in place
    (``errors``, ``log``). Other outputs would replace the link itself.
    """
    from pcopy.fsio.named_file import UntrustedFileError, examine_parent_directory, examine_path

    try:
        if output in _OUTPUTS_WRITTEN_IN_PLACE:
            return examine_path(path).path
        return os.path.join(examine_parent_directory(path).path, os.path.basename(path))
    except UntrustedFileError as error:
        raise path_refused(path, error.strerror) from None
    except OSError:  # The error is reported by ``_check_output_path``.
        directory, name = os.path.split(path)
        return os.path.join(os.path.realpath(directory or b"."), name)


def _is_root_socket(root: Root) -> bool:
    """True if the root is a single item, not a directory, and this item is a socket."""
    try:
        return bool(root.item) and stat.S_ISSOCK(os.lstat(source_path(root)).st_mode)
    except OSError:
        return False  # The error is reported when the item is copied.


def _check_output_path(output: str, path: bytes) -> None:
    """Raise ``RequestRefused`` unless the output can be written to ``path`` without destroying anything but an older
    output of the same kind.

    The outputs ``errors`` and ``log`` are truncated and written in place, even if ``path`` is a symbolic link; a pipe
    or a terminal is accepted, since nothing is lost there. These two are checked again when they are opened. All other
    outputs are new files that are renamed to ``path``, so any other item with that name would be lost.
    """
    if output in _OUTPUTS_WRITTEN_IN_PLACE:
        _check_output_written_in_place(output, path)
        return
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        _check_output_directory(path)
        _check_renames_are_possible(path)
        return
    except OSError as error:
        raise path_refused(path, f"cannot be written: {error.strerror}") from None
    _refuse_unless_regular(path, status, output)
    if not _is_older_output(path, output):
        called = _NOT_AN_OUTPUT_TEXTS.get(output, f"no {output}")
        raise path_refused(
            path, f"is there already, and is {called}; name another file, or remove it", code=errno.EEXIST
        )
    _check_output_directory(path)
    _check_renames_are_possible(path)


def _check_output_written_in_place(output: str, path: bytes) -> None:
    """Raise ``RequestRefused`` unless the output ``errors`` or ``log`` can be written to the file, pipe or terminal to
    which ``path`` leads.
    """
    from pcopy.fsio.named_file import check_file_is_writable, examine_path
    from pcopy.report.lines_file import LINE_BEGINNING_BY_OPTION, reason_not_to_overwrite

    try:
        found = examine_path(path)
        if found.status is None:
            _check_output_directory(found.path, path)
            return
        if stat.S_ISDIR(found.status.st_mode):
            _refuse_unless_regular(path, found.status, output)
        if found.is_inherited:
            return
        check_file_is_writable(found.status)
        if found.is_stream:
            return
        beginning = _first_bytes(path, max(map(len, LINE_BEGINNING_BY_OPTION.values())))
    except FileNotFoundError:
        _check_output_directory(path)
        raise path_refused(path, "leads through something that does not exist; name another file") from None
    except OSError as error:
        raise path_refused(path, f"cannot be written: {error.strerror}") from None
    if why := reason_not_to_overwrite(output, found.status, beginning):
        raise path_refused(path, why)


def _first_bytes(path: bytes, size: int) -> bytes:
    """Return the first ``size`` bytes of a regular file, or fewer if it is shorter. Raise ``RequestRefused`` if it
    cannot be read.
    """
    from pcopy.fsio.named_file import open_named_file_to_read

    try:
        with open(open_named_file_to_read(path, regular=True, keep_atime=True).descriptor, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise path_refused(path, f"is there already, and cannot be read: {error.strerror}") from None


def _is_older_output(path: bytes, output: str) -> bool:
    """True if the regular file ``path`` is empty, or begins like an older output of the same kind as ``output``."""
    from pcopy.report.metrics import is_beginning_of_metrics_file
    from pcopy.report.report import is_beginning_of_report_file
    from pcopy.signature.manifest import looks_like_manifest
    from pcopy.signature.signature_file import RECOGNITION_SIZE, looks_like_signature

    beginning = _first_bytes(path, RECOGNITION_SIZE)
    begins: Mapping[str, Callable[[bytes], bool]] = {
        "signature": looks_like_signature,
        "manifest": looks_like_manifest,
        "metrics": is_beginning_of_metrics_file,
        "report": is_beginning_of_report_file,
        "svg": partial(_begins_with_words, SVG_BEGINNING.encode()),
    }
    return not beginning or begins[output.partition(" ")[0]](beginning)


def _begins_with_words(words: bytes, beginning: bytes) -> bool:
    """Return True if ``beginning``, the first bytes of a file, starts with ``words``."""
    return beginning.startswith(words)


def _refuse_unless_regular(path: bytes, status: os.stat_result, output: str) -> None:
    """Raise ``RequestRefused`` if ``path`` (with the status ``status``) is not a regular file, so that no output may
    replace it.
    """
    from pcopy.fsio.named_file import reason_path_cannot_be_replaced

    if stat.S_ISDIR(status.st_mode):
        within = os.path.join(path, b"errors.jsonl" if output == "errors" else output.encode())
        raise path_refused(path, f"is a directory; name a file, such as {printable_path(within)}", code=errno.EISDIR)
    kind = output.partition(" ")[0]
    if why := reason_path_cannot_be_replaced(path, status.st_mode, _OUTPUT_NOUNS.get(kind, f"a {kind}")):
        raise path_refused(path, why)


def _check_output_directory(path: bytes, called: bytes = b"") -> None:
    """Raise ``RequestRefused`` unless the directory of ``path`` exists and files can be created there.

    Args:
        path: the path of the output.
        called: the path for messages, if it is not ``path``: a symbolic link to it that the user gave.
    """
    directory = os.path.dirname(_real_path_of_output(path, ""))
    if not os.path.isdir(directory):
        named = os.path.dirname(path) or directory
        advice = suggestion_for_missing_directory(named, "create it first")
        raise path_refused(
            called or path, f"the directory {printable_path(named)} does not exist; {advice}", code=errno.ENOENT
        )
    if why := reason_directory_is_unwritable(directory):
        raise path_refused(
            called or path,
            f"cannot be written, since {why}; name another file",
            code=unwritable_directory_code(directory),
        )


def _check_renames_are_possible(path: bytes) -> None:
    """Raise ``RequestRefused`` if the file system of ``path`` cannot rename files, as some mounts of object stores.

    The output could not be written then: it gets a temporary name, and is renamed to ``path`` when it is complete.
    """
    directory = os.path.dirname(_real_path_of_output(path, ""))
    if not supports_rename_and_random_writes(directory):
        from pcopy.tools.sequential import (
            refuse_file_system_without_rename,  # Imported here since few directories need it.
        )

        refuse_file_system_without_rename(directory, path, "name a file elsewhere", at_any_offset=False)


def umask_of_user() -> int:
    """Return the umask of this process. Since umask(2) can only be read by setting it, it is 077 for a moment."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def has_other_entries_than_sources(roots: Sequence[Root]) -> bool:
    """Return True if the directory into which several sources were copied also contains other items.

    Then its contents do not match the signature. Return False if it does not, or if it cannot be read.

    The number of its entries is compared with the expected number: one for each source, or, for a source with a
    trailing slash, the entries of the source.
    """
    if len(roots) == 1:
        return False  # For a single source, ``JobCounters.extra`` counts directories with other items.
    try:
        expected = sum(
            not _is_root_socket(root) if root.name else _directory_entry_count(root.source) for root in roots
        )
        return _directory_entry_count(roots[0].target) > expected
    except OSError:
        return False


def _directory_entry_count(path: bytes) -> int:
    """Return the number of entries of a directory; sockets do not count, since they are not part of a signature."""
    descriptor = _open_directory_keeping_atime(path)
    try:
        return entry_count(descriptor, counts_sockets=False)
    finally:
        os.close(descriptor)


def _open_directory_keeping_atime(path: bytes) -> int:
    """Open a directory for reading and return the descriptor. Its access time is kept (O_NOATIME) if that is permitted:
    only the owner of the directory and root may use the flag.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with suppress(PermissionError):
        return os.open(path, flags | os.O_NOATIME)
    return os.open(path, flags)


def write_signature_file(job: Job, sign: SignatureState) -> str:
    """Write the signature file, if ``--signature`` or ``--create`` was given. Return a message if that failed, or if
    the manifest could not be written before; "" if all is well.

    If the manifest could not be written, the signature is not written either.

    Args:
        sign: the signature that rank 0 has computed.
    """
    options = job.options
    if sign.manifest_error is not None:  # An old manifest is unchanged. So is an old signature, which fits it.
        return _text_of_write_error("manifest", options.manifest, sign.manifest_error)
    if not options.signature:
        return ""
    from pcopy.signature.signature_file import DatasetSignature, write_signature

    digest, tally = sign.signatures[0]
    signature = DatasetSignature(
        options.hash,
        options.block_size,
        digest.hex(),
        *tally,
        source=" ".join(printable_path(root.source_shown) for root in job.roots),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        generator=f"pcopy {__version__}",
    )
    try:
        write_signature(options.signature, signature, options.umask, job.temporary_name_id)
    except (OSError, RequestRefused) as error:
        return _text_of_write_error("signature", options.signature, error)
    return ""


def _text_of_write_error(output: str, path: bytes, error: Exception) -> str:
    """Return the message that the output called ``output`` could not be written to ``path`` because of ``error``."""
    if isinstance(error, RequestRefused):  # The text of the error contains the path.
        return f"the {output} could not be written: {error}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"{printable_path(path)}: the {output} could not be written: {reason}"
