"""The stand-in behaves like a real Lustre."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lustre.asking import asked
from tests.lustre.conftest import Lustre
from tests.lustre.standin import (
    ANY,
    END,
    EXTENSION,
    INITIALISED,
    ON_MDT,
    OVERSTRIPING,
    RAID0,
    RELEASED,
    SERVER,
    STALE,
    STORED,
    Component,
    composite,
    plain,
)

MiB = 1 << 20

HELPERS = """
NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY
DELAYED = NEW | 0o20400

def tried(call, *words, **more):
    try:
        return call(*words, **more)
    except OSError as error:
        return errno.errorcode[error.errno]

def make(path, blob):
    made = os.open(path, DELAYED, 0o600)
    return made, tried(os.setxattr, made, "lustre.lov", bytes.fromhex(blob))

def library():
    import ctypes
    found = ctypes.CDLL(os.environ["PCOPY_LIBLUSTREAPI"], use_errno=True)
    found.llapi_layout_alloc.restype = found.llapi_layout_get_by_path.restype = ctypes.c_void_p
    return ctypes, found
"""


def reported(lustre: Lustre, code: str, *words: str | Path, pools: str = "", osts: int = 8) -> list[str]:
    """Return the lines that a program prints."""
    return lustre.asked(HELPERS + code, *words, pools=pools, osts=osts).splitlines()


def made(lustre: Lustre, blob: bytes, *, pools: str = "", osts: int = 8) -> str:
    """Set the layout of the new file ``file``; return the error name, or "None"."""
    (said,) = reported(
        lustre, "print(make(sys.argv[1], sys.argv[2])[1])", lustre.first / "file", blob.hex(), pools=pools, osts=osts
    )
    return said


def written(lustre: Lustre, start: int, size: int) -> None:
    code = "os.pwrite(os.open(sys.argv[1], os.O_WRONLY), bytes(int(sys.argv[3])), int(sys.argv[2]))"
    reported(lustre, code, lustre.first / "file", str(start), str(size))


def components(lustre: Lustre, name: str = "file") -> tuple[Component, ...]:
    shown = lustre.shown(lustre.first / name)
    assert shown is not None
    return shown.components


def test_new_file_gets_one_stripe(lustre: Lustre) -> None:
    reported(lustre, "os.open(sys.argv[1], NEW)", lustre.first / "file")
    (one,) = components(lustre)
    assert (one.count, one.size, one.pool, len(one.osts)) == (1, MiB, "", 1)


def test_file_without_a_layout_cannot_be_written(lustre: Lustre) -> None:
    code = """
