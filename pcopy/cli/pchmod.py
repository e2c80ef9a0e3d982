"""The program ``pchmod``: changes modes, owners and ACLs of directory trees with many processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pcopy.cli.argument_types import Option, parse_owner
from pcopy.cli.common_options import COMMON_OPTIONS
from pcopy.cli.filter_options import FILTER_OPTIONS
from pcopy.cli.mistakes import ADVICE_OF_PCHMOD
from pcopy.cli.tree_program import TreeProgramCommandLine
from pcopy.errors import RequestRefused, path_refused
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import ChmodArguments

_UNCHANGED_OWNER = (-1, -1)
"""The value of ``--owner`` if it is not given: user and group ID that mean "leave unchanged"."""


def _parse_group(text: str) -> int:
    """Return the ID of the group ``text``. Raise ``ValueError`` if there is no such group."""
    return parse_owner(f":{text}")[1]


PCHMOD_OPTIONS: tuple[Option, ...] = (
    Option(
        "--mode",
        "pchmod",
        "what is changed",
        "the mode, as in chmod (u+rwX,go-w; 0750), if it is not written before PATH",
        brief="the mode, if it is not written before PATH",
        value="MODE",
        in_files=False,
    ),
    Option(
        "--reference", "pchmod", "what is changed", "set the mode of FILE, as in chmod", value="FILE", in_files=False
    ),
    Option(
        "--owner",
        "pchmod",
        "what is changed",
        "the owner (a name or a number), and optionally the group, as in chown",
        brief="the owner, and optionally the group, as in chown",
        value="USER[:GROUP]",
        parse=parse_owner,
        default=_UNCHANGED_OWNER,
        in_files=False,
    ),
    Option(
        "--group",
        "pchmod",
        "what is changed",
        "the group (a name or a number)",
        brief="the group",
        value="GROUP",
        parse=_parse_group,
        default=-1,
        in_files=False,
    ),
    Option(
        "--acl-from",
        "pchmod",
        "what is changed",
        "the ACL of FILE; if FILE is a directory, directories also get its default ACL",
        brief="the ACL of FILE",
        value="FILE",
        in_files=False,
    ),
)
"""The options that only ``pchmod`` has."""


class PchmodCommandLine(TreeProgramCommandLine):
    """The command line of ``pchmod``."""

    option_tables = (PCHMOD_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "change", "changed"
    option_advice = ADVICE_OF_PCHMOD
    usage = """\
pchmod [options] MODE PATH...
       pchmod [options] --owner USER[:GROUP] PATH...
       pchmod [options] --from FILE MODE [PATH]"""
    description = """\
Gives files and whole directory trees other modes, owners, groups and ACLs, as
chmod -R, chown -hR and setfacl -R do. Only what differs is changed. Symbolic
links in a tree are not followed: --owner changes the link itself.
"""
    examples = """\
examples:
  pchmod u=rwX,go=rX /data/run7
  pchmod --dry-run g+w /data/run7
  pchmod --owner alice:physics /data/run7
  pchmod --group physics g+rwX,o= /data/run7
  mpiexec -n 16 pchmod --acl-from /data/run6 /data/run7

exit status:
  0 all items are as requested; 1 some failed; 2 refused, nothing was changed;
  70 internal error; 75 stopped early: the same command continues
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.change import CHANGE_TOOL, ChmodJob

        return ToolEntryPoint(CHANGE_TOOL, lambda words: self.parse_command_line(words, ChmodJob))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> ChmodArguments:
        from pcopy.tools.arguments import ChmodArguments

        owner, group = values.owner
        group = values.group if values.group >= 0 else group
        mode, paths = _requested_mode_and_paths(values, paths)
        access, default = _read_acls(values.acl_from)
        if access and mode:
            raise RequestRefused("--acl-from gives the permissions, too: leave MODE out")
        return ChmodArguments(self.tree_arguments(values, paths, "changed"), (mode, owner, group, access, default))


class _ModeAndPaths(NamedTuple):
    """What ``pchmod`` is to do: the ``mode`` to set, as in chmod(1) (empty: none), and the ``paths`` to change."""

    mode: str
    paths: tuple[bytes, ...]


