"""The message for users who start a program of this package with a Python that is too old for it.

Only ``pcopy/__init__.py`` imports this module, and only if the Python is too old. So this file, ``pcopy/__init__.py``
and the files in ``bin`` contain only syntax that Python 2.7 and 3.6 accept, too: no annotations and no f-strings.
"""
# ruff: noqa: UP031

import os
import re
import sys

NEWER_PYTHONS = ["python3.%d" % minor for minor in range(20, 10, -1)]
"""Names of commands that start a Python which is new enough, the newest first."""


def refuse(needed):  # type: (tuple[int, int]) -> None
    """Print one line that says which Python is needed and what to do, and end the process with status 2.

    ``needed`` is the oldest version that is new enough, as major and minor number.
    """
    program = os.path.basename(sys.argv[0])
    arguments = _shown(sys.argv[0])
    if not program.isalpha():  # python -m pcopy
        program, arguments = "pcopy", "-m pcopy"
    newer = _first_on_path(NEWER_PYTHONS)
    if newer:
        advice = "start it with %s %s" % (_shown(newer), arguments)
    else:
        advice = "install the package python3.11 or load its module, then start it with python3.11 %s" % arguments
    version = "%d.%d.%d" % sys.version_info[:3]
    wanted = "%d.%d" % needed
    sys.stderr.write("%s needs Python %s or newer, this is %s: %s\n" % (program, wanted, version, advice))
    sys.exit(2)


def _first_on_path(names):  # type: (list[str]) -> str
    """Return the path of the first of the commands ``names`` that a directory of PATH contains; "" if none does."""
    directories = [path for path in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(path)]
    for name in names:
        for directory in directories:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return ""


def _shown(path):  # type: (str) -> str
    """Return ``path`` as a word of a command line; "?" stands for characters that are not printable ASCII."""
    printable = "".join(character if " " <= character <= "~" else "?" for character in path)
    return printable if re.match(r"[\w@%+=:,./-]+$", printable) else "'%s'" % printable.replace("'", "'\\''")