made = os.open(sys.argv[1], DELAYED)
print(tried(os.getxattr, made, "lustre.lov"), tried(os.write, made, b"1"), tried(os.ftruncate, made, 1))
os.write(os.open(sys.argv[1], os.O_WRONLY), b"1")
print(tried(os.write, made, b"1"))
"""
    assert reported(lustre, code, lustre.first / "file") == ["ENODATA EBADF None", "1"]
    assert components(lustre)[0].count == 1


def test_layout_can_be_set_on_a_file_without_one(lustre: Lustre) -> None:
    code = "file, said = make(*sys.argv[1:])\nprint(said, os.write(file, bytes(300000)))"
    assert reported(lustre, code, lustre.first / "file", plain(4, 65536).hex()) == ["None 300000"]
    (one,) = components(lustre)
    assert (one.count, one.size, one.offset, len(set(one.osts))) == (4, 65536, ANY, 4)
    assert lustre.bytes_by_ost(lustre.first / "file") == dict(zip(one.osts, (103392, 65536, 65536, 65536), strict=True))
    assert [event.call for event in lustre.events("create", "setlayout")] == ["create", "setlayout"]


def test_existing_layout_is_not_replaced(lustre: Lustre) -> None:
    code = "made = os.open(sys.argv[1], NEW)\nprint(tried(os.setxattr, made, 'lustre.lov', bytes.fromhex(sys.argv[2])))"
    assert reported(lustre, code, lustre.first / "file", plain(4).hex()) == ["None"]
    assert components(lustre)[0].count == 1
    assert lustre.events("keptlayout")


def test_invalid_layout_values_are_refused(lustre: Lustre) -> None:
    values = {
        plain(2, 5): "EINVAL",
        plain(2, 0, offset=8): "EINVAL",
        bytes(31): "ERANGE",
        b"garbage " * 8: "ERANGE",
        plain(2, 0, offset=3): "None",
    }
    for blob, expected in values.items():
        assert made(lustre, blob) == expected
        (lustre.first / "file").unlink()


def test_stripe_count_is_limited_to_the_number_of_osts(lustre: Lustre) -> None:
    for wish, osts, count in ((100, 8, 8), (ANY, 5, 5), (0, 8, 1)):
        assert made(lustre, plain(wish), osts=osts) == "None"
        (one,) = components(lustre)
        assert (one.count, len(set(one.osts))) == (count, count)
        (lustre.first / "file").unlink()
    assert made(lustre, plain(12, pattern=RAID0 | OVERSTRIPING)) == "None"
    assert components(lustre)[0].count == 12


def test_pool_limits_the_osts_of_a_file(lustre: Lustre) -> None:
    assert made(lustre, plain(9, pool="slow"), pools="fast:0,1;slow:4,5") == "None"
    (one,) = components(lustre)
    assert (one.pool, one.count, set(one.osts)) == ("slow", 2, {4, 5})
    (lustre.first / "file").unlink()
    assert made(lustre, plain(8, pool="none-such")) == "None"
    (one,) = components(lustre)
    assert (one.pool, one.count) == ("none-such", 8)


def test_components_are_initialised_when_data_is_written(lustre: Lustre) -> None:
    assert made(lustre, composite((MiB, plain(0, MiB, pattern=ON_MDT)), (64 * MiB, plain(2)), (END, plain(ANY)))) == (
        "None"
    )
    assert [(one.flags, one.count, len(one.osts)) for one in components(lustre)] == [
        (INITIALISED, 0, 0),
        (0, 2, 0),
        (0, ANY, 0),
    ]
    written(lustre, 0, 3 * MiB)
    assert [len(one.osts) for one in components(lustre)] == [0, 2, 0]
    written(lustre, 64 * MiB, 1)
    assert [len(one.osts) for one in components(lustre)] == [0, 2, 8]
    assert lustre.bytes_by_ost(lustre.first / "file")[-1] == MiB


def test_layout_may_have_hundreds_of_stripes(lustre: Lustre) -> None:
    assert made(lustre, composite((MiB, plain(ANY)), (END, plain(ANY))), osts=300) == "None"
    code = "os.pwrite(os.open(sys.argv[1], os.O_WRONLY), bytes(2 << 20), 0)"
    reported(lustre, code, lustre.first / "file", osts=300)
    assert [len(set(one.osts)) for one in components(lustre)] == [300, 300]


def test_only_one_mirror_is_written(lustre: Lustre) -> None:
    assert made(lustre, composite((END, plain(1)), (END, plain(2)), mirrors=2)) == "None"
    written(lustre, 0, 10)
    first, second = components(lustre)
    assert (first.flags, second.flags) == (INITIALISED, INITIALISED | STALE)
    assert lustre.bytes_by_ost(lustre.first / "file") == {first.osts[0]: 10}


def test_self_extending_component_grows(lustre: Lustre) -> None:
    wish = composite((64 * MiB, plain(1)), (END, plain(1, 64 << 10)), flags={1: EXTENSION})  # by 64 MiB
    assert made(lustre, wish) == "None"
    written(lustre, 100 * MiB, 1)
    assert [(one.start, one.end) for one in components(lustre)] == [(0, 128 * MiB), (128 * MiB, END)]


def test_layout_stored_by_a_test_is_shown(lustre: Lustre) -> None:
    lustre.need_standin("it keeps layouts in attributes")
    path = lustre.first / "released"
    path.touch()
    os.setxattr(path, STORED, plain(3, MiB, pattern=RAID0 | RELEASED, offset=1))
    assert components(lustre, "released") == (Component(3, MiB, pattern=RAID0 | RELEASED),)
    assert reported(lustre, "print(os.listxattr(sys.argv[1]))", path) == [
        "['lustre.lov', 'trusted.lov', 'trusted.lma', 'trusted.link']"
    ]
    code = f"""
print(tried(os.getxattr, sys.argv[1], {STORED!r}), tried(os.setxattr, sys.argv[1], {STORED!r}, b""))
print(tried(os.setxattr, sys.argv[1], "trusted.lov", b""))
"""
    assert reported(lustre, code, path) == ["ENODATA EPERM", "EPERM"]
    assert lustre.events("settrusted")[0].text == "trusted.lov"


def test_default_layout_of_a_directory_is_inherited(lustre: Lustre) -> None:
    code = """
os.chdir(sys.argv[1])
os.mkdir("top")
print(tried(os.getxattr, "top", "lustre.lov"))
os.setxattr("top", "lustre.lov", bytes.fromhex(sys.argv[2]))
os.mkdir("top/below")
top = os.open("top", os.O_RDONLY)
os.open("below/file", NEW, dir_fd=top)
os.open(f"/proc/self/fd/{top}/file", NEW)
os.mkdir("beside")
os.open("beside/file", NEW)
"""
    assert reported(lustre, code, lustre.first, plain(3, 65536).hex()) == ["ENODATA"]
    for name in ("top", "top/below", "top/below/file", "top/file"):
        assert [(one.count, one.size) for one in components(lustre, name)] == [(3, 65536)], name
    assert lustre.shown(lustre.first / "beside") is None
    assert components(lustre, "beside/file")[0].count == 1


def test_default_layout_of_the_root_applies_everywhere(lustre: Lustre) -> None:
    lustre.need_standin("that of a real one is for others, too")
    code = """
