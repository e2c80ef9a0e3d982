"""The options that only ``pcopy`` and ``psync`` have: one function for each group of options in their help."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import (
    converter_for_argparse,
    parse_block_size,
    parse_chunk_size,
    parse_non_negative,
    parse_owner,
    parse_ranks,
    parse_stripe,
    parse_stripe_table,
)
from pcopy.cli.common_options import (
    DRY_RUN_CHOICES,
    INPLACE_CHOICES,
    add_in_flight_option,
    add_limit_options,
    add_ranks_option,
    add_termination_option,
)
from pcopy.cli.mistakes import similar_choice_hint
from pcopy.fsio.data import REFLINK_CHOICES
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.signature.algorithms import ALGORITHM_NAMES
from pcopy.tasks.base.job import EXISTING_CHOICES, CopyOptions, Options
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import ArgumentParser

IGNORED_LETTERS = "pdPltgoDHAXS"
"""Single-letter options of cp and rsync that are accepted without effect: pcopy does what they mean by default."""
_ALL_ATTRIBUTES = "all"
_DEFAULTS, _COPY_DEFAULTS = Options(), CopyOptions()


def _parse_existing_file_policy(text: str) -> str:
    """Return ``text``, the value of ``--existing``. Raise ``ValueError`` if it is not one of ``EXISTING_CHOICES``."""
    if text not in EXISTING_CHOICES:
        hint = similar_choice_hint(text, EXISTING_CHOICES) or " (rsync's --existing is not in this version)"
        raise ValueError(f"not one of {', '.join(EXISTING_CHOICES)}{hint}")
    return text


def _attribute_names() -> tuple[str, ...]:
    """Return the words that the list of ``--preserve`` may contain."""
    return (*PRESERVABLE_METADATA, "all")


def _parse_attributes(option: str, text: str) -> tuple[str, Sequence[str]]:
    """Return ``option`` ("preserve" or "no_preserve") and the attributes in ``text``, a comma-separated list.

    "all" stands for all attributes. Raise ``ValueError`` for an unknown one.
    """
    words = text.split(",")
    valid = (*PRESERVABLE_METADATA, _ALL_ATTRIBUTES)
    for word in words:
        if word not in valid:
            unknown = f"'{printable_path(os.fsencode(word))}' is not one of"
            raise ValueError(f"{unknown} {', '.join(valid)}{similar_choice_hint(word, valid)}")
    return option, PRESERVABLE_METADATA if _ALL_ATTRIBUTES in words else words


def add_common_options(parser: ArgumentParser, program: str) -> None:
    """Add the most frequently used options to ``parser``. ``program`` is the program's name."""
    from argparse import SUPPRESS  # argparse compares it by identity: an equal string would be shown as help text.

    everyday = parser.add_argument_group("common options")
    add = everyday.add_argument
    add_ranks_option(everyday, program, "copy", parse_ranks)
    add("-u", "--update", dest="existing", action="store_const", const="newer", default=None,
        help="replace files only if the source is newer, or has the same time but another size; the same as "
        "--existing newer")  # fmt: skip
    add("--existing", metavar="WHAT", type=converter_for_argparse(_parse_existing_file_policy), default=None,
        help="when to replace existing files: replace (always), changed (if size or contents differ; contents "
        "are compared if only times differ; metadata are set in any case), newer (as -u), skip (never), fail (never; "
        f"they count as failed); default: {'changed' if program == 'psync' else 'replace'}")  # fmt: skip
    add("--checksum", action="store_true",
        help="keep existing files whose contents are equal, whatever their times; replace others")  # fmt: skip
    add("--inplace", metavar="HOW", nargs="?", choices=INPLACE_CHOICES, const=INPLACE_CHOICES[0], default=None,
        help="write over existing files instead of replacing them by new ones; --inplace=sequential: write all files "
        "under their own names, each by one rank from start to end, for a DST that cannot rename")  # fmt: skip
    add("-L", "--dereference", action="store_true", help="follow symbolic links: copy the items that they lead to")
    add("-x", "--one-file-system", action="store_true",
        help="stay on the file system of SRC: mount points become empty directories")  # fmt: skip
    add("--dry-run", metavar="WHICH", nargs="?", choices=DRY_RUN_CHOICES, const=DRY_RUN_CHOICES[0], default=None,
        help="change nothing; list the items that would be changed (with WHICH all: all items), then totals, sizes, "
        "free space. A line has the action and, for an existing item, what differs: type, size, time, mode, owner, "
        "acl, xattr, content, link (not yet a hard link)")  # fmt: skip
    add("--force", action="store_true", help="go on where DST seems to have too little free space or inodes")
    add("-T", "--no-target-directory", action="store_true", help="DST itself is the target, even if it is a directory")
    add("-a", "-r", "-R", "--archive", "--recursive", dest="archive", action="store_true",
        help=f"accepted without effect (also -{' -'.join(IGNORED_LETTERS.replace('t', ''))}, and t in a "
        "bundle of letters), since trees are copied whole, with all attributes, by default")  # fmt: skip
    add(*[f"-{letter}" for letter in IGNORED_LETTERS], dest="archive", action="store_true", help=SUPPRESS)


