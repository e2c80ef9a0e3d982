"""The functions of the interface for Python: each runs one of the programs.

A function is an object (``Function``), so that ``start`` knows its program. What is written here is only how its
parameters become operands, and what the exit statuses mean; its options are in ``keywords.py``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import index

from pcopy.api.arguments import (
    Paths,
    StrOrBytesPath,
    file_path_of,
    option_words,
    optional_paths_of,
    path_of,
    paths_of,
    refusing_unknown_keywords,
    shown_value,
    words_of,
    wrong_value,
)
from pcopy.api.errors import Different, Error, InternalError, InvalidOption, ItemsFailed, Refused, Stopped
from pcopy.api.running import WHY_STATUS_IS_LOST, FinishedProcess, Request, RunningJob, run_command
from pcopy.api.typing_names import Generic, ParamSpec, TypeVar, cast
from pcopy.errors import EXIT_DIFFERENT, EXIT_INCOMPLETE, EXIT_OK, EXIT_REFUSED, EXIT_STOPPED

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    import inspect
    from datetime import date, timedelta
    from typing import Any, Self

    from pcopy.api.results import CompareResult, UnfinishedJob
    from pcopy.api.walking import Walk

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")

_STOPPED_STATUSES = (EXIT_STOPPED, 128 + 1, 128 + 2, 128 + 10, 128 + 15)
"""The statuses of a program that was stopped in order: EXIT_STOPPED, or 128 + the number of a signal."""
_MOST_PATHS_IN_MESSAGE = 100
"""The number of items that failed whose paths are looked for in a message."""
_INSTEAD_OF_MODE = ("owner", "group", "acl_from", "reference")
"""The options of ``change_modes`` with which no mode is needed."""
_WORDS_OF_EACH_PROGRAM = (b"--stop-at-eof", b"--progress=json", b"--errors=/dev/stderr")
"""Options by which a program works as the interface expects."""


class Function(Generic[_Result]):
    """A function that runs a program in one of its modes, and returns its summary as an object of the class named
    ``result``.

    Calling it runs the program to its end. Besides its parameters and options it takes

    - ``progress``: a function that is called with each ``Progress``, in the thread of the caller;
    - ``launcher``: a command that starts the ranks, such as ``["srun", "-n", "8"]``.
    """

    def __init__(
        self,
        operands: Callable[..., list[bytes]],
        program: str,
        result: str,
        mode: str = "",
        difference: Callable[[Sequence[bytes], Any], str] | None = None,
    ):
        self.operands = operands
        self.program = program
        self.mode = mode
        self.result = result
        self.difference = difference
        self.__name__ = self.__qualname__ = operands.__name__
        self.__module__ = "pcopy"
        code = operands.__code__
        self.parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def __call__(self, *operands: Any, **options: Any) -> _Result:
        return self.start(*operands, **options).wait()

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Return the function itself. With this method, ``help`` shows its parameters."""
        return self

    def __repr__(self) -> str:
        return f"<function pcopy.{self.__name__}>"

    def __reduce__(self) -> str:
        """Return the name by which ``pickle`` finds the function."""
        return self.__name__

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What the function does, and its options; from the stub, which is generated from the table of options."""
        from pcopy.api.signatures import docs_of

        return docs_of(self.__name__) or (self.operands.__doc__ or "")

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters and options with their types, for ``help`` and notebooks."""
        from pcopy.api.signatures import signature_of

        return signature_of(self.operands, self.result)

    def start(self, *operands: Any, **options: Any) -> RunningJob[_Result]:
        """Start the program, and return it."""
        return RunningJob(self.request(operands, options))

    def request(self, operands: Sequence[Any], options: dict[str, Any]) -> Request[_Result]:
        """Return the program to start. Raise ``InvalidOption``."""
        named = {name: options.pop(name) for name in self.parameters if name in options}
        progress, launcher = options.pop("progress", None), options.pop("launcher", None) or ()
        if not (progress is None or callable(progress)):
            raise wrong_value(f"{self.__name__}(progress", progress, "not a function, to be called with each Progress")
        launcher = tuple(map(os.fsdecode, words_of(launcher, f"{self.__name__}(launcher")))
        own = option_words(self.__name__, options, self.parameters)
        words = self.operands(*operands, **named)
        _refuse_options(self.__name__, words, options)
        return Request(
            self.program,
            [*_WORDS_OF_EACH_PROGRAM, *([b"--json"] if self.result else []), *own.words, *words],
            partial(self._finish, words, [*own.words, *words, *(own.listed or ())], launcher),
            own.listed,
            launcher,
            progress,
            self._named_job(operands, named, options.get("checkpoint")),
        )

    def _named_job(self, operands: Sequence[Any], named: Mapping[str, Any], checkpoint: Any) -> str | None:
        """Return the directory that the caller has chosen for the job, as an absolute path, or the name of the job to
        resume; None if there is none.
        """
        if self.mode == "resume":
            job = _job_path(*operands, **named)
            return os.fsdecode(os.path.abspath(job) if b"/" in job else job)
        if checkpoint is None or os.fsencode(checkpoint) == b"none":
            return None
        return os.path.abspath(os.fsdecode(checkpoint))

    def _finish(
        self,
        operands: Sequence[bytes],
        words: Sequence[bytes],
        launcher: Sequence[str],
        ended: FinishedProcess,
    ) -> _Result:
        """Return the result of a program that has ended, or raise the exception for its status. ``words`` are those of
        its command line that are the caller's, among them the ``operands``; ``launcher`` is the command that has
        started the ranks.
        """
        result = self._summary(ended)
        ended = _with_status_of_program(ended, self.program, launcher)
        is_done = ended.status == EXIT_OK or (ended.status == EXIT_DIFFERENT and self.__name__ == "compare")
        if is_done and (result is not None or not self.result):
            return cast(_Result, result)
        if launcher and not (ended.has_begun or ended.is_requested):
            raise _launcher_error(self.program, launcher, ended)
        raise self._error(operands, words, result, ended)

    def _error(self, operands: Sequence[bytes], words: Sequence[bytes], result: Any, ended: FinishedProcess) -> Error:
        """Return the exception for a program that has not done all. The parameters are those of ``_finish``, and the
        ``result``, if there is one.
        """
        from pcopy.api.wording import message_in_python, texts_of_caller

        details = {"status": ended.status, "result": result, "failures": ended.failures, "job": ended.job}
        reported = [*islice(ended.failures, _MOST_PATHS_IN_MESSAGE), *([ended.refusal] if ended.refusal else [])]
        paths = [*texts_of_caller(words), *(each.path for each in reported)]
        message = ended.message or f"{self.program} ended with status {ended.status}"
        message = message_in_python(message, self.__name__, paths)
        if ended.status in _STOPPED_STATUSES:
            return Stopped(message, **details)
        if ended.status is None or ended.status < 0:
            return _error_of_signal(self.program, message, ended, details)
        if ended.status == EXIT_REFUSED and result is None:
            number, path = (ended.refusal.errno, ended.refusal.path) if ended.refusal else (0, b"")
            return Refused(message, status=EXIT_REFUSED, errno=number or None, filename=path or None)
        if ended.status not in (EXIT_OK, EXIT_INCOMPLETE, EXIT_REFUSED) or (result is None and self.result):
            lost = "" if ended.status > 1 else "; its output is not complete"
            return InternalError(f"{message}{lost}", **details)
        if ended.status == EXIT_DIFFERENT and self.difference:
            return Different(self.difference(operands, result), **details)
        if first := next(iter(ended.failures), None):
            reason = message_in_python(str(first), self.__name__, paths)
            message = f"{len(ended.failures)} failed; the first one: {reason}"
        return ItemsFailed(message, **details)

    def _summary(self, ended: FinishedProcess) -> Any:
        """Return the summary as an object; None if there is none, or if it lacks a key."""
        from pcopy.api import results

        if ended.summary is None or not self.result:
            return None
        more: dict[str, Any] = {}
        if self.result == "CompareResult":
            more["differences"] = ended.lines.parsed(results.Difference.from_json)
            if self.mode == "create" or ended.summary.get("expected") is not None:  # No items were compared.
                more |= dict.fromkeys(("changed", "missing", "extra"))
        try:
            return getattr(results, self.result).from_json(ended.summary, **more)
        except TypeError:
            return None


