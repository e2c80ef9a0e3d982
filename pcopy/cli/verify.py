"""``pverify``'s jobs: what is read, what it is compared with, and what is told at the end. On rank 0 only."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence

from pcopy.cli.argument_types import absolute
from pcopy.cli.keeping import Keeping
from pcopy.cli.options import Arguments
from pcopy.cli.outputs import check_outputs, unwritten, write_result
from pcopy.cli.pverify import Request, parse
from pcopy.cli.rank import Ended
from pcopy.cli.signals import told_briefly
from pcopy.cli.streams import tell
from pcopy.cli.units import show_seconds, show_size
from pcopy.cli.verbose import Verbose
from pcopy.errors import OK, REFUSED, Refused
from pcopy.signature.algorithms import DEFAULT_ALGORITHM, algorithm
from pcopy.signature.items import SYMLINK
from pcopy.signature.manifest import ROOT, ManifestReader
from pcopy.signature.recognising import LOOK, begins_as_manifest, begins_as_signature, is_cut_signature
from pcopy.signature.signature_file import Signature, read_signature
from pcopy.tasks.job import Job, Options, Root, Totals
from pcopy.tasks.sign_state import SignState
from pcopy.tasks.signing import Tally
from pcopy.tasks.sinks import Sink
from pcopy.text import counted, for_shell, shown

DIFFERENT = 1
"""The exit status for data that are not the same."""

_ONE_LINK = (0, 0, 1, 0)  # the numbers of files, directories, symbolic links and others


class VerifyPreparation:
    """Fills ``pcopy.cli.command.Preparation``."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises ``Refused``; nothing is written."""
        self.began = time.monotonic()
        request = self._request = parse(words)
        self.arguments = Arguments(
            sources=(),
            destination=b"",
            ranks=request.ranks,
            json=request.json,
            progress=request.progress,
            progress_interval=request.progress_interval,
            quiet=request.quiet,
            verbose=request.verbose,
            program="pverify",
        )
        self._expected: Signature | None = None
        self._of_link = False  # what PATH is compared with describes a symbolic link, and nothing else
        self._found: str | None = None
        self._remarks: list[str] = []
        self._differences = {"changed": 0, "missing": 0, "extra": 0}
        paths, options, against = self._compared(request)
        roots = tuple(_root(path, follow=not self._of_link) for path in paths)
        check_outputs(roots, options, copies=False)
        if request.create and not request.force and os.path.lexists(request.create):
            raise Refused(f"{shown(request.create)}: is there already, and kept; --force replaces it")
        algorithm(options.hash)  # is its library there?
        self.job = Job(os.urandom(5).hex(), 1, roots, options, copies=False, against=against)

    def _compared(self, request: Request) -> tuple[tuple[bytes, ...], Options, bytes]:
        """What is read, how, and the manifest that it is compared with."""
        options = Options(
            hash=request.hash or DEFAULT_ALGORITHM,
            block_size=request.block_size or Options().block_size,
            sync=False,
            direct=request.direct,
            drop_cache=request.drop_cache,
            umask=_umask(),
        )
        paths, against = request.paths, b""
        if request.create:
            if os.path.isdir(request.create) and not os.path.isdir(paths[0]):
                given = f"pverify --create SIGNATURE {for_shell(request.create)}"
                raise Refused(f"{shown(request.create)}: is a directory; name the file to be written: {given}")
            manifest = absolute(request.manifest) if request.manifest else b""
            options = options._replace(signature=absolute(request.create), manifest=manifest)
        elif request.manifest:
            _check_manifest(request.manifest, paths[0])
            reader = ManifestReader(request.manifest)
            options = _as_told(request, options, reader.algorithm.name, reader.block_size, request.manifest)
            self._of_link = reader.first().kind == SYMLINK
            against = absolute(request.manifest)
        elif _is_signature(*paths):
            expected = self._expected = read_signature(paths[0])
            self._of_link = expected[3:7] == _ONE_LINK
            options = _as_told(request, options, expected.algorithm, expected.block_size, paths[0])
            paths = paths[1:]
        return paths, options, against

    kept = None
    """There is nothing to go on with: reading again costs the same."""
    keeping = Keeping()

    def begin(self, ranks: int) -> None:
        """Nothing depends on it."""

    def tell_how_to_go_on(self) -> None:
        """By starting again."""

    def announce(self) -> None:
        """Nothing: what differs is all that is printed."""

    def sink(self, screen: Sink) -> Sink:
        """The screen, with more if the user wants more."""
        return Verbose(screen) if self.arguments.verbose and not self.arguments.quiet else screen

    def settle(self, sign: SignState, totals: Totals) -> int:
        """Everything was read: writes the signature, or compares."""
        digest, tally = sign.signatures[0]
        self._found = digest.hex()
        options = self.job.options
        if self._request.create:
            if sign.unwritten is not None:  # an older signature fits an older manifest
                trouble = unwritten("manifest", options.manifest, sign.unwritten)
            else:
                trouble = write_result(self.job, digest, tally, [root.source_shown for root in self.job.roots])
            if trouble:
                self._remarks.append(trouble)
            return REFUSED if trouble else OK
        if self._expected is not None:
            return self._compared_with(self._expected, tally)
        if digest == sign.signatures[1][0]:
            return self._compared_sizes(tally, sign.signatures[1][1])
        for key, what in sign.differences.sorted():
            word = what.decode()
            if self.job.against:  # the manifest is the second side, but what the first one is measured by
                word = {"missing": "extra", "extra": "missing"}.get(word, word)
            self._tell_difference(word, key.replace(b"\0", b"/") or ROOT)
        return DIFFERENT

    def _compared_with(self, expected: Signature, tally: Tally) -> int:
        if self._found != expected.signature:
            return DIFFERENT
        wrong = [
            f"{what}: {there:,} there, {found:,} found"
            for what, found in tally._asdict().items()
            if (there := getattr(expected, what)) != found
        ]
        if not wrong:
            return OK
        file = shown(self._request.paths[0])
        self._remarks.append(f"{file}: contradicts itself and is damaged: the signature fits, not {', '.join(wrong)}")
        return REFUSED

    def _compared_sizes(self, found: Tally, listed: Tally) -> int:
        """The digests agree, so that all sizes are right in a manifest that is whole."""
        if not self.job.against or found == listed:
            return OK
        self._remarks.append(
            f"{shown(self._request.manifest)}: contradicts itself and is damaged: all digests fit, not the sizes, "
            f"{listed.bytes:,} bytes in all and {found.bytes:,} found"
        )
        return REFUSED

    def _tell_difference(self, what: str, path: bytes) -> None:
        self._differences[what] += 1
        if self.arguments.json:
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({"difference": what, "path": shown(path), "path_b64": exact}))
        else:
            print(f"{what} {shown(path)}")

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Prints how it ended; returns the exit status."""
        elapsed = time.monotonic() - self.began
        totals = ended.totals
        if ended.halted is not None:
            self._remarks.append(told_briefly(ended.halted))
        elif totals.failed:
            found = counted(totals.found, "item", "items")
            self._remarks.append(f"{totals.failed:,} of {found} could not be read: nothing is proved")
        for remark in self._remarks:
            tell("pverify", remark)
        if self.arguments.json:
            print(json.dumps(self._summary(ended, elapsed, ranks)))
        elif not self.arguments.quiet:
            for line in self._lines(ended, elapsed):
                print(f"pverify: {line}", file=sys.stderr)
        sys.stdout.flush()
        return ended.status

    def _lines(self, ended: Ended, elapsed: float) -> list[str]:
        lines = []
        if ended.status == OK:
            lines.append("created" if self._request.create else "the same")
        elif ended.status == DIFFERENT:
            counts = [f"{number:,} {what}" for what, number in self._differences.items() if number]
            lines.append(": ".join(filter(None, ("different", ", ".join(counts)))))
        if self._expected is not None and self._found not in (None, self._expected.signature):
            lines.append(f"expected signature {self._expected.signature}")
        if self._found is not None and len(self.job.roots) == 1 and not self.job.against:
            lines.append(f"signature {self._found} ({self.job.options.hash})")
        if ended.halted is None:  # else the reason is all that there is to say
            size, rate = ended.totals.bytes, ended.totals.bytes / elapsed
            items = counted(ended.totals.copied, "item", "items")
            lines.append(f"{items} of {show_size(size)} in {show_seconds(elapsed)}: {show_size(rate)}/s")
        return lines

    def _summary(self, ended: Ended, elapsed: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        return {
            "same": {OK: True, DIFFERENT: False}.get(ended.status) if not self._request.create else None,
            "signature": self._found,
            "expected": self._expected.signature if self._expected else None,
            **self._differences,
            "files": totals.files,
            "directories": totals.directories,
            "symlinks": totals.symlinks,
            "special": totals.special,
            "bytes": totals.bytes,
            "failed": totals.failed,
            "seconds": round(elapsed, 3),
            "bytes_per_second": round(totals.bytes / elapsed) if elapsed > 0 else 0,
            "ranks": ranks,
            "exit_status": ended.status,
        }


def _root(path: bytes, *, follow: bool) -> Root:
    """``path``, or what it leads to if it is a symbolic link that is to be followed; raises ``Refused``."""
    try:
        status = os.stat(path) if follow else os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            parent, name = os.path.split(path)
            real = os.path.join(os.path.realpath(parent or b"."), name)
        else:
            real = os.path.realpath(path)
        if stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            return Root(real, real, b"", b"", path, path, identity, identity)
        directory, name = os.path.split(real)
        around = os.stat(directory)
    except OSError as error:
        if error.filename is None:  # there is no current directory to begin with
            raise
        raise _unlookable(path, error) from None
    if stat.S_ISSOCK(status.st_mode):
        raise Refused(f"{shown(path)}: is a socket, which holds nothing to compare")
    if not os.path.lexists(real):  # /dev/fd/63
        raise Refused(f"{shown(path)}: is a pipe, or a file without a name; put what it holds into a file")
    identity = around.st_dev, around.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)


def _unlookable(path: bytes, error: OSError) -> Refused:
    advice = "check its mode, and those above it" if error.errno == errno.EACCES else "check the name"
    return Refused(f"{shown(path)}: {os.strerror(error.errno or 0)}; {advice}")


def _is_signature(first: bytes, second: bytes) -> bool:
    """Is the first path a signature (else the two are compared)? A file that stands against a directory must be one."""
    try:
        mode = os.stat(first).st_mode
        is_file, against_tree = stat.S_ISREG(mode), not stat.S_ISDIR(mode) and os.path.isdir(second)
        beginning = _beginning(first) if is_file else b""
    except OSError as error:
        raise _unlookable(first, error) from None
    if against_tree and not is_file:
        raise Refused(f"{shown(first)}: is no regular file; put the signature into one")
    if begins_as_signature(beginning):
        return True
    if _begins_with(second, begins_as_signature):
        given = _given(second, first)
        raise Refused(f"{shown(second)}: is a signature, which comes before what is compared with it: {given}")
    if os.path.isdir(first) and _begins_with(second, begins_as_manifest):
        raise Refused(f"{shown(second)}: is a manifest; compare with it by {_given(b'--manifest', second, first)}")
    if begins_as_manifest(beginning):
        if against_tree or not _begins_with(second, begins_as_manifest):
            raise Refused(f"{shown(first)}: is a manifest; compare with it by {_given(b'--manifest', first, second)}")
        return False
    if is_cut_signature(beginning):
        return not _begins_with(second, lambda other: other.startswith(beginning))
    return against_tree


def _beginning(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read(LOOK)


def _begins_with(path: bytes, holds: Callable[[bytes], bool]) -> bool:
    """Is ``path`` a file whose beginning ``holds`` what is asked? What cannot be read will be told of when it is."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and holds(_beginning(path))
    except OSError:
        return False