os.chdir(sys.argv[1])
os.setxattr(".", "lustre.lov", bytes.fromhex(sys.argv[2]))
os.mkdir("one")
os.open("one/file", NEW)
print(tried(os.getxattr, "one", "trusted.lov"), "lustre.lov" in os.listxattr("one"))
"""
    assert reported(lustre, code, lustre.first, plain(2).hex()) == ["ENODATA False"]
    assert components(lustre, "one")[0].count == components(lustre, "one/file")[0].count == 2
    reported(lustre, "os.removexattr(sys.argv[1], 'lustre.lov')", lustre.first)
    assert lustre.shown(lustre.first / "one") is None


def test_ordinary_user_may_set_layouts_of_own_items(lustre: Lustre) -> None:
    """The owner may set what root may, also on a file that nobody can read."""
    (lustre.first / "own").mkdir()
    os.chown(lustre.first / "own", 12345, 12345)
    code = """
os.setgroups([]), os.setgid(12345), os.setuid(12345)
os.chdir(sys.argv[1])
file = os.open("own/file", NEW, 0)
print(os.write(file, b"1"), oct(os.fstat(file).st_mode & 0o777))
print(make("own/other", sys.argv[2])[1], tried(os.setxattr, "own", "lustre.lov", bytes.fromhex(sys.argv[2])))
print(tried(os.setxattr, ".", "lustre.lov", bytes.fromhex(sys.argv[2])), os.listxattr("own"))
print(tried(os.getxattr, "own", "trusted.lov"), tried(os.setxattr, "own", "trusted.lov", b"1"))
"""
    assert reported(lustre, code, lustre.first, plain(2).hex()) == [
        "1 0o0",
        "None None",
        "EACCES ['lustre.lov']",
        "ENODATA EPERM",
    ]
    assert lustre.is_real or lustre.events("write")[0].numbers["bytes"] == 1


def test_unsupported_operations_fail_as_on_lustre(lustre: Lustre) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
os.chdir(sys.argv[1])
file, other = os.open("file", NEW), os.open("other", NEW)

def renamed(old, new, flags):
    result = libc.renameat2(-100, old, -100, new, flags)
    return errno.errorcode[ctypes.get_errno()] if result else result

print(renamed(b"file", b"new", 1), renamed(b"file", b"other", 2), renamed(b"file", b"new", 0))
print(tried(os.open, ".", os.O_TMPFILE | os.O_RDWR), tried(fcntl.ioctl, file, 0x40049409, os.open("new", os.O_RDONLY)))
os.write(file, b"some")
beside, elsewhere = os.open("beside", NEW), os.open(sys.argv[2] + "/file", NEW)
print(tried(os.copy_file_range, os.open("new", os.O_RDONLY), beside, 4))
print(tried(os.copy_file_range, os.open("new", os.O_RDONLY), elsewhere, 4)) if sys.argv[3] else print("EXDEV")
os.utime("new", ns=(1_500_000_001, 2_500_000_001))
os.utime(beside, ns=(1_500_000_001, 2_500_000_001))
print([(os.stat(name).st_atime_ns, os.stat(name).st_mtime_ns) for name in ("new", "beside")])
kinds = []
for place in (".", "/dev/shm"):
    buffer = ctypes.create_string_buffer(256)
    libc.statfs(place.encode(), buffer)
    kinds.append(int.from_bytes(buffer.raw[:8], "little"))
print(kinds[0] == 0x0BD00BD0, kinds[1] == 0x0BD00BD0, tried(os.getxattr, "/dev/shm", "lustre.lov"))
os.fsync(file)
libc.syncfs(file)
"""
    assert reported(lustre, code, lustre.first, lustre.second, "" if lustre.is_real else "two") == [
        "EINVAL EINVAL 0",
        "ENOTSUP ENOTSUP",
        "4",
        "EXDEV",
        "[(1000000000, 2000000000), (1000000000, 2000000000)]",
        "True False ENOTSUP",
    ]
    assert [event.call for event in lustre.events("fsync", "syncfs")] == ["fsync", "syncfs"]


