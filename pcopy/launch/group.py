"""The processes of a job before its first task: how they describe themselves to each other, and steps that all of them
take together.

Ranks that a launcher (mpiexec, srun) has started are one process each, and communicate by MPI. If the ranks are forked
later, there is only one process at this time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pcopy.errors import EXIT_OK, EXIT_STOPPED, RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.choose import backend_name
from pcopy.launch.watch.signals import StoppedBeforeStart
from pcopy.tasks.base.kind import TASK_FORMAT

_Value = TypeVar("_Value")


class RankDescription(NamedTuple):
    """Description of a rank and its host, which each rank sends to all ranks at the start.

    Fields:
    - ``version``: version of pcopy.
    - ``host``: host name.
    - ``machine``: boot id of the running operating system; the host name if it is unknown.
    - ``mount_namespace``, ``process_namespace``: mount and process namespace, as in /proc/self/ns; empty if unknown.
    - ``pid``: process id.
    - ``arguments_digest``: digest of the command line.
    - ``task_format``: version of the format of packed tasks (``pcopy.tasks.base.kind.TASK_FORMAT``).
    - ``backend``: name of the backend, ``c`` or ``python``; empty if the required one is missing.
    """

    version: str
    host: str
    machine: str
    mount_namespace: str
    process_namespace: str
    pid: int
    arguments_digest: str
    task_format: int = TASK_FORMAT
    backend: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """The running operating system and the mount namespace of the rank, as a pair of ids. Ranks with the same pair
        see the same mounts.
        """
        return self.machine, self.mount_namespace


class RankGroup:
    """The processes of a job before its first task: they exchange values (numbers, strings, containers of these), and
    so agree on what to do.

    This class is a group of a single process; subclasses override its attributes and methods.
    """

    rank = 0
    """Rank of this process."""
    descriptions: Sequence[RankDescription] = (RankDescription("", "", "", "", "", 0, ""),)

    def broadcast(self, value: Any) -> Any:
        """Return the ``value`` that rank 0 has passed, on all ranks. Collective: all ranks must call it."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the list of the values that the ranks have passed, in the order of ranks, on all ranks. Collective:
        all ranks must call it.
        """
        return [value]


def first_ranks_of_hosts(descriptions: Sequence[RankDescription]) -> list[int]:
    """Return the lowest rank on each host, in ascending order. ``descriptions`` are the descriptions of all ranks."""
    hosts = [hello.host for hello in descriptions]
    return [hosts.index(host) for host in dict.fromkeys(hosts)]


def backends_text(descriptions: Sequence[RankDescription]) -> str:
    """Return a text for the user that names the backend (the code that performs system calls: c or python) in use. If
    hosts use different ones, the text lists the hosts of each, with semicolons between. ``descriptions`` are the
    descriptions of all ranks.
    """
    hosts: dict[str, dict[str, None]] = {}
    for hello in descriptions:
        hosts.setdefault(hello.backend or backend_name(), {})[hello.host] = None
    if len(hosts) == 1:
        return f"backend {next(iter(hosts))}"
    return "; ".join(f"backend {backend} on {', '.join(names)}" for backend, names in hosts.items())


def run_on_rank_0(group: RankGroup, action: Callable[[], _Value]) -> _Value | None:
    """Call ``action`` on rank 0 only; return its result on rank 0, and None on other ranks. Collective: all ranks must
    call this function.

    If ``action`` raises ``RequestRefused`` or ``StoppedBeforeStart``, all ranks raise the same.
    """
    value, status, reason = None, EXIT_OK, ("", b"", 0)
    if group.rank == 0:
        try:
            value = action()
        except StoppedBeforeStart as stopped:
            status, reason = stopped.status, (str(stopped), b"", 0)
        except RequestRefused as refused:
            status, reason = refused.status, _refusal_as_primitives(refused)
    status, (text, path, code) = group.broadcast((status, reason))
    if text:
        raise StoppedBeforeStart(text) if status == EXIT_STOPPED else RequestRefused(text, path=path, code=code)
    return value


def run_on_all_ranks(group: RankGroup, action: Callable[[], _Value]) -> _Value:
    """Call ``action`` on each rank; return its result on this rank. Collective: all ranks must call this function.

    If ``action`` raises ``RequestRefused`` on any rank, all ranks raise it. The text then names the host of that rank,
    if the job has several ranks.
    """
    reason = "", b"", 0
    try:
        value = action()
    except RequestRefused as refused:
        reason = _refusal_as_primitives(refused)
    for hello, (text, path, code) in zip(group.descriptions, group.gather(reason), strict=True):
        if text:
            is_named = len(group.descriptions) == 1 or text.endswith(f" on {hello.host}")
            raise RequestRefused(text if is_named else f"on {hello.host}: {text}", path=path, code=code)
    return value


def _refusal_as_primitives(refused: RequestRefused) -> tuple[str, bytes, int]:
    """Return text, path and error number of ``refused``, which can be sent to all ranks."""
    return str(refused), refused.path, refused.code
