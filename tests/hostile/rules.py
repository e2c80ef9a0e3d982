"""The rules that stand between an attacker and what is outside, each with the edits that switch it off.

Where two rules guard one thing, both are switched off together: the process's umask and the modes at creation.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """``old`` occurs once in ``pcopy/<file>``."""

    file: str
    old: str
    new: str


class Rule(NamedTuple):
    """With the edits each of ``attacks`` does harm, or makes the run hang."""

    name: str
    edits: tuple[Edit, ...]
    attacks: tuple[str, ...]
    hangs: bool = False


NUMBERS_ARE_BELIEVED = Edit("fsio/identity.py", "if self.mark == other.mark else Likeness.OTHER", "")
ANYTHING_IS_KNOWN = Edit(
    "tasks/files/existing.py", "likeness is Likeness.SAME or _is_ours_alone(status_of(directory))", "True"
)
NO_UMASK = Edit("tools/copy.py", "return os.umask(0o077)", "return os.umask(0)")

RULES = (
    Rule(
        "directories are entered without following links",
        (Edit("fsio/directories.py", "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW", "os.O_RDONLY | os.O_DIRECTORY"),),
        (
            "a source directory becomes a link to a directory elsewhere",
            "a target directory becomes a link",
            "a new target directory becomes a link",
        ),
    ),
    Rule(
        "a directory that is opened again is the one that was found",
        (
            Edit(
                "fsio/directories.py",
                "if identity is not None and identity.compare(entry[1]) is Likeness.OTHER:",
                "if False:",
            ),
        ),
        ("target directories change places before they are finished",),
    ),
    Rule(
        "sources are opened without waiting",
        (Edit("fsio/source.py", "os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY", "os.O_NOFOLLOW | os.O_NOCTTY"),),
        ("a source file becomes a FIFO",),
        hangs=True,
    ),
    Rule(
        "sources are opened without following links",
        (Edit("fsio/source.py", "os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY", "os.O_NONBLOCK | os.O_NOCTTY"),),
        ("a source file becomes a link",),
    ),
    Rule(
        "a small source file is the one that was found",
        (
            Edit(
                "fsio/kernel/copy_rows.py",
                "if version != self._versions[row] or status.st_dev != self._devices[row] or "
                "not _is_regular(status.st_mode):",
                "if False:",
            ),
        ),
        ("a source file becomes a device",),
    ),
    Rule(
        "a large source file is the one that was found",
        (
            Edit(
                "tasks/files/whole_file.py",
                "        check_found(status, rank.source_device(item.place, item.mount), item.inode)\n",
                "",
            ),
        ),
        ("a large source file becomes a device",),
    ),
    Rule(
        "each chunk is copied from the file that was split",
        (
            Edit(
                "tasks/files/copy_chunk.py",
                "        check_unchanged(reading, file.version)\n        writing",
                "        writing",
            ),
        ),
        ("a split source file becomes a device between chunks",),
    ),
    Rule(
        "a split file gets its metadata from the file that was split",
        (Edit("tasks/files/finish_file.py", "        check_unchanged(reading, file.version)\n", ""),),
        ("a split source file becomes the attacker's before its copy is finished",),
    ),
    Rule(
        "a temporary file is opened again without following links",
        (Edit("fsio/temporary.py", "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NONBLOCK"),),
        ("a temporary file becomes a link between chunks",),
    ),
    Rule(
        "a temporary file is opened again without waiting",
        (Edit("fsio/temporary.py", "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NOFOLLOW"),),
        ("a temporary file becomes a FIFO between chunks",),
        hangs=True,
    ),
    Rule(
        "a temporary file that is opened again is ours",
        (Edit("fsio/temporary.py", "    if not ours:", "    if False:"),),
        (
            "a temporary file becomes a hard link to a canary between chunks",
            "a temporary file becomes a hard link before it is finished",
            "a temporary file becomes the attacker's before it is finished",
        ),
    ),
    Rule(
        "it has the inode that was made",
        (
            Edit(
                "fsio/temporary.py",
                "        made.compare(identity_of(descriptor, status, made.mount, made=True)) is not Likeness.OTHER\n"
                "        and ",
                "        ",
            ),
        ),
        ("a temporary file becomes another file of root's between chunks",),
    ),
    Rule(
        "it belongs to us",
        (NUMBERS_ARE_BELIEVED, Edit("fsio/temporary.py", " and status.st_uid == os.geteuid()", "")),
        ("a temporary file becomes another one with its inode's number",),
    ),
    Rule(
        "what was renamed is what was meant",
        (Edit("fsio/temporary.py", "    if status.st_ino != inode:", "    if False:"),),
        (
            "a temporary file becomes the attacker's before it is renamed",
            "a FIFO under a temporary name is replaced once it is dressed",
        ),
    ),
    Rule(
        "a temporary file is new",
        (
            Edit(
                "fsio/new_file.py",
                "return cls.at(directory, temporary, layout)",
                "return cls(directory, temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT, dir_fd=directory))",
            ),
        ),
        ("a temporary file's name is taken by a hard link to a canary",),
    ),
    Rule(
        "a small file is new",
        (Edit("fsio/temporary.py", "os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW", "os.O_CREAT"),),
        ("a new file's name is taken by a hard link to a canary", "a new file's name is taken by a link"),
    ),
    Rule(
        "what has a small file's name is seen before that is made",
        (
            Edit("tasks/files/deciding.py", "    if not place.fresh:\n", "    if False:\n"),
            Edit("fsio/temporary.py", "os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW", "os.O_CREAT"),
        ),
        ("a hard link to a canary is planted", "symbolic links are planted"),
    ),
    Rule(
        "what gets further names is the copy",
        (
            Edit("tasks/files/existing.py", "        if likeness is Likeness.OTHER:\n", "        if False:\n"),
            ANYTHING_IS_KNOWN,
        ),
        ("the first of linked names is replaced before the next is made", "both linked names are replaced"),
    ),
    Rule(
        "an inode's number doesn't tell which item it is",
        (NUMBERS_ARE_BELIEVED,),
        ("the first of linked names becomes another file with its inode's number",),
    ),
    Rule(
        "links are made from what was looked at",
        (
            Edit(
                "tasks/links/make_links.py",
                "os.link(handle_of(held), name, dst_dir_fd=target, follow_symlinks=True)",
                "os.link(os.readlink(handle_of(held)), name, dst_dir_fd=target, follow_symlinks=False)",
            ),
        ),
        ("the first of linked names is replaced as the next is made",),
    ),
    Rule(
        "nodes are held without following links",
        (Edit("fsio/nodes.py", "(0 if follow else os.O_NOFOLLOW)", "0"),),
        ("a new FIFO becomes a link",),
    ),
    Rule(
        "a new node has one name",
        (Edit("fsio/nodes.py", " or made.st_nlink != 1:", ":"),),
        ("a new FIFO becomes a hard link to a canary",),
    ),
    Rule(
        "a new node belongs to us",
        (Edit("fsio/nodes.py", "return made.st_uid == shown.uid and not", "return not"),),
        ("a new FIFO becomes somebody else's",),
    ),
    Rule(
        "a new device has the number that was meant",
        (Edit("fsio/nodes.py", "if is_device and made.st_rdev != source.st_rdev:", "if False:"),),
        ("a new device becomes another device",),
    ),
    Rule(
        "a new node is private",
        (Edit("fsio/nodes.py", " and not stat.S_IMODE(made.st_mode) & ~0o600", ""),),
        ("a new device becomes one that is finished",),
    ),
    Rule(
        "what is renamed is the node that was dressed",
        (
            Edit(
                "fsio/new_file.py",
                "inode = self.status.st_ino if self._made is None else self._made.inode",
                "inode = os.lstat(self._made_as, dir_fd=self._directory).st_ino",
            ),
        ),
        ("a FIFO under a temporary name is replaced once it is dressed",),
    ),
    Rule(
        "a small file is private until it is dressed",
        (NO_UMASK, Edit("fsio/kernel/copy_rows.py", "NEW, 0o600, dir_fd=directory", "NEW, 0o666, dir_fd=directory")),
        ("a new file in root's directory is read before it is dressed",),
    ),
    Rule(
        "a file that NewFile makes is private until it is dressed",
        (NO_UMASK, Edit("fsio/temporary.py", "NEW, 0o600, dir_fd=directory", "NEW, 0o666, dir_fd=directory")),
        ("a new file is read before it is dressed", "a temporary file is read before it is dressed"),
    ),
    Rule(
        "a new directory is private until it is finished",
        (
            NO_UMASK,
            Edit(
                "tasks/directories/scan_dir.py", "os.mkdir(name, 0o700, dir_fd=parent)", "os.mkdir(name, dir_fd=parent)"
            ),
        ),
        ("a new directory is read before it is finished",),
    ),
    Rule(
        "an existing directory is not opened up before it is finished",
        (
            Edit(
                "tasks/directories/scan_dir.py",
                "            let_us_in(parent, name, present)\n",
                "            os.chmod(name, source.st_mode & 0o7777, dir_fd=parent)\n",
            ),
        ),
        ("an existing directory is read before it is finished",),
    ),
    Rule(
        "set-id bits come after the owner of a small file",
        (
            Edit(
                "fsio/kernel/copy_rows.py",
                "                    _chown(writing, status.st_uid, status.st_gid)\n",
                "                    _chmod(writing, status.st_mode & 0o7777)\n"
                "                    _chown(writing, status.st_uid, status.st_gid)\n",
            ),
        ),
        ("a new file is set-id before it has its owner",),
    ),
    Rule(
        "set-id bits come after the owner of a temporary file",
        (
            Edit(
                "fsio/attributes.py",
                "    owned = dressing.own(attributes, preserve, kept)\n",
                "    os.chmod(handle, stat.S_IMODE(attributes.mode))\n"
                "    owned = dressing.own(attributes, preserve, kept)\n",
            ),
        ),
        ("a temporary file is set-id before it has its owner",),
    ),
    Rule(
        "what is made in somebody else's directory keeps no ACL that it inherits",
        (Edit("fsio/attributes.py", "owner != os.geteuid() or has_default_acl", "has_default_acl"),),
        ("a directory gets a default ACL after it was looked at",),
    ),
    Rule(
        "a file with other links is not written over",
        (
            Edit("fsio/in_place.py", " or present.st_nlink != 1:", ":"),
            Edit("fsio/in_place.py", " and status.st_nlink == 1\n", "\n"),
        ),
        ("a hard link to a canary is planted where files are written over",),
    ),
    Rule(
        "what is written over is what was looked at",
        (Edit("fsio/in_place.py", "if not is_same or (", "if ("),),
        ("a file that is to be written over becomes a hard link to a canary",),
    ),
    Rule(
        "what is written over is opened without following links",
        (Edit("fsio/in_place.py", "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NONBLOCK"),),
        ("a file that is to be written over becomes a link",),
    ),
    Rule(
        "what is written over is opened without waiting",
        (Edit("fsio/in_place.py", "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NOFOLLOW"),),
        ("a file that is to be written over becomes a FIFO",),
        hangs=True,
    ),
)
