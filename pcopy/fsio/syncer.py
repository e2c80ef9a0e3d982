"""A helper process that syncs file systems and files for a rank, so that the rank can end even while a sync hangs.

A process cannot end while a system call of one of its threads hangs in the operating system, and syncfs(2) and
fdatasync(2) hang as long as the storage does. So the helper process makes these calls. No process waits for the end of
the helper. It shares only a socket with the rank, and ends with the rank, or as soon as its calls return.

Each request carries the open descriptors (SCM_RIGHTS, unix(7)), and thereby their open file descriptions: the kernel
(since Linux 5.8) reports each failed write-back once to each open file description that existed at the time. A request
also carries a socket for the answer. File systems are synced one after the other, files in parallel.

The helper is a new program, not a fork: many MPI libraries do not tolerate a fork, because memory that they have
registered with the network adapter would be copied. It blocks all signals from the start, because a signal that stops a
job is sent to all its processes. Its start is most of its cost. So this module imports little at its top, and the
rank's side imports the rest within functions.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from _thread import allocate_lock
from functools import partial

from pcopy import libc
from pcopy.background import BackgroundThread
from pcopy.fsio.retries import open_with_retries

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING: typing takes longer to load than all else here
if TYPE_CHECKING:
    import socket
    from subprocess import Popen


ANCHOR_STRIPE_SIZE = 64 << 10
"""Stripe size of an anchor (a file without a name that has data on all servers, see ``_sync_all_servers``): bytes on
each server.
"""

MAX_FILES_PER_REQUEST = 16
"""Maximum number of files in one request. Files that are synced together share one commit of the file system's
journal.
"""

SYNC_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of fsync(2) and fdatasync(2) on file systems that cannot sync single files."""

unsyncable_devices: dict[int, tuple[bytes, int]] = {}
"""Devices (st_dev) on which this process could bring no file to stable storage: mount point and errno of each.

Files there are not synced again. Data that were written are safe if the job is killed, but not if the host stops.
"""

_FUSE_TYPE_WITH_SYNCFS = b"virtiofs"
"""File system type with the f_type of FUSE whose server does sync its file system at a syncfs(2)."""

_CHANGES_REFUSED_ERRNOS = (errno.EROFS, errno.EIO, errno.EUCLEAN)
"""Errors of a file system that does not accept changes any more, for example after an error of its journal."""


def open_file_system_for_sync(directory: int) -> int:
    """Return a descriptor on the file system of ``directory`` through which it can be synced. Raise ``OSError``.

    An O_PATH descriptor cannot be used for that. If the directory may be written but not read, a file without a name
    (O_TMPFILE) is opened in it instead.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return open_with_retries(".", flags, dir_fd=directory)
    except PermissionError as error:
        try:
            return open_with_retries(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError:
            raise error from None


def sync_file(descriptor: int, *, data: bool = False) -> None:
    """Bring one open file or directory to stable storage by fsync(2); with ``data`` by fdatasync(2). Raise ``OSError``.

    If its file system cannot sync single files (``SYNC_UNSUPPORTED_ERRNOS``), the whole file system is synced by
    syncfs(2) instead. On FUSE syncfs(2) does not reach the storage; there the error is raised.
    """
    try:
        (os.fdatasync if data else os.fsync)(descriptor)
    except OSError as error:
        if error.errno not in SYNC_UNSUPPORTED_ERRNOS or not _syncfs_reaches_storage(descriptor):
            raise
        libc.syncfs(descriptor)


def sync_file_if_supported(descriptor: int) -> None:
    """Bring one open file or directory to stable storage by fsync(2). If its file system does not support that, raise
    no error, but add its device to ``unsyncable_devices``.

    Raise ``OSError`` for other errors.
    """
    try:
        sync_file(descriptor)
    except OSError as error:
        if error.errno not in SYNC_UNSUPPORTED_ERRNOS:
            raise
        record_unsyncable_device(descriptor, error.errno)


def record_unsyncable_device(descriptor: int, number: int) -> None:
    """Add the device of an open file that could not be synced to ``unsyncable_devices``. ``number`` is the errno of the
    attempt. Raise ``OSError``.
    """
    device = os.fstat(descriptor).st_dev
    if device not in unsyncable_devices:
        unsyncable_devices[device] = _mountinfo_of(descriptor)[0], number


def _syncfs_reaches_storage(descriptor: int) -> bool:
    """Return True if syncfs(2) stores the data of this file system; on FUSE it does so only for virtiofs."""
    is_fuse = libc.type_of_file_system(descriptor) == libc.FUSE_TYPE
    return not is_fuse or _mountinfo_of(descriptor)[2] == _FUSE_TYPE_WITH_SYNCFS


def _mountinfo_of(descriptor: int) -> tuple[bytes, bytes, bytes]:
    """Return (mount point, options, file system type) of the mount on which a descriptor is open, from
    /proc/self/mountinfo.

    The mount point is escaped as in that file. All three are empty if /proc is not mounted.
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
    """Call syncfs(2) for the file system of ``descriptor``.

    Raise ``Problem``, also for earlier errors of write-back.
    """
    from pcopy.fsio.problem import errors_as_problem

    with errors_as_problem("syncfs"):
        _sync_file_system(descriptor)


