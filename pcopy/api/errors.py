"""The exceptions of the interface for Python: one for each exit status of the programs."""

from __future__ import annotations

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized
    from typing import Any, Protocol

    from pcopy.api.results import FailedItem

    class Failures(Sized, Protocol):
        """The items that failed, in the order in which they were reported; it can be iterated several times."""

        def __iter__(self) -> Iterator[FailedItem]: ...


class Error(Exception):
    """Base class: a program did not do all that it was asked to do.

    Attributes:

    - ``status``: the exit status of the program; negative: the number of the signal that has killed it; None: it was
      not started.
    - ``message``: what the program printed about the end of the job, without the name of the program.
    - ``job``: the name of the job, if it is kept and ``pcopy.resume`` can continue it; otherwise None.
    - ``result``: the summary of the program, an object such as ``CopyResult``; None if it printed none.
    - ``failures``: the items that failed.
    - ``errno``, ``filename``: as in ``OSError``: of the first of these or, for ``Refused``, of the reason. None if
      there is none.
    """

    errno: int | None = None
    filename: bytes | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        job: str | None = None,
        result: Any = None,
        failures: Failures = (),
        errno: int | None = None,
        filename: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.job = job
        self.result = result
        self.failures = failures
        self.errno, self.filename = errno, filename
        for first in failures:
            self.errno, self.filename = first.errno or None, first.path
            break

    def __str__(self) -> str:
        resume = f"; to resume it: pcopy.resume({self.job!r})" if self.job else ""
        return f"{self.message}{resume}"


class Refused(Error):
    """The request was refused, and nothing was changed (status 2).

    ``filename`` is the path that the refusal concerns. ``errno`` is that of the call of the system that has failed; or
    ``ENOENT``, ``EEXIST``, ``ENOTDIR`` or ``EISDIR`` if the path is missing, exists already, or has the wrong type; or
    ``EROFS`` or ``EACCES`` if no file can be created in a directory.
    """


class InvalidOption(Refused, TypeError):
    """A keyword is not an option of the function, or its value has the wrong type. No program was started."""


class ItemsFailed(Error):
    """The job ran to its end, but items failed (status 1). Iterating yields each failure."""

    def __iter__(self) -> Iterator[FailedItem]:
        return iter(self.failures)


class Different(ItemsFailed):
    """``verify`` has found that the contents are not those of the signature or of the manifest (status 1).

    ``result.differences`` has the items that differ from a manifest.
    """


class Stopped(Error):
    """The job was stopped early, in order (status 75): by a signal, ``stop``, ``max_errors``, or a full file system.

    A copy is kept: ``job`` is its name, unless the option ``checkpoint`` is ``none``.
    """


class InternalError(Error):
    """The program failed (status 70), was killed, or its output is not complete."""


for _public in (Different, Error, InternalError, InvalidOption, ItemsFailed, Refused, Stopped):
    _public.__module__ = "pcopy"
