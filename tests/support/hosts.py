"""Simulated hosts made of namespaces on this machine, connected only by their network.

Each has its own network, name, mounts, processes, /tmp and /dev/shm, and reports its own kernel version. One directory
is shared: every host mounts it by its own process (bindfs), like a directory of a file server. A further host,
``login``, has only a network and a name. The switch is on it. mpiexec starts ranks on the other hosts from there,
through the program ``Hosts.remote`` that replaces ssh.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, Argument
from tests.support.users import is_root

NETWORK = "10.213.77"
"""The network, which exists only on these hosts."""
_NAMES = ("h1", "h2")
PROGRAMS = ("bindfs", "ip", "nsenter", "unshare")

_HEAD = """
set -e
mount --make-rprivate /
mount --bind "$TABLE" /etc/hosts
hostname "$NAME"
ip link set lo up
"""
_LOGIN = f"""{_HEAD}
ip link add switch type bridge
ip address add {NETWORK}.1/24 dev switch
ip link set switch up
echo ready
exec sleep infinity
"""
_HOST = f"""{_HEAD}
mount -t tmpfs none /mnt
for each in $KEPT; do
    number=$((number + 1))
    mkdir /mnt/$number
    mount --bind "$each" /mnt/$number
done
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o mode=1777 none /tmp
number=0
for each in $KEPT; do
    number=$((number + 1))
    mkdir -p "$each"
    mount --move /mnt/$number "$each"
done
umount /mnt
cat /proc/sys/kernel/random/uuid >/tmp/boot_id
mount --bind /tmp/boot_id /proc/sys/kernel/random/boot_id
echo ready
read tied
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
if [ -n "$SHARED" ]; then
    bindfs --multithreaded --enable-lock-forwarding -o allow_other,default_permissions "$AREA" "$AREA"
fi
echo ready
exec sleep infinity
"""


class Host:
    """A simulated host; ``init`` is the first process in its namespaces, with its id on this machine."""

    def __init__(self, name: str, area: str, process: subprocess.Popen[str], kinds: Sequence[str]) -> None:
        self.name = name
        self._area = area
        self.init = process.pid
        self._process = process
        self._kinds = kinds

    def await_ready(self) -> None:
        """Wait until the host has started; skip the test, with its error message, if the system lacks namespaces."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            pytest.skip(f"no hosts of namespaces here: {self._process.communicate()[1].strip()}")
        with suppress(OSError, ValueError):  # if there is a child, it is the first process of the host
            (self.init,) = map(
                int, Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            )

    def go_on(self) -> None:
        """Let the host continue, after it was connected to the network."""
        assert self._process.stdin is not None
        self._process.stdin.write("tied\n")
        self._process.stdin.flush()
        self.await_ready()

    def enter(self) -> list[Argument]:
        """Return the command prefix that runs a command on the host, in the shared directory."""
        kinds = [f"--{kind}" for kind in self._kinds]
        return ["nsenter", "-t", str(self.init), *kinds, f"--wdns={self._area}", "--"]

    def run(self, *command: Argument) -> None:
        subprocess.run([*self.enter(), *command], check=True, capture_output=True)

    def has(self, pid: int) -> bool:
        """Return True if this process of the machine runs on the host."""
        with suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/uts") == os.readlink(f"/proc/{self.init}/ns/uts")
        return False

    def die(self) -> None:
        """Kill all its processes, which closes their connections."""
        with suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self._process.wait()


class Hosts:
    """``login``, and the other hosts by name."""

    def __init__(self, login: Host, others: Sequence[Host], place: Path) -> None:
        self.login = login
        self._others = {host.name: host for host in others}
        self._place = place

    def __getitem__(self, name: str) -> Host:
        return self._others[name]

    def remote(self) -> Path:
        """Return a program with the interface of ssh: options, the host, and the command."""
        program = self._place / "remote"
        enter = {name: " ".join(map(str, host.enter())) for name, host in self._others.items()}
        lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', "host=$1", "shift", 'case "$host" in']
        lines += [f'{name}) exec {words} sh -c "$*" ;;' for name, words in enter.items()]
        program.write_text("\n".join([*lines, "esac", "exit 255", ""]))
        program.chmod(0o755)
        return program

    def cut(self, name: str) -> None:
        """Cut off the network of the host, without a notification to any process."""
        self.login.run("ip", "link", "set", name, "down")


@contextmanager
def hosts(place: Path, area: Path, *, shared: bool = True) -> Iterator[Hosts]:
    """Yield ``h1``, ``h2`` and ``login``; skip the test if they cannot be created.

    ``place`` is for internal files. ``area`` is visible to all hosts; unless it is ``shared``, as a separate file
    system in memory on each. They see nothing else of /tmp and /dev/shm, but can run this Python.
    """
    if not is_root():
        pytest.skip("only root can make hosts of namespaces")
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"no hosts of namespaces without {', '.join(missing)}")
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(("login", *_NAMES), 1)}
    table = place / "hosts"
    table.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))
    hidden = (Path("/tmp"), Path("/dev/shm"))
    seen = [
        path for path in (area, REPOSITORY, Path(sys.prefix)) if any(path.is_relative_to(above) for above in hidden)
    ]
    environment = {
        **os.environ,
        "TABLE": str(table),
        "KEPT": " ".join(map(str, seen)),
        "AREA": str(area),
        "SHARED": "yes" if shared else "",
    }
    with ExitStack() as stack:
        login = stack.enter_context(_begun("login", _LOGIN, ("net", "uts", "mount"), environment))
        others = [
            stack.enter_context(_tied(login, name, {**environment, "ADDRESS": addresses[name]})) for name in _NAMES
        ]
        yield Hosts(login, others, place)


@contextmanager
def _tied(login: Host, name: str, environment: Mapping[str, str]) -> Iterator[Host]:
    """A host that is connected to the switch of ``login``."""
    with _begun(name, _HOST, ("net", "uts", "mount", "pid"), environment, "--fork", "--mount-proc") as host:
        login.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.init))
        login.run("ip", "link", "set", name, "master", "switch", "up")
        host.go_on()
        yield host


@contextmanager
def _begun(
    name: str, script: str, kinds: Sequence[str], environment: Mapping[str, str], *options: str
) -> Iterator[Host]:
    """A host whose first process runs ``script``; it is ended at the end of the context."""
    line = ["unshare", *(f"--{kind}" for kind in kinds), *options, "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        line, env={**environment, "NAME": name}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        host = Host(name, environment["AREA"], process, kinds)
        try:
            host.await_ready()
            yield host
        finally:
            host.die()
