"""pcopy: copies datasets that are too large for ``cp`` and ``rsync``."""

__version__ = "0.1.0"
"""Version of the package and of its programs."""
