"""The rules that protect items outside of a tree, each with the edits that disable it.

Where two rules protect the same thing, both are disabled together: the umask of the process and the modes at creation.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.support.edits import Edit


class Rule(NamedTuple):
    """A rule: with its edits, each of ``attacks`` does harm, or makes the run hang."""

    name: str
    edits: tuple[Edit, ...]
    attacks: tuple[str, ...]
    hangs: bool = False


NUMBERS_IDENTIFY_INODES = Edit(
    "fsio/identity.py",
    "ItemIdentity.compare_with_identity",
    "IdentityComparison.SAME if self.mark == other.mark else IdentityComparison.OTHER",
    "IdentityComparison.SAME",
)
ANY_FILE_IS_THE_COPY = Edit(
    "tasks/files/existing.py",
    "open_target_copy",
    "likeness is IdentityComparison.SAME or _is_writable_by_us_only(status_of_open_item(directory))",
    "True",
)
NO_UMASK = Edit("tools/copy.py", "_set_private_umask", "0o077", "0")

RULES = (
    Rule(
        "directories are entered without following links",
        (
            Edit(
                "fsio/directories.py",
                "",
                "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW",
                "os.O_RDONLY | os.O_DIRECTORY",
            ),
        ),
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
                "DirectoriesBelowRoot.open",
                "identity is not None and identity.compare_with_identity(entry[1]) is IdentityComparison.OTHER",
                "False",
            ),
        ),
        ("target directories change places before they are finished",),
    ),
    Rule(
        "sources are opened without waiting",
        (Edit("fsio/source.py", "", "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDONLY | os.O_NOFOLLOW"),),
        ("a source file becomes a FIFO",),
        hangs=True,
    ),
    Rule(
        "sources are opened without following links",
        (Edit("fsio/source.py", "", "os.O_RDONLY | os.O_NOFOLLOW", "os.O_RDONLY"),),
        ("a source file becomes a link",),
    ),
    Rule(
        "a small source file is the one that was found",
        (
            Edit(
                "fsio/backend/copy_rows.py",
                "CopySmallFilesBatchProcessor._copy_file",
                "version != self._versions[row] or status.st_dev != self._devices[row] or not "
                "_is_regular(status.st_mode)",
                "False",
            ),
        ),
        ("a source file becomes a device",),
    ),
    Rule(
        "a large source file is the one that was found",
        (
            Edit(
                "tasks/files/whole_file.py",
                "_open_checked_source",
                "check_is_file_found_by_scan(status, rank.source_device(item.place, item.mount), item.inode)\n"
                "opened = _OpenSourceFile(reading, status)",
                "opened = _OpenSourceFile(reading, status)",
            ),
        ),
        ("a large source file becomes a device",),
    ),
    Rule(
        "each chunk is copied from the file that was split",
        (
            Edit(
                "tasks/files/copy_chunk.py",
                "_copy_chunk",
                "check_file_is_unchanged(reading, file.version)\nwriting = -1",
                "writing = -1",
            ),
        ),
        ("a split source file becomes a device between chunks",),
    ),
    Rule(
        "a split file gets its metadata from the file that was split",
        (
            Edit(
                "tasks/files/finish_file.py",
                "_read_source_state",
                "check_file_is_unchanged(reading, file.version)\nstatus = status_of_open_item(reading, on_source=True)",
                "status = status_of_open_item(reading, on_source=True)",
            ),
        ),
        ("a split source file becomes the attacker's before its copy is finished",),
    ),
    Rule(
        "a temporary file is opened again without following links",
        (Edit("fsio/temporary.py", "reopen_temporary_file", "os.O_WRONLY | os.O_NOFOLLOW", "os.O_WRONLY"),),
        ("a temporary file becomes a link between chunks",),
    ),
    Rule(
        "a temporary file is opened again without waiting",
        (
            Edit(
                "fsio/temporary.py",
                "reopen_temporary_file",
                "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_WRONLY | os.O_NOFOLLOW",
            ),
        ),
        ("a temporary file becomes a FIFO between chunks",),
        hangs=True,
    ),
    Rule(
        "a temporary file that is opened again is ours",
        (Edit("fsio/temporary.py", "reopen_temporary_file", "not ours", "False"),),
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
                "reopen_temporary_file",
                "made.compare_with_identity(identity_of_open_item(descriptor, status, made.mount_code, "
                "created_by_job=True)) is not IdentityComparison.OTHER and status.st_size == size and "
                "status.st_nlink == 1 and unusual_status_of_new_file(status) == shown",
                "status.st_size == size and status.st_nlink == 1 and unusual_status_of_new_file(status) == shown",
            ),
        ),
        ("a temporary file becomes another file of root's between chunks",),
    ),
    Rule(
        "it belongs to us",
        (
            NUMBERS_IDENTIFY_INODES,
            Edit(
                "fsio/temporary.py",
                "is_private_file",
                "stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600 and status.st_uid == "
                "os.geteuid()",
                "stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600",
            ),
        ),
        ("a temporary file becomes another one with its inode's number",),
    ),
    Rule(
        "what was renamed is what was meant",
        (Edit("fsio/temporary.py", "verify_name_has_inode", "status.st_ino != inode", "False"),),
        (
            "a temporary file becomes the attacker's before it is renamed",
            "a FIFO under a temporary name is replaced once it has its metadata",
        ),
    ),
    Rule(
        "a temporary file is new",
        (
            Edit(
                "fsio/new_file.py",
                "NewFile.create_temporary_file",
                "cls.create(directory, temporary, layout)",
                "cls(directory, temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT, dir_fd=directory))",
            ),
        ),
        ("a temporary file's name is taken by a hard link to a canary",),
    ),
    Rule(
        "a small file is new",
        (
            Edit(
                "fsio/temporary.py",
                "",
                "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
                "os.O_WRONLY | os.O_CREAT",
            ),
        ),
        ("a new file's name is taken by a hard link to a canary", "a new file's name is taken by a link"),
    ),
    Rule(
        "what has a small file's name is seen before that is made",
        (
            Edit("tasks/files/file_decisions.py", "copy_plans_for_files", "not place.is_new", "False"),
            Edit(
                "fsio/temporary.py",
                "",
                "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
                "os.O_WRONLY | os.O_CREAT",
            ),
        ),
        ("a hard link to a canary is planted", "symbolic links are planted"),
    ),
    Rule(
        "what gets further names is the copy",
        (
            Edit("tasks/files/existing.py", "open_target_copy", "likeness is IdentityComparison.OTHER", "False"),
            ANY_FILE_IS_THE_COPY,
        ),
        ("the first of linked names is replaced before the next is made", "both linked names are replaced"),
    ),
    Rule(
        "an inode's number doesn't tell which item it is",
        (NUMBERS_IDENTIFY_INODES,),
        ("the first of linked names becomes another file with its inode's number",),
    ),
    Rule(
        "links are made from what was looked at",
        (
            Edit(
                "tasks/links/make_links.py",
                "_create_link",
                "os.link(proc_path_of_descriptor(copy_fd), name, dst_dir_fd=target, follow_symlinks=True)",
                "os.link(os.readlink(proc_path_of_descriptor(copy_fd)), name, dst_dir_fd=target, "
                "follow_symlinks=False)",
            ),
        ),
        ("the first of linked names is replaced as the next is made",),
    ),
    Rule(
        "nodes are held without following links",
        (Edit("fsio/nodes.py", "open_o_path_descriptor", "0 if follow else os.O_NOFOLLOW", "0"),),
        ("a new FIFO becomes a link",),
    ),
    Rule(
        "a new node has one name",
        (
            Edit(
                "fsio/nodes.py",
                "_is_own_just_created_item",
                "stat.S_IFMT(made.st_mode) != stat.S_IFMT(source.st_mode) or made.st_nlink != 1",
                "stat.S_IFMT(made.st_mode) != stat.S_IFMT(source.st_mode)",
            ),
        ),
        ("a new FIFO becomes a hard link to a canary",),
    ),
    Rule(
        "a new node belongs to us",
        (
            Edit(
                "fsio/nodes.py",
                "_is_own_just_created_item",
                "made.st_uid == shown.uid and not stat.S_IMODE(made.st_mode) & ~shown.mode",
                "not stat.S_IMODE(made.st_mode) & ~shown.mode",
            ),
        ),
        ("a new FIFO becomes somebody else's",),
    ),
    Rule(
        "a new device has the number that was meant",
        (Edit("fsio/nodes.py", "_is_own_just_created_item", "is_device and made.st_rdev != source.st_rdev", "False"),),
        ("a new device becomes another device",),
    ),
    Rule(
        "a new node is private",
        (
            Edit(
                "fsio/nodes.py",
                "_is_own_just_created_item",
                "made.st_uid == os.geteuid() and not stat.S_IMODE(made.st_mode) & ~0o600",
                "made.st_uid == os.geteuid()",
            ),
        ),
        ("a new device becomes one that is finished",),
    ),
    Rule(
        "what is renamed is the node that has got its metadata",
        (
            Edit(
                "fsio/new_file.py",
                "NewFile.commit",
                "self.status.st_ino if self._kept_identity is None else self._kept_identity.inode",
                "os.lstat(self._original_name, dir_fd=self._directory).st_ino",
            ),
        ),
        ("a FIFO under a temporary name is replaced once it has its metadata",),
    ),
    Rule(
        "a small file is private until it has its metadata",
        (
            NO_UMASK,
            Edit(
                "fsio/backend/copy_rows.py", "CopySmallFilesBatchProcessor._create_copy_in_few_calls", "0o600", "0o666"
            ),
        ),
        ("a new file in root's directory is read before it has its metadata",),
    ),
    Rule(
        "a file that NewFile makes is private until it has its metadata",
        (NO_UMASK, Edit("fsio/temporary.py", "create_private_file", "0o600", "0o666")),
        ("a new file is read before it has its metadata", "a temporary file is read before it has its metadata"),
    ),
    Rule(
        "a new directory is private until it is finished",
        (
            NO_UMASK,
            Edit(
                "tasks/directories/scan_dir.py",
                "_create_directory",
                "os.mkdir(name, 0o700, dir_fd=parent)",
                "os.mkdir(name, dir_fd=parent)",
            ),
        ),
        ("a new directory is read before it is finished",),
    ),
    Rule(
        "an existing directory is not opened up before it is finished",
        (
            Edit(
                "tasks/directories/scan_dir.py",
                "_create_target",
                "grant_owner_access(parent, name, present)",
                "os.chmod(name, source.st_mode & 0o7777, dir_fd=parent)",
            ),
        ),
        ("an existing directory is read before it is finished",),
    ),
    Rule(
        "set-id bits come after the owner of a small file",
        (
            Edit(
                "fsio/backend/copy_rows.py",
                "CopySmallFilesBatchProcessor._create_copy_in_few_calls",
                "_chown(writing, status.st_uid, status.st_gid)",
                "_chmod(writing, status.st_mode & 0o7777)\n_chown(writing, status.st_uid, status.st_gid)",
            ),
        ),
        ("a new file is set-id before it has its owner",),
    ),
    Rule(
        "set-id bits come after the owner of a temporary file",
        (
            Edit(
                "fsio/attributes.py",
                "apply_item_metadata",
                "owned = writer.set_owner(attributes, preserve, existing)",
                "os.chmod(handle, stat.S_IMODE(attributes.mode))\n"
                "owned = writer.set_owner(attributes, preserve, existing)",
            ),
        ),
        ("a temporary file is set-id before it has its owner",),
    ),
    Rule(
        "what is made in somebody else's directory keeps no ACL that it inherits",
        (
            Edit(
                "fsio/attributes.py",
                "can_inherit_acl",
                "owner != os.geteuid() or has_default_acl(directory)",
                "has_default_acl(directory)",
            ),
        ),
        ("a directory gets a default ACL after it was looked at",),
    ),
    Rule(
        "a file with other links is not written over",
        (
            Edit(
                "fsio/in_place.py",
                "open_file_for_overwrite",
                "not stat.S_ISREG(present.st_mode) or present.st_nlink != 1",
                "not stat.S_ISREG(present.st_mode)",
            ),
            Edit(
                "fsio/in_place.py",
                "open_file_for_overwrite",
                "(status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode) and status.st_nlink == 1",
                "(status.st_dev, status.st_ino) == identity and stat.S_ISREG(status.st_mode)",
            ),
        ),
        ("a hard link to a canary is planted where files are written over",),
    ),
    Rule(
        "what is written over is what was looked at",
        (
            Edit(
                "fsio/in_place.py",
                "open_file_for_overwrite",
                "not is_same or (status.st_uid != os.geteuid() and not has_capability(CAP_CHOWN))",
                "status.st_uid != os.geteuid() and not has_capability(CAP_CHOWN)",
            ),
        ),
        ("a file that is to be written over becomes a hard link to a canary",),
    ),
    Rule(
        "what is written over is opened without following links",
        (Edit("fsio/in_place.py", "", "os.O_WRONLY | os.O_NOFOLLOW", "os.O_WRONLY"),),
        ("a file that is to be written over becomes a link",),
    ),
    Rule(
        "what is written over is opened without waiting",
        (Edit("fsio/in_place.py", "", "os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_WRONLY | os.O_NOFOLLOW"),),
        ("a file that is to be written over becomes a FIFO",),
        hangs=True,
    ),
)
