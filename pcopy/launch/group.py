"""The processes of a job before it starts: what they send to each other and agree on.

Ranks that a launcher has started communicate by MPI. Ranks that are forked later are a single process at this time.
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
    """Description of a rank and its host, sent to all ranks at the start.

    Fields:
    - ``version``: version of pcopy.
    - ``host``: host name.
    - ``machine``: boot id of the running operating system, or the host name.
    - ``mount_namespace``, ``process_namespace``: mount and process namespace, as in /proc/self/ns.
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
        """The running operating system and mount namespace. Ranks with the same place see the same mounts."""
        return self.machine, self.mount_namespace


class ProcessGroup:
    """The processes of a job; values that they exchange consist of primitive values.

    ``descriptions`` describes each process, by rank. This class is a group of one process; subclasses override it.
    """

    rank = 0
    descriptions: Sequence[RankDescription] = (RankDescription("", "", "", "", "", 0, ""),)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's ``value`` on all ranks. Collective."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank. Collective."""
        return [value]


def first_ranks_of_hosts(hellos: Sequence[RankDescription]) -> list[int]:
    """Return the first rank of each host."""
    hosts = [hello.host for hello in hellos]
    return [hosts.index(host) for host in dict.fromkeys(hosts)]


def backends_text(hellos: Sequence[RankDescription]) -> str:
    """Return which backend is in use, for people; with the hosts if they differ."""
    hosts: dict[str, dict[str, None]] = {}
    for hello in hellos:
        hosts.setdefault(hello.backend or backend_name(), {})[hello.host] = None
    if len(hosts) == 1:
        return f"backend {next(iter(hosts))}"
    return "; ".join(f"backend {backend} on {', '.join(names)}" for backend, names in hosts.items())


def run_on_root(group: ProcessGroup, action: Callable[[], _Value]) -> _Value | None:
    """Return the result of ``action`` on rank 0, and None on other ranks. Collective.

    If ``action`` raises ``RequestRefused`` or ``StoppedBeforeStart`` there, all ranks raise the same.
    """
    value, status, text = None, EXIT_OK, ""
    if group.rank == 0:
        try:
            value = action()
        except (RequestRefused, StoppedBeforeStart) as trouble:
            status, text = trouble.status, str(trouble)
    status, text = group.broadcast((status, text))
    if text:
        raise StoppedBeforeStart(text) if status == EXIT_STOPPED else RequestRefused(text)
    return value


def run_on_all(group: ProcessGroup, action: Callable[[], _Value]) -> _Value:
    """Return the result of ``action`` on this rank. Collective.

    If ``action`` raises ``RequestRefused`` on one rank, all ranks raise it, with the name of that rank's host.
    """
    refused: RequestRefused | None = None
    try:
        value = action()
    except RequestRefused as refusal:
        refused = refusal
    for hello, text in zip(group.descriptions, group.gather(str(refused or "")), strict=True):
        if text:
            is_named = len(group.descriptions) == 1 or text.endswith(f" on {hello.host}")
            raise RequestRefused(text if is_named else f"on {hello.host}: {text}")
    return value
