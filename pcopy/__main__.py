"""Entry point of ``python -m pcopy``, which does the same as the command ``pcopy``.

For ``python -m``, Python puts the working directory at the front of its module search path (unless ``-P`` is given).
Another user may have put a file there that has the name of a module which pcopy imports later, such as ``yaml.py``. So
the working directory is removed from the search path here, unless the package itself lies in it. Nothing can be done
here about a file ``pcopy.py`` in the working directory: Python would run that instead of this one. ``python -P -m
pcopy`` and the installed command do not search the working directory.
"""

import os
import sys

_PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) != os.path.realpath(_PACKAGES):
    del sys.path[0]

try:
    from pcopy.cli.script import pcopy
except KeyboardInterrupt:
    os.write(2, b"pcopy: interrupted\n")
    os._exit(130)

pcopy()
