"""``python -m pcopy`` is ``pcopy``.

Python puts the working directory in front of its path for this (not with ``-P``), where another user may have put a
module that is loaded later, such as ``yaml.py``. It is removed here, unless the package itself is in it. (A file
``pcopy.py`` there runs instead of this one; ``python -P -m pcopy`` and the installed command do not look there.)
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
