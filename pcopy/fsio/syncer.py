"""A process that syncs file systems and files for a rank, so that no sync can keep the rank from ending.

A process can't end while a call of one of its threads hangs in the kernel, and syncfs(2) and fdatasync(2) hang for as
long as the storage does. So the call is made by a process that nobody waits for: it holds nothing of the rank's but the
socket that ties them, and ends with the rank, or as soon as its calls do.

Each order to sync carries the open descriptors (SCM_RIGHTS, unix(7)), and so hands over the open file descriptions: the
kernel (since Linux 5.8) reports each failed write-back once to each of those that were open at the time. It also
carries a socket for the answer: file systems are synced one after the other, and files at the same time.

It is a new program and no fork: many MPIs don't bear a fork, since memory that they have registered with the network
adapter would be copied. It blocks all signals from the start, because a signal that stops a job goes to all its
processes. Its start is most of what it costs, so little is imported here but within the functions of the rank's end.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from _thread import allocate_lock, start_new_thread

from pcopy import libc
from pcopy.fsio.patience import open_patiently

TYPE_CHECKING = False  # typing's, which takes longer to load than all else here
if TYPE_CHECKING:
    import socket
    from subprocess import Popen


STRIPE = 64 << 10
"""Bytes of an anchor on each server."""

MOST_FILES = 16
"""Files of one order: so many share a commit of the file system's journal."""

NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of fsync(2) and fdatasync(2) on file systems that cannot sync single files."""

unsyncable: dict[int, tuple[bytes, int]] = {}
"""Devices (st_dev) on which this process could bring no file to stable storage: mount point and errno of each.