def _error_of_signal(program: str, message: str, ended: FinishedProcess, details: dict[str, Any]) -> Error:
    """Return the exception for a program that a signal has ended, or whose status is not known."""
    if ended.status is None:
        return InternalError(f"the exit status of {program} is lost: {WHY_STATUS_IS_LOST}", **details)
    if ended.status == -signal.SIGTERM and ended.is_requested:
        return Stopped(message if ended.has_begun else f"{program} was stopped before it began", **details)
    return InternalError(f"{program} was killed by signal {-ended.status}", **details)


def _with_status_of_program(ended: FinishedProcess, program: str, launcher: Sequence[str]) -> FinishedProcess:
    """Return how the program has ended by its own words, if it has printed its exit status or has been refused: the
    status of the process may be that of a launcher, or may not be known.

    Raise ``InternalError`` if the program ended with status 0 and the launcher did not.
    """
    own = None if ended.summary is None else ended.summary.get("exit_status")
    if ended.refusal is not None and ended.summary is None:
        own = EXIT_REFUSED
    if not isinstance(own, int):
        return ended
    if own == EXIT_OK and launcher and ended.status is not None and ended.status > 0:
        text = f"{launcher[0]} ended with status {ended.status} after {program} had ended with status 0"
        raise InternalError(text, status=ended.status, job=ended.job, failures=ended.failures)
    return ended if ended.status else ended.with_status(own)


