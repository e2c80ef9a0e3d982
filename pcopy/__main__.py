"""``python -m pcopy`` is ``pcopy``."""

import os

try:
    from pcopy.cli.script import pcopy
except KeyboardInterrupt:
    os.write(2, b"pcopy: interrupted\n")
    os._exit(130)

pcopy()
