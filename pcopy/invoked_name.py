"""The name under which a program was started, for its messages and its help.

Only modules are imported here that the interpreter has loaded already, since this is imported before SIGINT is handled.
"""

import os
import sys

OTHER_NAMES = {"pcopy-tar": "ptar"}
"""Further names under which programs are installed, and the usual name of each."""


def invoked_name(program: str) -> str:
    """Return the name under which ``program`` was started: one of ``OTHER_NAMES``, or ``program`` itself."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if OTHER_NAMES.get(name) == program else program