def _launcher_error(program: str, launcher: Sequence[str], ended: FinishedProcess) -> InternalError:
    """Return the exception for a launcher that has ended before the ``program`` began."""
    reason = f":\n{ended.message}" if ended.message else ", and has printed no message"
    status = ended.status
    how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
    return InternalError(f"{launcher[0]} {how} before {program} began{reason}", status=ended.status)


def _refuse_options(function: str, words: Sequence[bytes], options: Mapping[str, Any]) -> None:
    """Raise ``InvalidOption`` if the ``words`` of a command line lack what neither an operand nor an option gives, or
    if options contradict each other where the program uses the last one.
    """
    parameter = {"remove": "paths", "change_modes": "paths", "archive": "source"}.get(function)
    if parameter and words.index(b"--") == len(words) - 1 and options.get("from_") is None:
        raise InvalidOption(f"{function}({parameter}=None): no path; give {parameter} or from_")
    existing = options.get("existing")
    if options.get("update") and existing not in (None, "newer"):
        raise InvalidOption(
            f"{function}(update=True, existing={existing!r}): update is existing='newer'; leave one out"
        )
    if function == "remove" and options.get("from_") is None and options.get("recursive") is not None:
        text = "without from_, a path is always removed with its contents"
        raise wrong_value("remove(recursive", options["recursive"], text)
    without_mode = function == "change_modes" and not words[0].startswith(b"--mode=")
    if without_mode and all(options.get(option) is None for option in _INSTEAD_OF_MODE):
        raise InvalidOption(f"change_modes(mode=None): give mode, or one of {', '.join(_INSTEAD_OF_MODE)}")


def _function(
    program: str, result: str, mode: str = "", difference: Callable[[Sequence[bytes], Any], str] | None = None
) -> Callable[[Any], Function[Any]]:
    return lambda operands: Function(operands, program, result, mode, difference)


@_function("pcopy", "CopyResult")
def copy(source: Paths, destination: StrOrBytesPath) -> list[bytes]:
    """Copy ``source``, one or several paths, to ``destination`` or, if that is an existing directory, into it.

    A trailing slash means the contents of a directory, as on the command line.
    """
    return [b"--", *paths_of(source, "copy(source"), path_of(destination, "copy(destination")]


@_function("psync", "CopyResult")
def sync(source: StrOrBytesPath, destination: StrOrBytesPath) -> list[bytes]:
    """Make ``destination`` equal to ``source``: copy what differs, then delete what ``source`` does not have."""
    return [b"--no-target-directory", b"--", path_of(source, "sync(source"), path_of(destination, "sync(destination")]


@_function("pcopy", "CopyResult", "resume")
def resume(job: StrOrBytesPath | UnfinishedJob) -> list[bytes]:
    """Continue a job that was interrupted, or whose items failed: its name, or its directory."""
    return [b"--resume=" + _job_path(job)]


def _difference_text(words: Sequence[bytes], result: CompareResult) -> str:
    """Return the message of ``Different`` for the operands of ``verify``."""
    path, signature = (word.decode(errors="backslashreplace") for word in (words[-1], words[-2]))
    if words[0] == b"--":
        return f"{path}: differs from the signature in {signature}"
    count, manifest = len(result.differences), words[0].partition(b"=")[2].decode(errors="backslashreplace")
    return f"{path}: {count} {'item differs' if count == 1 else 'items differ'} from the manifest {manifest}"


