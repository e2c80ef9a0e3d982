"""The options that only ``pcopy`` and ``psync`` have, except those on jobs and mirroring."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import (
    Option,
    parse_chunk_size,
    parse_compression,
    parse_non_negative,
    parse_owner,
    parse_stripe,
    parse_stripe_table,
)
from pcopy.cli.common_options import (
    INPLACE_CHOICES,
)
from pcopy.cli.mistakes import similar_choice_hint
from pcopy.fsio.data import REFLINK_CHOICES
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.tasks.base.job import EXISTING_CHOICES, CopyOptions, Options
from pcopy.text import printable_path

if TYPE_CHECKING:
    pass

_EXCLUDED_BY_COMPRESSION = (
    "verify repair checksum inplace direct drop-cache stripe-affinity group-lock reflink=always "
    "update existing=newer existing=skip existing=fail"
)
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


COPY_OPTIONS: tuple[Option, ...] = (
    Option(
        "-u --update",
        "pcopy psync",
        "common options",
        "replace files only if the source is newer, or has the same time but another size; the "
        "same as --existing newer",
        brief="replace files only if the source is newer",
        action="store_const",
        const="newer",
        dest="existing",
        excludes="checksum mirror",
    ),
    Option(
        "--existing",
        "pcopy psync",
        "common options",
        "when to replace existing files: replace (always), changed (if size or contents differ; contents are compared "
        "if only times differ; metadata are set in any case), newer (as -u), skip (never), fail (never; they count as "
        "failed); default: replace",
        brief="replace, changed, newer, skip or fail",
        value="WHAT",
        parse=_parse_existing_file_policy,
        offered=tuple(EXISTING_CHOICES),
        excludes="update checksum mirror",
        field="existing",
        variants={
            "psync": {
                "brief": "",
                "help": "when to replace existing files: replace (always), changed (if size or contents differ; "
                "contents are compared if only times differ; metadata are set in any case), newer (as -u), skip "
                "(never), fail (never; they count as failed); default: changed",
            }
        },
    ),
    Option(
        "--checksum",
        "pcopy psync",
        "common options",
        "keep existing files whose contents are equal, whatever their times; replace others",
        excludes="mirror",
    ),
    Option(
        "--inplace",
        "pcopy psync",
        "common options",
        "write over existing files instead of replacing them by new ones; --inplace=sequential: "
        "write all files under their own names, each by one rank from start to end, for a DST "
        "that cannot rename",
        value="HOW",
        choices=INPLACE_CHOICES,
        nargs="?",
        const=INPLACE_CHOICES[0],
        excludes={"": "backup", "sequential": "update existing=newer existing=skip existing=fail"},
    ),
    Option(
        "-L --dereference", "pcopy psync", "common options", "follow symbolic links: copy the items that they lead to"
    ),
    Option(
        "-x --one-file-system",
        "pcopy psync",
        "common options",
        "stay on the file system of SRC: mount points become empty directories",
    ),
    Option(
        "--force",
        "pcopy psync",
        "common options",
        "go on where DST seems to have too little free space or inodes",
        in_files=False,
        with_commands="resume",
    ),
    Option(
        "-T --no-target-directory",
        "pcopy psync",
        "common options",
        "DST itself is the target, even if it is a directory",
    ),
    Option(
        "-a -r -R --archive --recursive",
        "pcopy psync",
        "common options",
        f"accepted without effect (also -{' -'.join(IGNORED_LETTERS.replace('t', ''))}, and t in a bundle of letters), "
        "since trees are copied whole, with all attributes, by default",
        dest="archive",
        is_listed=False,
        with_commands="resume",
    ),
    Option(
        " ".join(f"-{letter}" for letter in IGNORED_LETTERS),
        "pcopy psync",
        "common options",
        "",
        dest="archive",
        is_listed=False,
        with_commands="resume",
    ),
    Option(
        "--compress",
        "pcopy",
        "compressing",
        "write each regular file NAME as NAME.zst, which zstd -d reads; HOW: zstd, or zstd:LEVEL (1 to 22, default 3)",
        value="HOW",
        parse=parse_compression,
        in_files=False,
        excludes=_EXCLUDED_BY_COMPRESSION,
    ),
    Option(
        "--decompress",
        "pcopy",
        "compressing",
        "write each regular file NAME.zst as NAME; others are copied",
        in_files=False,
        excludes=_EXCLUDED_BY_COMPRESSION,
    ),
    Option(
        "--preserve",
        "pcopy psync",
        "what copies keep",
        "keep these attributes only (default: all)",
        action="append",
        value="LIST",
        parse=partial(_parse_attributes, "preserve"),
        list_words=lambda: (*PRESERVABLE_METADATA, "all"),
    ),
    Option(
        "--no-preserve",
        "pcopy psync",
        "what copies keep",
        "keep all attributes but these",
        action="append",
        value="LIST",
        parse=partial(_parse_attributes, "no_preserve"),
        dest="preserve",
        list_words=lambda: (*PRESERVABLE_METADATA, "all"),
    ),
    Option(
        "--chown",
        "pcopy psync",
        "what copies keep",
        "owner and group of all copies, names or numbers; either may be left out",
        value="USER:GROUP",
        parse=parse_owner,
        default=_DEFAULTS.preserve.chown,
    ),
    Option(
        "--modify-window",
        "pcopy psync",
        "what copies keep",
        "times that differ by at most SECONDS count as equal (default 0: only the same time, "
        "also if DST has rounded it down)",
        value="SECONDS",
        parse=parse_non_negative,
        default=_COPY_DEFAULTS.modify_window,
    ),
    Option(
        "--verify",
        "pcopy psync",
        "verification",
        "read copies back from storage and compare them with SRC; also files that --existing "
        "changed or --checksum has kept, but not those that -u or --existing skip has kept",
        brief="read copies back, and compare them with SRC",
    ),
    Option("--repair", "pcopy psync", "verification", "like --verify; also copy again the items that differ"),
    Option(
        "--signature",
        "pcopy psync",
        "verification",
        "write a signature (one digest of the whole dataset) to FILE, for pverify",
        value="FILE",
        in_files=False,
    ),
    Option(
        "--manifest",
        "pcopy psync",
        "verification",
        "write a manifest (a line with a digest for each item) to FILE, for pverify",
        value="FILE",
        in_files=False,
    ),
    Option(
        "--chunk-size",
        "pcopy psync",
        "tuning",
        "large files are copied in chunks of this size (default: auto)",
        value="SIZE",
        parse=parse_chunk_size,
        default=_COPY_DEFAULTS.chunk_size,
        offered=("auto",),
    ),
    Option(
        "--reflink",
        "pcopy psync",
        "tuning",
        "share contents with the source if both are on one file system that supports it: auto "
        "(default), never, always (files that cannot be shared fail)",
        value="WHEN",
        choices=REFLINK_CHOICES,
        default=_COPY_DEFAULTS.reflink,
    ),
    Option(
        "--direct",
        "pcopy psync",
        "tuning",
        "copy files above 4 MiB, and read them back to verify, without the page cache (O_DIRECT)",
    ),
    Option(
        "--drop-cache",
        "pcopy psync",
        "tuning",
        "after copying a file above 4 MiB, drop source and copy from the page cache",
    ),
    Option("--fsync", "pcopy psync", "tuning", "write each file to stable storage before it gets its name"),
    Option(
        "--no-sync",
        "pcopy psync",
        "tuning",
        "do not wait at the end until the copies are on stable storage",
        excludes="verify repair",
        with_commands="resume",
        field="sync",
    ),
    Option(
        "--stripe",
        "pcopy psync",
        "Lustre",
        "layout of new files: preserve (the source's; default), auto (by size), inherit (the "
        "default of the directory in DST), or COUNT[:SIZE]: number of stripes (-1: on all OSTs), "
        "bytes of each",
        value="HOW",
        parse=parse_stripe,
        offered=("preserve", "auto", "inherit"),
    ),
    Option(
        "--stripe-table",
        "pcopy psync",
        "Lustre",
        "for --stripe auto: stripes by size of file, as in 1,1G=8,10G=24,100G=72",
        value="TABLE",
        parse=parse_stripe_table,
        requires="stripe=auto",
    ),
    Option("--stripe-affinity", "pcopy psync", "Lustre", "split files so that each part lies on one OST"),
    Option(
        "--group-lock",
        "pcopy psync",
        "Lustre",
        "let the ranks that write to the same file share a group lock of Lustre (also done with --direct)",
    ),
)
"""The options that only ``pcopy`` and ``psync`` have, but for those on jobs and mirroring."""
