"""A process that syncs file systems for a rank, so that no sync can keep the rank from ending.

A process can't end while a call of one of its threads hangs in the kernel, and syncfs(2) hangs for as long as the
storage does. So the call is made by a process that nobody waits for: it holds nothing of the rank's but the socket that
ties them, and ends with the rank, or as soon as its call does.

Each order to sync carries the open descriptor (SCM_RIGHTS, unix(7)), and so hands over the open file description: the
kernel (since Linux 5.8) reports each failed write-back once to each of those that were open at the time.

It is a new program and no fork: many MPIs don't bear a fork, since memory that they have registered with the network
adapter would be copied. It blocks all signals from the start, because a signal that stops a job goes to all its
processes. Its start is most of what it costs, so little is imported here but within the functions of the rank's end.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from _thread import allocate_lock

from pcopy import libc

TYPE_CHECKING = False  # typing's, which takes longer to load than all else here
if TYPE_CHECKING:
    import socket
    from subprocess import Popen


STRIPE = 64 << 10
"""Bytes of an anchor on each server."""

_GIVEN_UP = (errno.EROFS, errno.EIO, errno.EUCLEAN)


def open_for_sync(directory: int) -> int:
    """A descriptor of the file system of ``directory``, by which it can be synced; raises ``OSError``.

    What is open for searching only (O_PATH) can't serve. What may be written and not be read has a file without a name
    instead.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(".", flags, dir_fd=directory)
    except PermissionError as error:
        try:
            return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError:
            raise error from None


def sync_file_system(descriptor: int) -> None:
    """syncfs(2) for the file system of ``descriptor``; raises ``Problem``, also for what it could not write earlier."""
    from pcopy.fsio.problem import failing

    with failing("syncfs"):
        _sync_file_system(descriptor)


def _sync_file_system(descriptor: int) -> None:
    libc.syncfs(descriptor)
    _refuse_given_up(descriptor)


def _sync_servers(anchor: int) -> None:
    """All that the servers of a file system hold goes to their storage, where syncfs(2) only brings it to them.

    ``anchor`` is a file without a name that lies on all of them (``pcopy.fsio.layout``). A server that has to store the
    newest change stores all that came before. So each server gets a change: in the contents, and in the mode.
    """
    status = os.fstat(anchor)
    for at in range(0, status.st_size, STRIPE):
        os.pwrite(anchor, b"\1", at)
    os.fchmod(anchor, status.st_mode & 0o777 ^ 0o200)
    os.fsync(anchor)


def _refuse_given_up(descriptor: int) -> None:
    """Raises ``OSError`` if the file system takes no changes any more, though it was mounted for that.

    After an error a file system may give up its journal, or make itself read-only. Then nothing is left to be written,
    and syncfs(2) reports success though data are lost. To make a file without a name, where there are such, needs the
    journal, and fails.
    """
    try:
        os.close(os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
    except OSError as error:
        if error.errno in _GIVEN_UP and not _is_mounted_read_only(descriptor):
            raise


def _is_mounted_read_only(descriptor: int) -> bool:
    from contextlib import suppress

    from pcopy.fsio.mounted import mount_point_of

    with suppress(OSError):  # there is no /proc
        point = mount_point_of(descriptor)
        return point is not None and point.read_only
    return False


_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from pcopy.fsio.syncer import serve; serve()"
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DESCRIPTOR = struct.Struct("=i")
_ANSWER = struct.Struct("=i")
"""An errno, 0 for success; the first, without a request, says that the process is there."""


class Syncer:
    """The rank's end. Once the process is started, it makes one sync after the other."""

    def __init__(self) -> None:
        self._turn = allocate_lock()
        self._socket: socket.socket | None = None
        self._process: Popen[bytes] | None = None
        self._is_started = False

    def start(self) -> None:
        """Starts the process, unless that was tried before; it ends with the thread that does so.

        Where the system refuses one, ``sync`` does without. It takes as long as the copy of some files.
        """
        if self._is_started:
            return  # without waiting for the turn of whoever has a sync under way
        with self._turn:
            if not self._is_started:
                self._is_started = True
                self._start()

    def sync(self, descriptor: int, anchor: int = -1) -> None:
        """As ``sync_file_system``; where there is an ``anchor``, all servers store what they hold, too. Where there is
        no process, that is done here. Raises ``Problem``."""
        descriptors = [descriptor] if anchor < 0 else [descriptor, anchor]
        with self._turn:
            if self._socket is not None:
                self._request(self._socket, descriptors)
                return
        _sync(descriptors)

    @staticmethod
    def _request(process: socket.socket, descriptors: list[int]) -> None:
        from socket import send_fds

        from pcopy.fsio.problem import Problem, failing

        with failing("syncfs"):
            send_fds(process, [b"\0"], descriptors)
            answer = process.recv(_ANSWER.size)
        if not answer:
            raise Problem("syncfs", errno.EIO, text="the process that syncs has ended")
        (number,) = _ANSWER.unpack(answer)
        if number:
            raise Problem("syncfs", number)

    def _start(self) -> None:
        import signal
        import socket  # most jobs end before they sync anything
        from contextlib import suppress
        from subprocess import DEVNULL, Popen

        try:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which the process inherits
        with suppress(OSError):
            try:
                with there:
                    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _PACKAGES]
                    self._process = Popen(command, stdin=there.fileno(), stdout=DEVNULL, stderr=DEVNULL, cwd="/")
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if here.recv(_ANSWER.size):
                self._socket = here
                return
        here.close()

    def close(self) -> None:
        """Ends the process; a sync that is under way fails here, and is not waited for."""
        from contextlib import suppress

        with suppress(OSError):  # it ends with this process at the latest
            if self._socket is not None:
                from socket import SHUT_RDWR

                self._socket.shutdown(SHUT_RDWR)
        with suppress(OSError):
            if self._process is not None:
                self._process.kill()
                self._process.poll()


def _sync(descriptors: list[int]) -> None:
    """The first is the file system's, the second an anchor, if there is one."""
    from pcopy.fsio.problem import failing

    sync_file_system(descriptors[0])
    for anchor in descriptors[1:]:
        with failing("fsync"):
            _sync_servers(anchor)


def serve() -> None:
    """The process: answers requests until the rank has gone."""
    import _socket  # socket takes four times as long

    try:  # noqa: SIM105 (contextlib takes longer to load)
        libc.end_with_parent()  # even in the midst of a sync
    except OSError:
        pass  # a sandbox refuses it: the end of the connection still tells
    rank = _socket.socket(fileno=sys.stdin.fileno())
    rank.send(_ANSWER.pack(0))
    while descriptors := _received(rank.recvmsg(1, _socket.CMSG_SPACE(2 * _DESCRIPTOR.size))[1]):
        rank.send(_ANSWER.pack(_served(descriptors)))


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a request."""
    return [number for _, _, data in ancillary for (number,) in _DESCRIPTOR.iter_unpack(data)]


def _served(descriptors: list[int]) -> int:
    """The errno of what came of a request, which gives its descriptors back."""
    try:
        _sync_file_system(descriptors[0])
        for anchor in descriptors[1:]:
            _sync_servers(anchor)
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        for descriptor in descriptors:
            _let_go(descriptor)
    return 0


def _let_go(descriptor: int) -> None:
    try:  # noqa: SIM105
        os.close(descriptor)
    except OSError:
        pass  # whatever the file system says, nothing was written through it