def _given(*words: bytes) -> str:
    """The command that was meant."""
    return " ".join(["pverify", *map(for_shell, words)])


def _check_manifest(manifest: bytes, path: bytes) -> None:
    """Raises ``Refused`` for what is none, or cannot be read twice, such as a pipe."""
    try:
        mode = os.stat(manifest).st_mode
    except OSError:
        return  # the reader says what is wrong
    if _begins_with(manifest, begins_as_signature):
        raise Refused(f"{shown(manifest)}: is a signature; compare with it by {_given(manifest, path)}")
    if _begins_with(path, begins_as_manifest) and not _begins_with(manifest, begins_as_manifest):
        given = _given(b"--manifest", path, manifest)
        raise Refused(f"{shown(path)}: is the manifest, which comes before what is compared with it: {given}")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Refused(f"{shown(manifest)}: is no regular file; put the manifest into one")


def _as_told(request: Request, options: Options, name: str, size: int, path: bytes) -> Options:
    """Algorithm and block size as the file ``path`` has them; raises ``Refused`` for other wishes."""
    for option, asked, there in (("--hash", request.hash, name), ("--block-size", request.block_size, size)):
        if asked and asked != there:
            raise Refused(f"{option} {asked}: {shown(path)} was made with {there}; leave the option out")
    return options._replace(hash=name, block_size=size)


def _umask() -> int:
    """The user's; it can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
