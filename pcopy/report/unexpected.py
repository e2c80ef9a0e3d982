"""Messages about exceptions that no other code has caught, for all programs, with and without an MPI launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pcopy import errors
from pcopy.report.streams import print_error, report_refusal
from pcopy.text import printable_path

_PACKAGE_NAME_BY_MODULE = {"yaml": "PyYAML"}
"""Names of Python packages that differ from the name of the module, by module name; messages name the package to
install.
"""


def report_unexpected_exception(name: str, error: Exception, words: Sequence[bytes | str]) -> int:
    """Print a message about ``error``, an exception that no other code has caught; return the exit status.

    ``name`` is the program's name, ``words`` are its arguments. For an error that is probably a bug, the traceback is
    printed, too.
    """
    text = missing_package_text(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and not _working_directory_exists():
        text = "the current directory does not exist any longer; change to another one, or use absolute paths"
    elif not text and isinstance(error, errors.RESOURCE_EXCEPTIONS):
        text = f"cannot begin: {errors.resource_error_text(error)}"
    if text:
        report_refusal(name, errors.RequestRefused(text, code=getattr(error, "errno", None) or 0), words)
        return errors.EXIT_REFUSED
    import traceback

    traceback.print_exc()
    print_error(name, f"internal error: {type(error).__name__} (see above)")
    return errors.EXIT_INTERNAL


def missing_package_text(error: Exception) -> str:
    """Return the message for a Python package other than pcopy that cannot be imported; empty for any other error."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if module in ("", "pcopy"):
        return ""
    package, closed = _PACKAGE_NAME_BY_MODULE.get(module, module), _unreadable_package_directory()
    if isinstance(error, ModuleNotFoundError) and not closed:
        return f"this needs the Python package {package}: pip install {package}"
    advice = f"this user may not read {printable_path(closed)}, where it may be" if closed else "install it again"
    return f"the Python package {package} cannot be loaded ({error}); {advice}"


def _unreadable_package_directory() -> bytes:
    """Return the first directory of ``sys.path`` that this user may not read; empty if there is none.

    Python ignores such a directory silently, so that the packages in it seem not to be installed; the message about a
    missing package names the directory.
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


def _working_directory_exists() -> bool:
    """True if the working directory exists; False if it was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
