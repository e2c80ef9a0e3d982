"""The command ``pverify``, which is to compare trees with signatures and with each other.

It is not part of this version; rule: it says so and ends as if in trouble, so that no script takes it for a success.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pcopy import __version__
from pcopy.errors import OK, REFUSED

_HELP = """\
usage: pverify [options] A B

Will tell whether two directories or files hold the same.
It is not part of this version of pcopy: it does nothing yet, and ends with
status 2.

  --version   print the version and exit
  -h, --help  print this help and exit"""


def main(argv: Sequence[bytes | str] | None = None) -> int:
    """Runs the command with ``argv`` (default: the process's own, without its name); returns the exit status."""
    words = [os.fsdecode(word) for word in (sys.argv[1:] if argv is None else argv)]
    if "--version" in words:
        print(f"pverify {__version__}")
        return OK
    if "-h" in words or "--help" in words:
        print(_HELP)
        return OK
    print("pverify: not part of this version of pcopy yet; nothing was compared", file=sys.stderr)
    return REFUSED
