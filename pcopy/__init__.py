"""pcopy: copies datasets that are too large for ``cp`` and ``rsync``."""

import sys

__version__ = "0.1.0"
"""Version of the package and of its programs."""

OLDEST_PYTHON = (3, 11)
"""The oldest version of Python with which the programs run; ``python_requires`` in setup.cfg says the same."""

if sys.version_info < OLDEST_PYTHON:
    from pcopy.old_python import refuse

    refuse(OLDEST_PYTHON)