@_function("pverify", "CompareResult", "check", _difference_text)
def verify(
    path: StrOrBytesPath, signature: StrOrBytesPath | None = None, *, manifest: StrOrBytesPath | None = None
) -> list[bytes]:
    """Check that ``path`` has the contents of the file ``signature`` or ``manifest``; otherwise raise ``Different``."""
    if (signature is None) == (manifest is None):
        raise InvalidOption("verify() takes either signature or manifest")
    order = "the order is verify(path, signature)"
    if manifest is not None:
        file = file_path_of(manifest, "verify(manifest", order)
        return [b"--manifest=" + file, b"--", path_of(path, "verify(path")]
    return [b"--", file_path_of(signature, "verify(signature", order), path_of(path, "verify(path")]


@_function("pverify", "CompareResult", "compare")
def compare(a: StrOrBytesPath, b: StrOrBytesPath) -> list[bytes]:
    """Compare two trees or files by their contents or, with the option ``compare``, by other properties.

    Differences are no error: ``same`` and ``differences`` of the result show them.
    """
    return [b"--", path_of(a, "compare(a"), path_of(b, "compare(b")]


@_function("pverify", "CompareResult", "create")
def sign(path: StrOrBytesPath, signature: StrOrBytesPath, *, manifest: StrOrBytesPath | None = None) -> list[bytes]:
    """Write the signature of ``path`` to the file ``signature``, and its items to the file ``manifest``."""
    file = file_path_of(signature, "sign(signature", "the order is sign(path, signature)")
    words = [] if manifest is None else [b"--manifest=" + path_of(manifest, "sign(manifest")]
    return [*words, b"--create=" + file, b"--", path_of(path, "sign(path")]


@_function("prm", "RemoveResult")
def remove(paths: Paths | None = None) -> list[bytes]:
    """Remove files and trees, without asking. With the option ``from_``, ``paths`` is the directory of the list."""
    return [b"--yes", b"--", *optional_paths_of(paths, "remove(paths")]


@_function("pchmod", "ChangeResult")
def change_modes(paths: Paths | None = None, mode: str | int | None = None) -> list[bytes]:
    """Give files and trees another ``mode``: text as for chmod (``u+rwX``), or a number (``0o750``).

    With the options ``owner``, ``group``, ``acl_from`` and ``reference``, ``mode`` may be omitted. A number that is a
    usual mode only if its decimal digits are read as octal ones, such as 755, raises ``InvalidOption``.
    """
    words = [] if mode is None else [b"--mode=" + _mode_text(mode)]
    return [*words, b"--", *optional_paths_of(paths, "change_modes(paths")]


def _mode_text(mode: object) -> bytes:
    """Return a mode as text. Raise ``InvalidOption`` if it cannot be one."""
    if isinstance(mode, str):
        if not mode or mode.strip("ugoarwxXst01234567+-=,"):
            raise wrong_value("change_modes(mode", mode, "not a mode; the order is change_modes(paths, mode)")
        return mode.encode()
    if isinstance(mode, bool) or not hasattr(mode, "__index__"):
        raise wrong_value("change_modes(mode", mode, "neither text nor a number")
    number = index(mode)
    if not 0 <= number <= 0o7777:
        raise wrong_value("change_modes(mode", mode, "not between 0 and 0o7777")
    digits = f"{number}"
    if not (len(digits) < 3 or set(digits) & set("89") or _is_usual_mode(number)) and _is_usual_mode(int(digits, 8)):
        raise InvalidOption(
            f"change_modes(mode={mode!r}): this number is {number:#o}; write 0o{digits}, or '{number:o}' if it is meant"
        )
    return b"%04o" % number


def _is_usual_mode(mode: int) -> bool:
    """Return True if nobody may write who may not read, the group may do no more than the owner, and others no more
    than the group.
    """
    owner, group, others = mode >> 6 & 7, mode >> 3 & 7, mode & 7
    return owner & group == group and group & others == others and not {2, 3} & {owner, group, others}


@_function("ptar", "ArchiveResult", "create")
def archive(source: Paths | None, archive: StrOrBytesPath) -> list[bytes]:
    """Make the tar file ``archive`` of ``source``, one or several paths; None with the option ``from_``."""
    return [
        b"--create",
        b"--file=" + path_of(archive, "archive(archive"),
        b"--",
        *optional_paths_of(source, "archive(source"),
    ]


@_function("ptar", "ExtractResult", "extract")
def extract(archive: StrOrBytesPath, destination: StrOrBytesPath = ".", members: Paths | None = None) -> list[bytes]:
    """Unpack a tar file into ``destination``, an existing directory; only ``members`` and all below, if given."""
    words = [b"--extract", b"--file=" + path_of(archive, "extract(archive")]
    return [
        *words,
        b"--directory=" + path_of(destination, "extract(destination"),
        b"--",
        *optional_paths_of(members, "extract(members"),
    ]