def add_attribute_options(parser: ArgumentParser) -> None:
    """Add the options that select the attributes that copies get from their sources."""
    words = (
        f"LIST: some of {', '.join(PRESERVABLE_METADATA[:-1])},\n{PRESERVABLE_METADATA[-1]}, {_ALL_ATTRIBUTES}; "
        "separated by commas"
    )
    add = parser.add_argument_group("what copies keep", words).add_argument
    add("--preserve", metavar="LIST", action="append",
        type=converter_for_argparse(partial(_parse_attributes, "preserve"), _attribute_names),
        help="keep these attributes only (default: all)")  # fmt: skip
    add("--no-preserve", dest="preserve", metavar="LIST", action="append",
    type=converter_for_argparse(partial(_parse_attributes, "no_preserve"), _attribute_names),
        help="keep all attributes but these")  # fmt: skip
    add("--chown", metavar="USER:GROUP", type=converter_for_argparse(parse_owner),
        default=_DEFAULTS.preserve.chown,
        help="owner and group of all copies, names or numbers; either may be left out")  # fmt: skip
    add("--modify-window", metavar="SECONDS", type=converter_for_argparse(parse_non_negative),
        default=_COPY_DEFAULTS.modify_window,
        help="times that differ by at most SECONDS count as equal (default 0: only the same time, also if DST has "
        "rounded it down)")  # fmt: skip


def add_verification_options(parser: ArgumentParser) -> None:
    """Add the options about verification and digests to ``parser``."""
    add = parser.add_argument_group("verification").add_argument
    add("--verify", action="store_true",
        help="read copies back from storage and compare them with SRC; also files that --existing changed or "
        "--checksum has kept, but not those that -u or --existing skip has kept")  # fmt: skip
    add("--repair", action="store_true", help="like --verify; also copy again the items that differ")
    add("--signature", metavar="FILE", help="write a signature (one digest of the whole dataset) to FILE, for pverify")
    add("--manifest", metavar="FILE", help="write a manifest (a line with a digest for each item) to FILE, for pverify")
    add("--hash", choices=(*ALGORITHM_NAMES, "none"), metavar="HOW", default=None,
        help="digest while copying: xxh3-128 (detects accidents; the default where a digest is needed), "
        "blake3 (resists forgery), none (the default elsewhere)")  # fmt: skip


def add_tuning_options(parser: ArgumentParser) -> None:
    """Add the options that affect speed, memory, caches and syncs."""
    tuning = parser.add_argument_group("tuning", "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)")
    add = tuning.add_argument
    add("--chunk-size", metavar="SIZE", type=converter_for_argparse(parse_chunk_size),
        default=_COPY_DEFAULTS.chunk_size,
        help="large files are copied in chunks of this size (default: auto)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=converter_for_argparse(parse_block_size),
        default=_DEFAULTS.block_size,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip
    add("--reflink", choices=REFLINK_CHOICES, metavar="WHEN", default=_COPY_DEFAULTS.reflink,
        help="share contents with the source if both are on one file system that supports it: auto (default), never, "
        "always (files that cannot be shared fail)")  # fmt: skip
    add("--direct", action="store_true",
        help="copy files above 4 MiB, and read them back to verify, without the page cache (O_DIRECT)")  # fmt: skip
    add("--drop-cache", action="store_true",
        help="after copying a file above 4 MiB, drop source and copy from the page cache")  # fmt: skip
    add("--fsync", action="store_true", help="write each file to stable storage before it gets its name")
    add("--no-sync", action="store_true", help="do not wait at the end until the copies are on stable storage")
    add("--max-errors", metavar="N", type=converter_for_argparse(parse_non_negative), default=_DEFAULTS.max_errors,
        help="stop after N failed items (default 0: never)")  # fmt: skip
    add_limit_options(tuning)
    add_in_flight_option(tuning)
    add_termination_option(tuning)


def add_lustre_options(parser: ArgumentParser) -> None:
    """Add the options about the layout of files on Lustre to ``parser``."""
    add = parser.add_argument_group("Lustre", "where DST is on another file system, these have no effect").add_argument
    add("--stripe", metavar="HOW", type=converter_for_argparse(parse_stripe), default=None,
        help="layout of new files: preserve (the source's; default), auto (by size), inherit (the default of the "
        "directory in DST), or COUNT[:SIZE]: number of stripes (-1: on all OSTs), bytes of each")  # fmt: skip
    add("--stripe-table", metavar="TABLE", type=converter_for_argparse(parse_stripe_table), default=None,
        help="for --stripe auto: stripes by size of file, as in 1,1G=8,10G=24,100G=72")  # fmt: skip
    add("--stripe-affinity", action="store_true", help="split files so that each part lies on one OST")
    add(
        "--group-lock",
        action="store_true",
        help="let the ranks that write to the same file share a group lock of Lustre (also done with --direct)",
    )
