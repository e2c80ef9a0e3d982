"""What ``--compress`` and ``--decompress`` mean for a job, and what they are refused beside."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pcopy.errors import Refused

if TYPE_CHECKING:
    from argparse import Namespace

_COMPARES = "pverify compares SRC with what pcopy --decompress makes of DST"

_AGAINST = {
    "verify": _COMPARES,
    "repair": _COMPARES,
    "checksum": "what is there is compared by its time: write --existing changed",
    "inplace": "a file that is compressed or decompressed is always made anew",
    "direct": "contents pass through memory",
    "drop_cache": "contents pass through memory",
    "mirror": "names in DST are others than in SRC: write --existing changed",
    "delete": "names in DST are others than in SRC",
    "stripe_affinity": "where a part of a file will lie is not known beforehand",
    "group_lock": "where a part of a file will lie is not known beforehand",
}
"""Options that cannot be had beside these, by ``dest``, and why, or what to do."""


def recoding_of(values: Namespace, existing: str) -> dict[str, Any]:
    """What these options mean, as fields of ``Options``; ``existing`` is the policy. Raises ``Refused``."""
    if values.compress is not None and values.decompress:
        raise Refused("--compress and --decompress are opposites: leave one out")
    asked = "--decompress" if values.decompress else "--compress"
    if find_spec("zstandard") is None:
        raise Refused(f"{asked} needs the Python package zstandard: install that, or leave it out")
    for name, why in _AGAINST.items():
        if getattr(values, name):
            raise Refused(f"--{name.replace('_', '-')} cannot be given with {asked}: {why}; leave one out")
    if existing not in ("replace", "changed"):
        raise Refused(f"{asked} goes with --existing replace or changed, not with {existing}: leave one out")
    if values.reflink == "always":
        raise Refused(f"--reflink always cannot be had with {asked}, which makes other contents: leave one out")
    for name in ("signature", "manifest"):
        if values.decompress and getattr(values, name):
            raise Refused(f"--{name} tells of SRC, and --decompress makes other contents: run pverify --create on DST")
    return {"compress": values.compress or "", "decompress": values.decompress}