def test_ioctl_requests_for_locks_and_servers(lustre: Lustre) -> None:
    (lustre.first / "second").mkdir()
    os.setxattr(lustre.first / "second", SERVER, b"1")
    code = """
os.chdir(sys.argv[1])
LOCK, UNLOCK, COUNT, SERVER = 0x4008669E, 0x4008669F, 0x800866A8, 0x800466AF
file, there = os.open("file", NEW), os.open("second", os.O_RDONLY)

def asked(*words):
    return tried(fcntl.ioctl, *words)

print(asked(file, LOCK, 0), asked(file, UNLOCK, 7), asked(file, LOCK, 7), asked(file, LOCK, 7), asked(file, UNLOCK, 8))
print(asked(file, UNLOCK, 7))
print(int.from_bytes(asked(there, COUNT, bytes(8)), "little"), asked(there, COUNT, b"\\1" + bytes(7))[0])
print(asked(there, SERVER, bytes(4))[0], asked(file, SERVER, bytes(4))[0])
"""
    seen = lustre.environment(mdts=2)
    assert asked(HELPERS + code, lustre.first, seen=seen).splitlines() == [
        "EINVAL EINVAL 0 EINVAL EINVAL",
        "0",
        "8 2",
        "1 0",
    ]
    assert [(event.call, event.numbers["gid"]) for event in lustre.events("grouplock", "groupunlock")] == [
        ("grouplock", 7),
        ("groupunlock", 7),
    ]
    refused = lustre.environment(refuse=("grouplock", "mdtidx", "setxattr"))
    code = """
there = os.open(sys.argv[1], os.O_RDONLY)
file, said = make(sys.argv[1] + "/new", sys.argv[2])
print(said, tried(fcntl.ioctl, file, 0x4008669E, 1), tried(fcntl.ioctl, there, 0x800466AF, bytes(4)))
"""
    assert asked(HELPERS + code, lustre.first, plain(1).hex(), seen=refused) == "EPERM ENOTTY ENOTTY\n"


def test_library_creates_files(lustre: Lustre) -> None:
    code = """
ctypes, api = library()
os.chdir(sys.argv[1])
api.llapi_msg_set_level(0)

def create(path, pool=b""):
    layout = ctypes.c_void_p(api.llapi_layout_alloc())
    assert not api.llapi_layout_stripe_count_set(layout, ctypes.c_uint64(2))
    assert not api.llapi_layout_pool_name_set(layout, pool)
    made = api.llapi_layout_file_create(path, os.O_WRONLY, 0o600, layout)
    return "made" if made >= 0 else f"{ctypes.get_errno()}"

print(create(b"one"), create(b"one"), create(b"two", b"fast"), create(b"three", b"none-such"), os.path.exists("three"))
other = sys.argv[2].encode()
print(create(other), os.path.exists(other))
layout, number, index = ctypes.c_void_p(api.llapi_layout_get_by_path(b"two", 0)), ctypes.c_uint64(), ctypes.c_uint64()
name = ctypes.create_string_buffer(16)
api.llapi_layout_stripe_count_get(layout, ctypes.byref(number))
api.llapi_layout_pool_name_get(layout, name, 16)
api.llapi_layout_ost_index_get(layout, ctypes.c_uint64(1), ctypes.byref(index))
print(number.value, name.value, index.value in (0, 1, 2, 3))
file = os.open("one", os.O_WRONLY)
print(api.llapi_group_lock(file, 5), api.llapi_group_lock(file, 5) == -errno.EINVAL, api.llapi_group_unlock(file, 5))
print(api.llapi_layout_get_by_path(b"/dev/shm", 0), ctypes.get_errno() == errno.ENOTTY)
"""
    elsewhere = lustre.log.with_name("elsewhere")
    said = reported(lustre, code, lustre.first, elsewhere, pools="fast:0,1,2,3")
    elsewhere.unlink()
    assert said == [
        "made 17 made 0 False",
        "25 True",
        "2 b'fast' True",
        "0 True 0",
        "None True",
    ]
    assert components(lustre, "one")[0].count == 2


def test_old_library_lacks_newer_functions(lustre: Lustre) -> None:
    code = "_, api = library()\nprint(*(hasattr(api, name) for name in sys.argv[1:]))"
    names = ("llapi_layout_get_by_path", "llapi_layout_get_by_xattr", "llapi_layout_ost_index_reset")
    assert reported(lustre, code, *names) == ["True True True"]
    assert asked(HELPERS + code, *names, seen=lustre.environment(refuse=("oldlib",))) == "True False False\n"


def test_concurrent_processes_keep_the_components_of_each_other(lustre: Lustre) -> None:
    """Each process writes to a component that has no objects yet."""
    ends = [*(MiB * number for number in range(1, 16)), END]
    assert made(lustre, composite(*((end, plain(1)) for end in ends))) == "None"
    code = """
children = []
for number in range(16):
    if not (child := os.fork()):
        os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b"1", number << 20)
        os._exit(0)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
"""
    reported(lustre, code, lustre.first / "file")
    found = components(lustre)
    assert all(one.flags == INITIALISED and len(one.osts) == 1 for one in found)
    sums = lustre.bytes_by_ost(lustre.first / "file")
    assert sum(sums.values()) == 16
    assert set(sums) == {one.osts[0] for one in found}
