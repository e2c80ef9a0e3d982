"""The values of ``--compress`` and ``--decompress``, and a check of the options that cannot be combined with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import Namespace

_COMPARE_INSTEAD_ADVICE = "pverify compares SRC with what pcopy --decompress makes of DST"

_OPTIONS_EXCLUDED_BY_COMPRESSION = {
    "verify": _COMPARE_INSTEAD_ADVICE,
    "repair": _COMPARE_INSTEAD_ADVICE,
    "checksum": "existing files are compared by time: write --existing changed",
    "inplace": "a file that is compressed or decompressed is always a new file",
    "direct": "contents pass through memory",
    "drop_cache": "contents pass through memory",
    "mirror": "names in DST are others than in SRC: write --existing changed",
    "delete": "names in DST are others than in SRC",
    "stripe_affinity": "the offset of a part in the new file is not known beforehand",
    "group_lock": "the offset of a part in the new file is not known beforehand",
}
"""Options that cannot be given with ``--compress`` or ``--decompress``, as attributes of argparse's namespace.

The value is the reason, or what to do instead.
"""


def compression_option_fields(values: Namespace, existing: str) -> dict[str, Any]:
    """Return the values of ``--compress`` and ``--decompress`` as fields of ``CopyOptions``; at least one of them is
    given.

    ``existing`` is the policy for existing files. Raise ``RequestRefused`` if other options cannot be combined with
    these two, or if the package zstandard is not installed.
    """
    if values.compress is not None and values.decompress:
        raise RequestRefused("--compress and --decompress are opposites: leave one out")
    option_name = "--decompress" if values.decompress else "--compress"
    try:
        import zstandard  # noqa: F401 (raises ImportError if it is not installed)
    except ModuleNotFoundError:
        raise RequestRefused(
            f"{option_name} needs the Python package zstandard: pip install zstandard, or leave the option out"
        ) from None
    for name, why in _OPTIONS_EXCLUDED_BY_COMPRESSION.items():
        if getattr(values, name):
            raise RequestRefused(f"--{name.replace('_', '-')} cannot be given with {option_name}: {why}; leave one out")
    if existing not in ("replace", "changed"):
        raise RequestRefused(
            f"{option_name} can only be given with --existing replace or changed, not with {existing}: leave one out"
        )
    if values.reflink == "always":
        raise RequestRefused(
            f"--reflink always cannot be given with {option_name}, which changes contents: leave one out"
        )
    for name in ("signature", "manifest"):
        if values.decompress and getattr(values, name):
            raise RequestRefused(
                f"--{name} describes SRC, not the files that --decompress writes: run pverify --create on DST instead"
            )
    return {"compress": values.compress or "", "decompress": values.decompress}
