"""Options that make DST equal to SRC: they delete the items from DST that SRC lacks, and keep backups of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import Option, parse_non_negative
from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import Namespace


MIRROR_OPTIONS: tuple[Option, ...] = (
    Option(
        "--mirror",
        "pcopy psync",
        "mirroring",
        "make DST equal to SRC: the same as --existing changed --delete",
        brief="make DST equal to SRC; delete what SRC lacks",
        in_files=False,
        variants={"psync": {"brief": ""}},
    ),
    Option(
        "--delete",
        "pcopy psync",
        "mirroring",
        "delete from DST what SRC lacks, when all is copied; if anything has failed, nothing is deleted",
        in_files=False,
    ),
    Option(
        "--max-delete",
        "pcopy psync",
        "mirroring",
        "delete nothing if more than N items would have to be deleted",
        value="N",
        parse=parse_non_negative,
        requires="delete mirror",
        variants={"psync": {"brief": "delete nothing if more than N items would be deleted"}},
    ),
    Option(
        "--delete-all",
        "pcopy psync",
        "mirroring",
        "delete even if SRC is empty; otherwise that is refused, since an empty SRC may be a "
        "mount point whose file system is not mounted",
        in_files=False,
    ),
    Option(
        "--backup",
        "pcopy psync",
        "mirroring",
        "move items to the same path below DIR before they are replaced or deleted; DIR is below "
        "DST unless it begins with a slash, and must be on the file system of DST",
        value="DIR",
        variants={"psync": {"brief": "keep what is replaced or deleted below DIR"}},
    ),
)
"""The options on mirroring and backups."""


def deletion_option_fields(values: Namespace, paths: tuple[bytes, ...], program: str) -> dict[str, Any]:
    """Return the values of the options about deletion and backups as fields of ``CopyOptions``.

    Args:
        values: the parsed options.
        paths: the operands SRC... DST.
        program: the name of the program, for messages. ``psync`` always mirrors, so a message names the program there,
            not the option ``--mirror``.

    Raise ``RequestRefused`` for options without effect and for contradictions.
    """
    delete = values.delete or values.mirror
    option_name = "--mirror" if values.mirror else "--delete"
    if program != "pcopy":
        option_name = program
    for given, option in ((values.max_delete is not None, "--max-delete"), (values.delete_all, "--delete-all")):
        if given and not delete:
            raise RequestRefused(f"{option} is for --delete and --mirror: give one of these, too; see pcopy --help")
    if values.mirror and values.existing not in (None, "changed"):
        raise RequestRefused(
            f"--mirror means --existing changed: leave out --existing {values.existing}, or write --delete"
        )
    if delete and len(paths) > 2:
        raise RequestRefused(
            f"{option_name} takes one SRC: an item that one SRC lacks may be in another; mirror them one by one"
        )
    if delete and values.list_file is not None:
        raise RequestRefused(
            f"{option_name} cannot be given with --from, which does not show what SRC lacks: leave one out"
        )
    if values.backup == "":
        raise RequestRefused("--backup: the empty string names no directory; see pcopy --help")
    if values.backup is not None and values.inplace:
        raise RequestRefused("--backup keeps files that are replaced, and --inplace writes over them: leave one out")
    backup = b"" if values.backup is None else os.fsencode(values.backup)
    max_delete = -1 if values.max_delete is None else values.max_delete
    return {"delete": delete, "max_delete": max_delete, "delete_all": values.delete_all, "backup": backup}
