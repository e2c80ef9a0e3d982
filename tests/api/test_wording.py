"""Messages and help of programs in the words of Python."""

from __future__ import annotations

import pytest

from pcopy.api.wording import help_in_python


@pytest.mark.parametrize(
    ("function", "text", "expected"),
    [
        ("copy", "--bwlimit: 1X: not a size", "bwlimit: 1X: not a size"),
        ("copy", "leave out --from; see pcopy --help", "leave out from_; see help(pcopy.copy)"),
        ("copy", "write --existing changed, or --checksum", 'write existing="changed", or checksum=True'),
        ("copy", "write --existing=newer (as -u)", 'write existing="newer" (as update=True)'),
        ("copy", "--existing replace or changed", 'existing="replace" or changed'),
        (
            "copy",
            "--inplace did; --inplace=sequential: for a DST",
            'inplace did; inplace="sequential": for a destination',
        ),
        ("copy", "use --checkpoint DIR, or --checkpoint none", 'use checkpoint=DIR, or checkpoint="none"'),
        ("copy", "only with --stripe auto: see", 'only with stripe="auto": see'),
        ("copy", "write --max-errors 3; --newer-than AGE.", "write max_errors 3; newer_than=AGE."),
        ("copy", "--max-errors=3", "max_errors=3"),
        ("copy", "to go on: pcopy --resume 20261128-a1", "to go on: pcopy.resume('20261128-a1')"),
        ("copy", "pcopy --jobs lists them; --discard", "pcopy.jobs() lists them; pcopy.discard"),
        ("copy", "DST/a and SRCs, a/--from, b-T", "DST/a and the paths in source, a/--from, b-T"),
        (
            "copy",
            "rsync's -n is --dry-run; as zstd -d, find -print0",
            "rsync's -n is dry_run; as zstd -d, find -print0",
        ),
        ("copy", "-n: 1; -v; --quiet", "ranks: 1; -v; --quiet"),
        ("resume", "--update cannot be given with --resume: no", "update=True cannot be given with pcopy.resume: no"),
        ("archive", "later, with ptar -t --signature", "later, with ptar -t --signature"),
        ("archive", "--resume continues; -f ARCHIVE; PATHs", "resume=True continues; archive; the paths in source"),
        ("archive", "can only be given with -x or -t", "can only be given with pcopy.extract or ptar -t"),
        ("extract", "--resume can only be given with -c", "resume=True can only be given with pcopy.archive"),
        ("extract", "-C DIR: no; MEMBERs, a MEMBER", "destination: no; members, a member"),
        ("sign", "let --create, --output and --manifest", "let signature, output and manifest"),
        ("compare", "let --create and --manifest", "let pcopy.sign and manifest"),
        ("compare", "write --compare size,mtime", 'write compare="size,mtime"'),
        ("verify", "PATH expected; --manifest MANIFEST", "path expected; manifest"),
        ("remove", "-0 says how the paths in --from end", "null=True says how the paths in from_ end"),
        ("remove", "a PATH; PATHs", "a path; paths"),
        ("walk", "as in --sort=-size", 'as in sort="-size"'),
        ("change_modes", "write --mode=-w", "write mode=-w"),
    ],
)
def test_options_become_keywords(function: str, text: str, expected: str) -> None:
    assert help_in_python(text, function) == expected