def _sync_file_system(descriptor: int) -> None:
    """Call syncfs(2), and check that the file system still accepts changes. Raise ``OSError``."""
    libc.syncfs(descriptor)
    _check_accepts_changes(descriptor)


def _sync_all_servers(anchor: int) -> None:
    """Make all servers of a distributed file system bring their data to stable storage. (On such a file system
    syncfs(2) only transfers data to the servers.) Raise ``OSError``.

    ``anchor`` is a file without a name that has data on all of these servers. A server that must store its newest
    change also stores all changes before it. So each server gets a change: in the contents of the anchor, and in its
    mode. Then the anchor is synced.
    """
    status = os.fstat(anchor)
    for at in range(0, status.st_size, ANCHOR_STRIPE_SIZE):
        os.pwrite(anchor, b"\1", at)
    os.fchmod(anchor, status.st_mode & 0o777 ^ 0o200)
    os.fsync(anchor)


def _check_accepts_changes(descriptor: int) -> None:
    """Raise ``OSError`` if the file system no longer accepts changes, although it was mounted for writing.

    After an error a file system may stop its journal, or make itself read-only. Then there is nothing more to write,
    and syncfs(2) reports success although data were lost. Creating a file without a name (O_TMPFILE), where that is
    supported, needs the journal, and so reveals the error.
    """
    try:
        os.close(open_with_retries(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
    except OSError as error:
        if error.errno in _CHANGES_REFUSED_ERRNOS and not _is_mounted_read_only(descriptor):
            raise


def _is_mounted_read_only(descriptor: int) -> bool:
    """Return True if the mount has the option ``ro``, which a file system that makes itself read-only does not set."""
    return b"ro" in _mountinfo_of(descriptor)[1].split(b",")


_HELPER_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from pcopy.fsio.syncer import serve_sync_requests; serve_sync_requests()"
)
"""The helper's program text. Its argument is the directory from which the package is imported."""
_IMPORT_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DESCRIPTOR_FORMAT = struct.Struct("=i")
_RESULT_FORMAT = struct.Struct("=i")
"""Format of one result in an answer: an errno, 0 for success, or ``_NOTHING_SYNCED``.

An answer has one result, or one for each file. The helper's first message, a single result without a request, means
that it runs.
"""

_NOTHING_SYNCED = -1
"""Result of a request for which nothing was synced, because the helper process has too many open files."""

_FILE_SYSTEM_REQUEST, _FILES_REQUEST = 0, 1
"""Type of a request, the first byte of its message. The second byte is the number of descriptors."""


class SyncRequest:
    """The rank's side of a request to the helper process to sync a file system or files."""

    def __init__(self, syncer: SyncHelperProcess, operation: str, answers: socket.socket) -> None:
        """Create the rank's side of a request to ``syncer`` that receives its answer through the socket ``answers``.
        ``operation`` is the name of the system call, for messages.
        """
        self._syncer = syncer
        self._operation = operation
        self._answer_socket = answers
        self._answer: bytes | None = None

    def wait_for_answer(self, patience: float | None) -> bool:
        """Wait until the request is answered or has failed, but at most ``patience`` seconds (None: without a limit).
        Return True if it is answered or has failed.
        """
        if self._answer is None:
            self._answer_socket.settimeout(patience)
            try:
                self._answer = self._answer_socket.recv(MAX_FILES_PER_REQUEST * _RESULT_FORMAT.size)
            except TimeoutError:
                return False
            except OSError:
                self._answer = b""
        return True

    def results(self) -> list[int] | None:
        """Return the results of a request that is answered: an errno for each file, or one for the file system; 0 means
        success.

        Return None if the helper process has synced nothing (it could not start, or has too many open files): the
        caller must sync instead. Raise ``Problem`` if the helper process has ended.
        """
        if self._answer:
            numbers = [number for (number,) in _RESULT_FORMAT.iter_unpack(self._answer)]
            return None if _NOTHING_SYNCED in numbers else numbers
        if not self._syncer.has_started:
            return None
        from pcopy.fsio.problem import Problem

        raise Problem(self._operation, errno.EIO, text="the process that syncs has ended")

    def end_without_answer(self) -> None:
        """End the request without an answer: a thread that waits in ``wait_for_answer`` continues."""
        from contextlib import suppress
        from socket import SHUT_RDWR

        with suppress(OSError):
            self._answer_socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Discard the request. The helper process still completes a sync that it has begun."""
        self._syncer.remove_request(self)
        self._answer_socket.close()


class SyncHelperProcess:
    """The rank's side of the helper process that syncs file systems and files: starts it, sends requests to it and ends
    it.
    """

    def __init__(self) -> None:
        self._start_lock = allocate_lock()
        self._socket: socket.socket | None = None
        self._process: Popen[bytes] | None = None
        self._is_started = self._is_closed = False
        self._requests: set[SyncRequest] = set()

    def start(self) -> None:
        """Start the process, unless that was tried before. The process ends with the thread that has started it.

        If it cannot be started, ``sync`` works without it. The first request waits until the process runs, which takes
        as long as the copy of a few files.
        """
        with self._start_lock:
            if not self._is_started:
                self._is_started = True
                self._start_helper_process()

    def sync(self, descriptor: int, anchor: int = -1) -> None:
        """Bring everything on the file system of ``descriptor`` to stable storage by syncfs(2). Raise ``Problem``, also
        for earlier errors of write-back.

        If the descriptor of an ``anchor`` (a file with data on all servers of a distributed file system) is given, all
        these servers bring their data to storage, too. If there is no helper process, this process makes the calls.
        """
        descriptors = [descriptor] if anchor < 0 else [descriptor, anchor]
        numbers, order = None, self._send_request(_FILE_SYSTEM_REQUEST, descriptors)
        if order is not None:
            try:
                order.wait_for_answer(None)
                numbers = order.results()
            finally:
                order.close()
        if numbers is None:
            _sync_in_this_process(descriptors)
        elif numbers[0]:
            from pcopy.fsio.problem import Problem

            raise Problem("syncfs", numbers[0])

    def request_file_sync(self, descriptors: list[int]) -> SyncRequest | None:
        """Request fdatasync(2) of the open files ``descriptors``, at most ``MAX_FILES_PER_REQUEST``, and return the
        request, which the caller must close.

        The caller may close the files immediately. Return None if there is no process, or if it has ended: then the
        caller must sync the files.
        """
        return self._send_request(_FILES_REQUEST, descriptors)

    def _send_request(self, request_type: int, descriptors: list[int]) -> SyncRequest | None:
        """Send a request of this ``request_type`` for ``descriptors`` to the helper process, and return it; return None
        if it could not be sent.
        """
        if self._socket is None:
            return None
        from socket import AF_UNIX, SOCK_SEQPACKET, send_fds, socketpair

        try:
            own_end, helper_end = socketpair(AF_UNIX, SOCK_SEQPACKET)
        except OSError:
            return None
        order = SyncRequest(self, "fdatasync" if request_type == _FILES_REQUEST else "syncfs", own_end)
        self._requests.add(order)
        with helper_end:
            try:
                send_fds(self._socket, [bytes((request_type, len(descriptors)))], [helper_end.fileno(), *descriptors])
            except (BrokenPipeError, ConnectionResetError):  # The process has ended, which completes the request.
                # The caller can sync files instead: the ended process has consumed no error of their write-back.
                if request_type == _FILES_REQUEST:
                    order.close()
                    return None
            except OSError:  # the request was not sent
                order.close()
                return None
        if self._is_closed:
            order.end_without_answer()
        return order

    def remove_request(self, order: SyncRequest) -> None:
        """Remove a request that was closed from those that are interrupted when the process is ended."""
        self._requests.discard(order)

    @property
    def has_started(self) -> bool:
        """True if the helper process runs, has run, or was closed; False if it could not be started or ended before it
        was ready.
        """
        from socket import MSG_DONTWAIT, MSG_PEEK

        if self._is_closed or self._socket is None:
            return self._is_closed
        try:
            return bool(self._socket.recv(_RESULT_FORMAT.size, MSG_PEEK | MSG_DONTWAIT))
        except OSError as error:
            return error.errno == errno.EAGAIN

    def _start_helper_process(self) -> None:
        """Start the helper process. If that fails, this process makes the calls that sync."""
        import signal
        import socket  # imported late: most jobs end before they sync anything
        from contextlib import suppress
        from subprocess import DEVNULL, Popen

        try:
            own_end, helper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        # The new process inherits the mask, so that no signal reaches it even before its first instruction.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(OSError):
            try:
                with helper_end:
                    command = [sys.executable, "-I", "-S", "-c", _HELPER_PROGRAM, _IMPORT_DIRECTORY]
                    self._process = Popen(command, stdin=helper_end.fileno(), stdout=DEVNULL, stderr=DEVNULL, cwd="/")
                self._socket = own_end
                return
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        own_end.close()

    def close(self) -> None:
        """End the helper process. A sync that is under way fails for its caller, which does not wait any longer."""
        from contextlib import suppress

        self._is_closed = True
        for order in tuple(self._requests):
            order.end_without_answer()
        with suppress(OSError):  # it ends with this process at the latest
            if self._socket is not None:
                from socket import SHUT_RDWR

                self._socket.shutdown(SHUT_RDWR)
        with suppress(OSError):
            if self._process is not None:
                self._process.kill()
                self._process.poll()


def _sync_in_this_process(descriptors: list[int]) -> None:
    """Sync a file system in this process instead of the helper process. ``descriptors``: one on the file system, and,
    if there is an anchor (a file with data on all servers), that of the anchor. Raise ``Problem``.
    """
    from pcopy.fsio.problem import errors_as_problem

    sync_file_system(descriptors[0])
    for anchor in descriptors[1:]:
        with errors_as_problem("fsync"):
            _sync_all_servers(anchor)


def serve_sync_requests() -> None:
    """Run the helper process: carry out requests and send the results, until the rank has ended."""
    import _socket  # the module socket takes four times as long to load

    try:  # noqa: SIM105 (contextlib takes longer to load)
        libc.die_with_parent()  # the kernel ends this process even while a sync is under way
    except OSError:
        pass  # A sandbox refuses it: then the end of the connection ends this process.
    rank = _socket.socket(fileno=sys.stdin.fileno())
    rank.send(_RESULT_FORMAT.pack(0))
    room = _socket.CMSG_SPACE((1 + MAX_FILES_PER_REQUEST) * _DESCRIPTOR_FORMAT.size)
    while True:
        message, ancillary, _, _ = rank.recvmsg(2, room)
        if not message:
            return
        request_type, number = message
        descriptors = _received_descriptors(ancillary)
        if not descriptors:  # Too many open files: the kernel has dropped all, so the request ends without an answer.
            continue
        if request_type == _FILE_SYSTEM_REQUEST:
            _handle_request(request_type, number, descriptors)
            continue
        try:
            BackgroundThread(partial(_handle_request, request_type, number, descriptors))
        except (OSError, RuntimeError, MemoryError):  # No thread can be started: the next requests wait.
            _handle_request(request_type, number, descriptors)


def _received_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the ancillary data (SCM_RIGHTS) of a received request."""
    return [number for _, _, data in ancillary for (number,) in _DESCRIPTOR_FORMAT.iter_unpack(data)]


def _handle_request(request_type: int, number: int, descriptors: list[int]) -> None:
    """Carry out one request of the type ``request_type``, for ``number`` files or descriptors of a file system, and
    send the results.

    The first of ``descriptors`` is the socket for the answer. If there are fewer than ``number`` others, the operating
    system has dropped some because of the limit of open files. All are closed, also if memory is short: the end of
    the socket without an answer completes the request.
    """
    answer_socket, files = descriptors[0], descriptors[1:]
    try:
        try:
            if len(files) < number:
                numbers = [_NOTHING_SYNCED]
            elif request_type == _FILES_REQUEST:
                numbers = _sync_files(files)
            else:
                numbers = [_sync_file_system_and_servers(files)]
        finally:
            for descriptor in files:
                _close_quietly(descriptor)
        os.write(answer_socket, b"".join(map(_RESULT_FORMAT.pack, numbers)))
    except OSError:
        pass  # the rank no longer waits for the answer
    finally:
        _close_quietly(answer_socket)


def _sync_files(descriptors: list[int]) -> list[int]:
    """Sync each of the open files ``descriptors``, and return an errno for each, 0 for success.

    The write-back of all files is started first, so that the storage can process them together.
    """
    if len(descriptors) > 1:
        for descriptor in descriptors:
            try:  # noqa: SIM105
                libc.sync_file_range(descriptor, 0, 0, libc.SYNC_RANGE_WRITE)
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


def _sync_file_system_and_servers(descriptors: list[int]) -> int:
    """Sync the file system of the first of ``descriptors``; if there is a second one, the anchor (a file with data on
    all servers), also make all servers store their data. Return an errno, 0 for success.
    """
    try:
        _sync_file_system(descriptors[0])
        for anchor in descriptors[1:]:
            _sync_all_servers(anchor)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _close_quietly(descriptor: int) -> None:
    """Close a descriptor, ignoring errors."""
    try:  # noqa: SIM105
        os.close(descriptor)
    except OSError:
        pass  # nothing was written through this descriptor, so an error loses no data
