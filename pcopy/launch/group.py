"""The processes of a job before they work: what they tell each other, and agree on.

Ranks that a launcher has started meet here. Ranks that are forked later are one process until then, which is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pcopy.errors import OK, STOPPED, Refused
from pcopy.fsio.kernel.choose import kernel_name
from pcopy.launch.watch.signals import StoppedBefore
from pcopy.named import NamedTuple
from pcopy.tasks.base.kind import FORMAT

_Value = TypeVar("_Value")


class Hello(NamedTuple):
    """What a rank says of itself. ``machine`` is its running kernel; the namespaces are as /proc/self/ns shows them,
    ``tasks`` the version of what its tasks are packed as (``pcopy.tasks.base.kind.FORMAT``). ``kernel`` is empty if
    the one that it has to have is not there."""

    version: str
    host: str
    machine: str
    mounts: str
    processes: str
    pid: int
    arguments: str
    tasks: int = FORMAT
    kernel: str = ""

    @property
    def place(self) -> tuple[str, str]:
        return self.machine, self.mounts


class Group:
    """``hellos`` are those of all its processes, by rank. Values are made of primitives.

    As it stands here, of one process.
    """

    rank = 0
    hellos: Sequence[Hello] = (Hello("", "", "", "", "", 0, ""),)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value. Collective."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """All ranks' values, by rank. Collective."""
        return [value]


def leaders(hellos: Sequence[Hello]) -> list[int]:
    """The first rank of each host."""
    hosts = [hello.host for hello in hellos]
    return [hosts.index(host) for host in dict.fromkeys(hosts)]


def kernels(hellos: Sequence[Hello]) -> str:
    """Which kernel runs, for people; with the hosts if not all have the same."""
    hosts: dict[str, dict[str, None]] = {}
    for hello in hellos:
        hosts.setdefault(hello.kernel or kernel_name(), {})[hello.host] = None
    if len(hosts) == 1:
        return f"kernel {next(iter(hosts))}"
    return "; ".join(f"kernel {kernel} on {', '.join(those)}" for kernel, those in hosts.items())


def on_root(group: Group, action: Callable[[], _Value]) -> _Value | None:
    """What ``action`` returns on rank 0, and None elsewhere. Collective.

    What refuses or stops it there is raised on all ranks alike: ``Refused`` or ``StoppedBefore``.
    """
    value, status, text = None, OK, ""
    if group.rank == 0:
        try:
            value = action()
        except (Refused, StoppedBefore) as trouble:
            status, text = trouble.status, str(trouble)
    status, text = group.broadcast((status, text))
    if text:
        raise StoppedBefore(text) if status == STOPPED else Refused(text)
    return value


def on_all(group: Group, action: Callable[[], _Value]) -> _Value:
    """What ``action`` returns here. Collective; what is ``Refused`` on one rank is on all, naming its host."""
    refused: Refused | None = None
    try:
        value = action()
    except Refused as refusal:
        refused = refusal
    for hello, text in zip(group.hellos, group.gather(str(refused or "")), strict=True):
        if text:
            is_named = len(group.hellos) == 1 or text.endswith(f" on {hello.host}")
            raise Refused(text if is_named else f"on {hello.host}: {text}")
    return value
