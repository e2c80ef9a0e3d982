"""pcopy: moves datasets that do not fit ``cp`` and ``rsync``."""

__version__ = "0.1.0"
