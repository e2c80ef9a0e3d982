"""Messages about exceptions that no other code has caught, with forked ranks and under a launcher alike."""

from __future__ import annotations

import os
import sys

from pcopy import errors
from pcopy.report.streams import tell
from pcopy.text import shown

_PACKAGES = {"yaml": "PyYAML"}  # modules whose package has another name


def tell_unexpected(name: str, error: Exception) -> int:
    """Print a message about ``error`` for the program ``name``; return the exit status."""
    if text := missing_package(error):
        tell(name, text)
        return errors.REFUSED
    if isinstance(error, FileNotFoundError) and error.filename is None and not _is_somewhere():
        tell(name, "the current directory does not exist any longer; change to another one, or use absolute paths")
        return errors.REFUSED
    if isinstance(error, errors.HINDRANCES):
        tell(name, f"cannot begin: {errors.hindrance(error)}")
        return errors.REFUSED
    import traceback

    traceback.print_exc()
    tell(name, f"internal error: {type(error).__name__} (see above)")
    return errors.INTERNAL


def missing_package(error: Exception) -> str:
    """Return the message for a package that cannot be loaded; empty for any other error."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if module in ("", "pcopy"):
        return ""
    closed = _closed()
    advice = f"this user may not read {shown(closed)}, where it may be" if closed else "install it"
    return f"the Python package {_PACKAGES.get(module, module)} cannot be loaded ({error}); {advice}"


def _closed() -> bytes:
    """Return a directory of Python packages that this user cannot read, and that Python ignores silently; empty
    if there is none.
    """
    for directory in sys.path:
        try:
            os.stat(directory)
        except PermissionError:
            return os.fsencode(directory)
        except OSError:
            continue
        if os.path.isdir(directory) and not os.access(directory, os.R_OK | os.X_OK):
            return os.fsencode(directory)
    return b""


def _is_somewhere() -> bool:
    """True if the current directory exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
