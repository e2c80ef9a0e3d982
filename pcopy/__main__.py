"""``python -m pcopy`` is ``pcopy``."""

import sys

from pcopy.cli.main import main

sys.exit(main())