def _requested_mode_and_paths(values: Namespace, paths: tuple[bytes, ...]) -> _ModeAndPaths:
    """Return the mode to set and the paths to change.

    The mode is the value of ``--mode``, the mode of the file that ``--reference`` names, or the first of the operands
    ``paths``. With ``--owner``, ``--group`` or ``--acl-from`` no mode is needed: then the first operand is taken for a
    mode only if it is a valid one. Raise ``RequestRefused`` if a mode is needed and missing, or if the first operand
    could be both a mode and an existing file.
    """
    if values.mode is not None and values.reference is not None:
        raise RequestRefused("--mode and --reference both set the mode: leave one out")
    if values.reference is not None:
        with _file_opened_for_status("--reference", values.reference) as descriptor:
            return _ModeAndPaths(f"{stat.S_IMODE(os.fstat(descriptor).st_mode):05o}", paths)
    if values.mode is not None:
        if not _is_valid_mode(values.mode):
            raise RequestRefused(
                f"--mode {printable_path(os.fsencode(values.mode))}: is not a mode; write one as chmod takes it"
            )
        return _ModeAndPaths(values.mode, paths)
    asks_for_more = values.owner != _UNCHANGED_OWNER or values.group >= 0 or values.acl_from is not None
    first = os.fsdecode(paths[0]) if paths else ""
    if not asks_for_more:
        if not paths:
            raise RequestRefused("MODE and PATH expected; see pchmod --help")
        if not _is_valid_mode(first):
            raise path_refused(paths[0], f"is not a mode; {_missing_mode_advice(paths)}")
        return _ModeAndPaths(first, paths[1:])
    if not _is_valid_mode(first):
        return _ModeAndPaths("", paths)
    if os.path.lexists(paths[0]):
        name = printable_path(paths[0])
        raise RequestRefused(
            f"{name}: is both a mode and an existing path; write --mode {name} for the mode, ./{name} for the path"
        )
    return _ModeAndPaths(first, paths[1:])


def _missing_mode_advice(paths: tuple[bytes, ...]) -> str:
    """Return advice on the operands ``paths``, the first of which should be a mode but is not."""
    first, *others = map(os.fsdecode, paths)
    mode = next(filter(_is_valid_mode, others), None)
    if mode is not None:
        return f"{mode} is one: write it before PATH"
    if ":" in first and not os.path.lexists(first):
        return f"for an owner write --owner {printable_path(paths[0])}"
    return "write MODE first, as in pchmod u+rwX PATH, or --owner USER"


def _is_valid_mode(text: str) -> bool:
    """Return True if ``text`` is a mode as chmod(1) takes it, octal or symbolic."""
    from pcopy.fsio.modes import parse_mode

    try:
        parse_mode(text)
    except ValueError:
        return False
    return True


@contextmanager
def _file_opened_for_status(option: str, file: str) -> Iterator[int]:
    """Context manager: open ``file`` with O_PATH, only to read its metadata; yield the descriptor, and close it at the
    end.

    ``option`` is the option whose value is ``file``, for the message. Raise ``RequestRefused`` if the file cannot be
    opened.
    """
    from pcopy.fsio.named_file import item_opened_for_status

    path = os.fsencode(file)
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(item_opened_for_status(path))
        except OSError as error:
            advice = "; name a file that is there" if isinstance(error, FileNotFoundError) else ""
            raise path_refused(path, f"{error.strerror}{advice}", option=option) from None
        yield descriptor


def _read_acls(file: str | None) -> tuple[bytes, bytes]:
    """Return the access ACL and the default ACL of ``file``, as values of extended attributes.

    If ``file`` has no access ACL, the first result is the ACL that corresponds to its mode. If it has no default ACL,
    the second one is empty. Both are empty if ``file`` is None. Raise ``RequestRefused`` if an ACL cannot be read.
    """
    if file is None:
        return b"", b""
    import errno

    from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR
    from pcopy.fsio.nodes import proc_path_of_descriptor
    from pcopy.tasks.change.intended_metadata import acl_of_mode

    with _file_opened_for_status("--acl-from", file) as descriptor:
        found = {ACCESS_ACL_XATTR: acl_of_mode(os.fstat(descriptor).st_mode), DEFAULT_ACL_XATTR: b""}
        for name in found:
            try:
                found[name] = os.getxattr(proc_path_of_descriptor(descriptor), name)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    why = f"cannot read its ACL: {error.strerror}"
                    raise path_refused(os.fsencode(file), why, option="--acl-from") from None
    return found[ACCESS_ACL_XATTR], found[DEFAULT_ACL_XATTR]


PCHMOD = PchmodCommandLine()
main = PCHMOD.main
