"""Entry point of ``python -m pcopy``, which is the same as ``pcopy``.

For this command Python puts the working directory at the front of its module search path (not with ``-P``). Another
user may have put a module there that is imported later, such as ``yaml.py``. So the entry is removed here, unless the
package itself is in that directory. (A file ``pcopy.py`` there would run instead of this one. ``python -P -m pcopy``
and the installed command do not search there.)
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
