"""What to tell of an error that nobody has caught, where ranks are forked and under a launcher alike."""

from __future__ import annotations

import os
import sys

from pcopy import errors

_PACKAGES = {"yaml": "PyYAML"}  # modules whose package is called otherwise


def tell_unexpected(name: str, error: Exception) -> int:
    """Tells of it in the name of the command ``name``; returns the exit status."""
    if isinstance(error, ImportError) and (module := (error.name or "").partition(".")[0]) not in ("", "pcopy"):
        package = _PACKAGES.get(module, module)
        print(f"{name}: the Python package {package} cannot be loaded ({error}); install it", file=sys.stderr)
        return errors.REFUSED
    if isinstance(error, FileNotFoundError) and error.filename is None and not _is_somewhere():
        print(
            f"{name}: the current directory does not exist any longer; change to another, or name all paths from /",
            file=sys.stderr,
        )
        return errors.REFUSED
    import traceback

    traceback.print_exc()
    print(f"{name}: internal error: {type(error).__name__} (see above)", file=sys.stderr)
    return errors.INTERNAL


def _is_somewhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