@_function("pstripe", "StripeResult")
def restripe(paths: Paths) -> list[bytes]:
    """Report the layouts of files on Lustre and, with the option ``stripe``, give the files another layout."""
    return [b"--", *paths_of(paths, "restripe(paths")]


class _WalkFunction(Function[None]):
    """The function ``walk``: it returns the entries while the program runs, and has no summary."""

    __doc__ = Function.__doc__  # the property

    def __call__(self, *operands: Any, **options: Any) -> Walk:  # type: ignore[override]
        from pcopy.api.walking import Walk

        if options.get("progress") is not None:
            raise InvalidOption("walk(progress=...): not an option; the entries show the progress")
        return Walk(self.request(operands, options))


def _walk_function(operands: Callable[..., list[bytes]]) -> _WalkFunction:
    return _WalkFunction(operands, "pwalk", "")


@_walk_function
def walk(paths: Paths | None = None, expression: Sequence[str | bytes] = ()) -> list[bytes]:
    """Yield the items of trees as ``Entry`` objects, in no particular order, unless ``sort`` is given.

    ``paths`` are the trees (default: the working directory), and ``expression`` has tests as for find, such as
    ``["-name", "*.h5", "-size", "+1G"]``.
    """
    tests = words_of(expression, "walk(expression")
    # Without "./", a path could be taken for the beginning of the expression.
    words = [
        b"./" + path if path[:1] in (b"-", b"(", b")", b"!") else path
        for path in optional_paths_of(paths, "walk(paths")
    ]
    for word in tests:
        if word.startswith(b"--"):
            raise wrong_value("walk(expression", expression, f"{os.fsdecode(word)!r} is no test; options are keywords")
    if tests and tests[0][:1] not in (b"-", b"(", b"!"):
        why = f"{os.fsdecode(tests[0])!r} is no test; paths are the first parameter"
        raise wrong_value("walk(expression", expression, why)
    return [b"--json-lines", *words, *tests]


def start(
    function: Callable[_Parameters, _Result], *operands: _Parameters.args, **options: _Parameters.kwargs
) -> RunningJob[_Result]:
    """Start a function, and return the running program: ``start(pcopy.copy, "a", "b")``."""
    if not isinstance(function, Function) or isinstance(function, _WalkFunction):
        advice = "write start(pcopy.copy, source, destination)"
        if callable(function):
            is_walk = isinstance(function, _WalkFunction)
            advice = "it yields entries while its program runs: call it" if is_walk else "call it without start()"
        raise InvalidOption(f"start({shown_value(function)}): not a function of pcopy that can be started; {advice}")
    return cast("RunningJob[_Result]", function.start(*operands, **options))


@refusing_unknown_keywords
def jobs() -> list[UnfinishedJob]:
    """Return the unfinished jobs in the state directory."""
    from pcopy.api.results import UnfinishedJob

    ended = run_command([b"--jobs", b"--json"], "jobs")
    return [UnfinishedJob.from_line(values) for values in (*ended.lines, ended.summary) if values is not None]


@refusing_unknown_keywords
def discard(
    job: StrOrBytesPath | UnfinishedJob | Sequence[StrOrBytesPath | UnfinishedJob] = (),
    *,
    older_than: float | timedelta | date | str | None = None,
) -> None:
    """Discard jobs, with their temporary files: the named ones, or those on which no run has worked since a time.

    ``older_than`` is an age (seconds, a ``timedelta``, text such as ``7d``) or a date.
    """
    each: Sequence[Any] = job if isinstance(job, (list, tuple)) else [job]
    if not each and older_than is None:
        raise InvalidOption("discard(): name a job, or give older_than")
    words = option_words("discard", {"older_than": older_than}).words
    command = [*(b"--discard=" + _job_path(one, "discard") for one in each), *([] if each else [b"--discard"]), *words]
    run_command(command, "discard")


def _job_path(job: StrOrBytesPath | UnfinishedJob, function: str = "resume") -> bytes:
    """Return the name of a job, or its directory, as bytes."""
    directory = getattr(job, "directory", None)
    if isinstance(directory, bytes):
        return directory
    if job is None:
        raise wrong_value(f"{function}(job", job, "this job was not kept")
    if hasattr(job, "job"):
        why = "not the name of a job, which is its attribute job" if job.job else "this job was not kept"
        raise wrong_value(f"{function}(job", job, why)
    return path_of(job, f"{function}(job")