Files there are not synced again. What was written is safe if the job is killed, and not if the host stops.
"""

_SYNCED_BY_SERVER = b"virtiofs"
"""A file system with the f_type of FUSE, whose server syncs its file system at a syncfs(2)."""

_GIVEN_UP = (errno.EROFS, errno.EIO, errno.EUCLEAN)


def open_for_sync(directory: int) -> int:
    """A descriptor of the file system of ``directory``, by which it can be synced; raises ``OSError``.

    What is open for searching only (O_PATH) can't serve. What may be written and not be read has a file without a name
    instead.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return open_patiently(".", flags, dir_fd=directory)
    except PermissionError as error:
        try:
            return open_patiently(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError:
            raise error from None


def sync_file(descriptor: int, *, data: bool = False) -> None:
    """Bring one open file or directory to stable storage; raise ``OSError``. With ``data``: by fdatasync(2).

    If its file system cannot sync single files, all of the file system is synced instead. On FUSE that does not reach
    the storage: there an error of ``NO_SYNC`` is raised.
    """
    try:
        (os.fdatasync if data else os.fsync)(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC or not _syncfs_reaches_storage(descriptor):
            raise
        libc.syncfs(descriptor)


def sync_written(descriptor: int) -> None:
    """As ``sync_file``; but instead of an error of ``NO_SYNC`` the device is added to ``unsyncable``."""
    try:
        sync_file(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
        note_unsyncable(descriptor, error.errno)


def note_unsyncable(descriptor: int, number: int) -> None:
    """Add the device of an open file to ``unsyncable``, with the errno of its sync; raise ``OSError``."""
    device = os.fstat(descriptor).st_dev
    if device not in unsyncable:
        unsyncable[device] = _mount_of(descriptor)[0], number


def _syncfs_reaches_storage(descriptor: int) -> bool:
    is_fuse = libc.type_of_file_system(descriptor) == libc.FUSE
    return not is_fuse or _mount_of(descriptor)[2] == _SYNCED_BY_SERVER


def _mount_of(descriptor: int) -> tuple[bytes, bytes, bytes]:
    """Return path, options and type of the mount in which something open lies. The path is escaped as in /proc.

    All are empty if there is no /proc.
    """
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as information:
            number = next((line.split()[1] for line in information if line.startswith(b"mnt_id:")), b"")
        with open("/proc/self/mountinfo", "rb") as mounts:
            for fields in map(bytes.split, mounts):
                if fields[0] == number:
                    return fields[4], fields[5], fields[fields.index(b"-", 6) + 1]
    except OSError:
        pass
    return b"", b"", b""


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
        os.close(open_patiently(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
    except OSError as error:
        if error.errno in _GIVEN_UP and not _is_mounted_read_only(descriptor):
            raise


def _is_mounted_read_only(descriptor: int) -> bool:
    return b"ro" in _mount_of(descriptor)[1].split(b",")


_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from pcopy.fsio.syncer import serve; serve()"
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DESCRIPTOR = struct.Struct("=i")
_NUMBER = struct.Struct("=i")
"""An errno, 0 for success, or ``_NOT_SYNCED``. An answer has one, or one for each file; the first, without an order,
says that the process is there."""

_NOT_SYNCED = -1
"""Instead of an errno: the process has synced nothing, since it may open no more files."""

_FILE_SYSTEM, _FILES = 0, 1
"""What an order is for: the first byte of its message. The second is the number of descriptors."""


class Order:
    """Something that the process was asked to sync."""

    def __init__(self, syncer: Syncer, operation: str, answers: socket.socket) -> None:
        self._syncer = syncer
        self._operation = operation
        self._answers = answers
        self._answer: bytes | None = None

    def is_over(self, patience: float | None) -> bool:
        """Return True if it has ended within ``patience`` seconds (None: however long that takes)."""
        if self._answer is None:
            self._answers.settimeout(patience)
            try:
                self._answer = self._answers.recv(MOST_FILES * _NUMBER.size)
            except TimeoutError:
                return False
            except OSError:
                self._answer = b""
        return True

    def numbers(self) -> list[int] | None:
        """Return what came of it, once it is over: an errno for each file, or one for the file system; 0 for success.

        None: the process has synced nothing, and the caller has to. Raises ``Problem`` if the process has ended.
        """
        if self._answer:
            numbers = [number for (number,) in _NUMBER.iter_unpack(self._answer)]
            return None if _NOT_SYNCED in numbers else numbers
        if not self._syncer.has_begun:
            return None
        from pcopy.fsio.problem import Problem

        raise Problem(self._operation, errno.EIO, text="the process that syncs has ended")

    def interrupt(self) -> None:
        """From now on it is over, for a thread that waits for it, too."""
        from contextlib import suppress
        from socket import SHUT_RDWR

        with suppress(OSError):
            self._answers.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Nobody waits for it any more. What the process has begun goes on."""
        self._syncer.forget(self)
        self._answers.close()


class Syncer:
    """The rank's end."""

    def __init__(self) -> None:
        self._turn = allocate_lock()
        self._socket: socket.socket | None = None
        self._process: Popen[bytes] | None = None
        self._is_started = self._is_closed = False
        self._orders: set[Order] = set()

    def start(self) -> None:
        """Starts the process, unless that was tried before; it ends with the thread that does so.

        Where the system refuses one, ``sync`` does without. The first order waits until it is there, which takes as
        long as the copy of some files.
        """
        with self._turn:
            if not self._is_started:
                self._is_started = True
                self._start()

    def sync(self, descriptor: int, anchor: int = -1) -> None:
        """As ``sync_file_system``; where there is an ``anchor``, all servers store what they hold, too. Where there is
        no process, that is done here. Raises ``Problem``."""
        descriptors = [descriptor] if anchor < 0 else [descriptor, anchor]
        numbers, order = None, self._order(_FILE_SYSTEM, descriptors)
        if order is not None:
            try:
                order.is_over(None)
                numbers = order.numbers()
            finally:
                order.close()
        if numbers is None:
            _sync(descriptors)
        elif numbers[0]:
            from pcopy.fsio.problem import Problem

            raise Problem("syncfs", numbers[0])

    def store(self, descriptors: list[int]) -> Order | None:
        """Ask for fdatasync(2) of up to ``MOST_FILES`` open files, which may be closed at once, and return the order,
        to be closed. None: there is no process, or no more, and the caller has to sync. Raises ``Problem``."""
        return self._order(_FILES, descriptors)

    def _order(self, what: int, descriptors: list[int]) -> Order | None:
        if self._socket is None:
            return None
        from socket import AF_UNIX, SOCK_SEQPACKET, send_fds, socketpair

        try:
            here, there = socketpair(AF_UNIX, SOCK_SEQPACKET)
        except OSError:
            return None
        order = Order(self, "fdatasync" if what == _FILES else "syncfs", here)
        self._orders.add(order)
        with there:
            try:
                send_fds(self._socket, [bytes((what, len(descriptors)))], [there.fileno(), *descriptors])
            except (BrokenPipeError, ConnectionResetError):  # the process has ended, and so has the order
                if what == _FILES:  # it took no part of this order, and no failed write-back of these files
                    order.close()
                    return None
            except OSError:  # the process never sees the order
                order.close()
                return None
        if self._is_closed:
            order.interrupt()
        return order

    def forget(self, order: Order) -> None:
        """An order is closed."""
        self._orders.discard(order)

    @property
    def has_begun(self) -> bool:
        """False if the process could not be started, or has ended before it was there; True once it was closed."""
        from socket import MSG_DONTWAIT, MSG_PEEK

        if self._is_closed or self._socket is None:
            return self._is_closed
        try:
            return bool(self._socket.recv(_NUMBER.size, MSG_PEEK | MSG_DONTWAIT))
        except OSError as error:
            return error.errno == errno.EAGAIN

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
                self._socket = here
                return
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        here.close()

    def close(self) -> None:
        """Ends the process; a sync that is under way fails here, and is not waited for."""
        from contextlib import suppress

        self._is_closed = True
        for order in tuple(self._orders):
            order.interrupt()
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
    rank.send(_NUMBER.pack(0))
    room = _socket.CMSG_SPACE((1 + MOST_FILES) * _DESCRIPTOR.size)
    while True:
        message, ancillary, _, _ = rank.recvmsg(2, room)
        if not message:
            return
        what, number = message
        descriptors = _received(ancillary)
        if not descriptors:  # the limit of open files was met, which ends the order
            continue
        if what == _FILE_SYSTEM:
            _answer(what, number, descriptors)
            continue
        try:
            start_new_thread(_answer, (what, number, descriptors))
        except (RuntimeError, MemoryError):
            _answer(what, number, descriptors)


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with an order."""
    return [number for _, _, data in ancillary for (number,) in _DESCRIPTOR.iter_unpack(data)]


def _answer(what: int, number: int, descriptors: list[int]) -> None:
    """Carries out one order about this ``number`` of descriptors, which follow the socket for the answer. The limit of
    open files may have kept some of them away."""
    import _socket

    answers, asked = _socket.socket(fileno=descriptors[0]), descriptors[1:]
    if len(asked) < number:
        numbers = [_NOT_SYNCED]
    elif what == _FILES:
        numbers = _stored(asked)
    else:
        numbers = [_served(asked)]
    for descriptor in asked:
        _let_go(descriptor)
    try:  # noqa: SIM105
        answers.send(b"".join(map(_NUMBER.pack, numbers)))
    except OSError:
        pass  # the rank does not wait for it any more
    answers.close()


def _stored(descriptors: list[int]) -> list[int]:
    """Sync each (``sync_file``); return the errno of each, 0 for success. The storage begins to write all first."""
    if len(descriptors) > 1:
        for descriptor in descriptors:
            try:  # noqa: SIM105
                libc.sync_file_range(descriptor, 0, 0, libc.WRITE)
            except OSError:
                pass  # the sync of the file reports what is wrong
    numbers = []
    for descriptor in descriptors:
        try:
            sync_file(descriptor, data=True)
            numbers.append(0)
        except OSError as error:
            numbers.append(error.errno or errno.EIO)
    return numbers


def _served(descriptors: list[int]) -> int:
    """The errno of what came of an order to sync a file system."""
    try:
        _sync_file_system(descriptors[0])
        for anchor in descriptors[1:]:
            _sync_servers(anchor)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _let_go(descriptor: int) -> None:
    try:  # noqa: SIM105
        os.close(descriptor)
    except OSError:
        pass  # whatever the file system says, nothing was written through it
