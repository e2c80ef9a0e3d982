"""pcopy with shorter silence limits: ``impatient.py CHECK,OWN_SILENCE,SILENCE_AFTER_SIGNAL,NO_ANSWER PYTHON -m pcopy
...``.
"""

from __future__ import annotations

import sys

from pcopy.cli.pcopy import main
from pcopy.launch.watch import watchdog

if __name__ == "__main__":
    watchdog.DEFAULT_INTERVALS = watchdog.WatchdogIntervals(*map(float, sys.argv[1].split(",")))
    sys.exit(main(sys.argv[5:]))
