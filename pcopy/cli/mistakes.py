"""Advice on options that a program does not have: users write them because similar programs have them, or mistype
others.

Rule: a program never guesses what the user means. It refuses such an option; the message says what to write instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.text import printable_path

_IS_DEFAULT_ADVICE = "pcopy does that by default; leave it out"
_USE_RESUME = "pcopy --resume continues an interrupted copy; leave it out"
_USE_SKIP = "write --existing skip"
_USE_PROGRESS = "write --progress, or -v; the summary is printed by default"
_NO_OTHER_HOSTS = "pcopy reaches no other hosts: mount their file system here, or use rsync"

PCOPY_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("--links", "--perms", "--times", "--atimes", "-U", "--owner", "--group"), _IS_DEFAULT_ADVICE),
    **dict.fromkeys(("--devices", "--specials", "--hard-links", "--acls", "--xattrs"), _IS_DEFAULT_ADVICE),
    **dict.fromkeys(
        ("--no-dereference", "--numeric-ids", "--whole-file", "-W", "--human-readable"), _IS_DEFAULT_ADVICE
    ),
    "-z": "pcopy does not compress during transfer; leave it out; --compress zstd writes compressed files",
    **dict.fromkeys(("--partial", "--partial-dir", "--append", "--append-verify"), _USE_RESUME),
    **dict.fromkeys(("--no-clobber", "--ignore-existing", "--skip-existing"), _USE_SKIP),
    **dict.fromkeys(("--info", "--stats"), _USE_PROGRESS),
    **dict.fromkeys(("--rsh", "-e", "--rsync-path"), _NO_OTHER_HOSTS),
    **dict.fromkeys(("--no-owner", "--no-group"), "write --no-preserve ownership"),
    "--sparse": "holes stay holes by default: leave it out; to fill them, write --no-preserve sparse",
    "--no-perms": "write --no-preserve mode",
    "--no-times": "write --no-preserve timestamps",
    "--copy-links": "write -L",
    **dict.fromkeys(("-s", "--symbolic-link"), "write cp -as; pcopy makes copies"),
    "--link": "write cp -al; pcopy makes copies",
    "--target-directory": "write DST last",
    **dict.fromkeys(("--threads", "--transfers", "--checkers"), "write -n N"),
    "--max-age": "write --newer-than AGE",
    "--min-age": "write --older-than AGE",
    **dict.fromkeys(("--bandwidth", "--rate"), "write --bwlimit RATE"),
    "--min-size": "write --larger-than SIZE",
    "--max-size": "write --smaller-than SIZE",
    **dict.fromkeys(("--filter", "-F"), "write --exclude P, --include P; the last one that matches decides"),
    "--delete-after": "write --delete",
    **dict.fromkeys(("--delete-before", "--delete-during", "--del", "--delete-delay"), "write --delete"),
    **dict.fromkeys(("-b", "--backup-dir"), "write --backup DIR"),
    "-c": "write --checksum; for stripes on Lustre, --stripe COUNT",
    **dict.fromkeys(("--stripe-count", "--stripe-size"), "write --stripe COUNT[:SIZE]"),
    "--pool": "copies have the pool of their source, or with --stripe inherit that of the directory",
    "-f": "existing files are replaced by default; leave it out",
    "-i": f"pcopy asks nothing; to keep existing files, {_USE_SKIP}; to list items as rsync does, write -v",
    "--itemize-changes": "write -v: lines name what differs",
    "--log-file": "write --log FILE",
    "-j": "write -n N",
    "-V": "write --version",
    "--zstd": "write --compress zstd",
    "--delete-excluded": "items that a filter excludes are never deleted; remove them with prm",
    **dict.fromkeys(
        ("--remove-source-files", "--move"), "pcopy removes no source; compare (pverify SRC DST), then prm SRC"
    ),
    "--size-only": "times are compared, too: write --existing changed, or --checksum",
    **dict.fromkeys(("-I", "--ignore-times"), "all is copied by default; leave it out"),
    **dict.fromkeys(("--relative", "--parents"), "make the directories first (mkdir -p), and name the last one as DST"),
    "--mkpath": "make the directory first (mkdir -p)",
    "--list-only": "write --dry-run, or use pwalk SRC",
    "--chmod": "copy first, then pchmod MODE DST",
    **dict.fromkeys(
        ("--link-dest", "--copy-dest", "--compare-dest"), "copies share nothing with other copies: use rsync"
    ),
}
"""Options of cp, rsync and other programs that pcopy does not have; the value says what to write instead."""


class UnknownOptionAdvice(NamedTuple):
    """The advice of one ``program`` on options that it does not have.

    ``by_option`` maps each spelling that users may try to a text that says what to write instead.
    """

    program: str
    by_option: Mapping[str, str]


ADVICE_OF_PCOPY = UnknownOptionAdvice("pcopy", PCOPY_ADVICE)
ADVICE_OF_PSYNC = UnknownOptionAdvice(
    "psync",
    {
        **{option: advice.replace("pcopy", "psync") for option, advice in PCOPY_ADVICE.items()},
        "-z": "psync does not compress during transfer; leave it out; pcopy --compress zstd writes compressed files",
        "--compress": "psync makes trees equal; pcopy --compress zstd SRC DST writes compressed files",
        **dict.fromkeys(
            ("--from", "--files-from", "-0", "--from0", "--null"),
            "a list does not show what SRC lacks, which psync would delete; write pcopy --from LIST SRC DST",
        ),
        "--decompress": "psync makes trees equal; pcopy --decompress SRC DST writes decompressed files",
    },
)
ADVICE_OF_PVERIFY = UnknownOptionAdvice(
    "pverify",
    {
        "--signature": "name the signature's file before PATH, or write --create SIGNATURE to make one",
        "-c": "write --compare content; to compare A and B as a whole, leave it out",
        "--checksum": "write --compare content; to compare A and B as a whole, leave it out",
        "-o": "write --compare LIST --output CLASS:FILE",
        **dict.fromkeys(("-l", "--lite"), "write --compare size,mtime"),
        **dict.fromkeys(("-i", "--itemize-changes"), "write --compare all: lines name what differs"),
        "--brief": "pverify lists only which items differ: leave it out",
        **dict.fromkeys(("-a", "--archive"), "write --compare all"),
        "--delete": "pverify changes nothing; --compare and --output only-b:FILE list what A lacks",
        "--dry-run": "pverify changes nothing; leave it out",
        "--log": "differences go to standard output; write > FILE",
        "-x": "write --exclude P",
        "-X": "write --exclude-from FILE",
        "--size-only": "write --compare size",
        **dict.fromkeys(("--check", "--status"), "name the signature's file alone: pverify SIGNATURE PATH"),
        **dict.fromkeys(("-s", "--report-identical-files"), "write --compare LIST --output common:FILE"),
        **dict.fromkeys(("-N", "--new-file"), "items that only one side has are listed by default; leave it out"),
    },
)

ADVICE_OF_PRM = UnknownOptionAdvice(
    "prm",
    {
        "--bwlimit": "no contents are moved; --oplimit N limits operations",
        "-d": "empty directories are removed by default; leave it out",
        **dict.fromkeys(("-i", "-I", "--interactive"), "prm asks once; leave it out; drm's -i LIST is --from LIST"),
        "--input": "write --from LIST, as pwalk writes it",
        **dict.fromkeys(("-l", "--lite", "--aggressive"), "prm has one way to remove; leave it out"),
        "--match": "write --exclude P and --include P, patterns as in .gitignore",
        "--one-file-system": "prm does that by default; leave it out",
        **dict.fromkeys(("--preserve-root", "--no-preserve-root"), "the root directory is never removed; leave it out"),
    },
)

_MODE_ADVICE = "is a mode of chmod: write for whom, as in a-w for -w, or write --mode=-w"

ADVICE_OF_PCHMOD = UnknownOptionAdvice(
    "pchmod",
    {
        "--bwlimit": "no contents are moved; --oplimit N limits operations",
        **dict.fromkeys(("-r", "-w", "-x", "-X", "-s", "-t", "-rwx", "-rx", "-rw", "-wx"), _MODE_ADVICE),
        **dict.fromkeys(("-c", "--changes"), "write -v; the summary counts what was changed"),
        **dict.fromkeys(("-f", "--silent"), "write -q; errors are always shown"),
        **dict.fromkeys(
            ("-h", "--no-dereference"), "the owner of a link in a tree is its own by default; leave it out"
        ),
        **dict.fromkeys(("-H", "-L", "-P", "--dereference"), "links in a tree are never followed; leave it out"),
        "--preserve-root": "/ is never changed; leave it out",
        "--no-preserve-root": "/ is never changed: name what is in it",
        **dict.fromkeys(("-m", "--modify", "-M", "--modify-file"), "write setfacl -Rm, or --acl-from FILE"),
        **dict.fromkeys(
            ("--set", "--set-file", "--restore"), "give one item the ACL by setfacl, and write --acl-from it"
        ),
        **dict.fromkeys(("-b", "-k", "-d", "--remove-all"), "write setfacl -R with that option, or --acl-from FILE"),
        **dict.fromkeys(("-u", "--user"), "write --owner USER"),
        "-g": "write --group GROUP",
        "-i": "pchmod asks nothing; leave it out, or write --dry-run",
        **dict.fromkeys(("--chown", "-o"), "write --owner USER[:GROUP]"),
    },
)

ADVICE_OF_PSTRIPE = UnknownOptionAdvice(
    "pstripe",
    {
        **dict.fromkeys(("-c", "--stripe-count"), "write --stripe COUNT"),
        **dict.fromkeys(("-S", "--stripe-size"), "write --stripe COUNT:SIZE"),
        **dict.fromkeys(("-p", "--pool"), "files get no pool; write lfs migrate -p"),
        **dict.fromkeys(("-E", "-i", "-o", "-L"), "write lfs migrate with that option, or --stripe inherit"),
    },
)

_USE_LAUNCHER = (
    "the launcher sets the processes, one on each host: start pbcast with mpiexec or srun, and leave this out"
)

ADVICE_OF_PBCAST = UnknownOptionAdvice(
    "pbcast",
    {
        **dict.fromkeys(("-n", "--ranks", "-w", "--hosts", "-N", "-g"), _USE_LAUNCHER),
        **dict.fromkeys(("-r", "-R", "--recursive", "-a"), "pbcast sends files; pack a directory with ptar first"),
        **dict.fromkeys(("-p", "--preserve"), "pbcast does that by default; leave it out"),
        **dict.fromkeys(("-f", "--force"), "existing files are replaced by default; leave it out"),
        **dict.fromkeys(("-C", "--compress", "-z"), "nothing is compressed during transfer; leave it out"),
        **dict.fromkeys(("-F", "--fanout", "-s", "--size", "-t"), "pbcast chooses that; leave it out"),
        **dict.fromkeys(("--exclude", "--include"), "pbcast sends what is named; leave it out"),
    },
)

ADVICE_OF_PDBENCH = UnknownOptionAdvice(
    "pdbench",
    {
        **dict.fromkeys(
            ("-F", "--file-per-process"), "both are measured: a file for each rank, and one for all; leave it out"
        ),
        **dict.fromkeys(("-i", "--repetitions"), "write --repeat N"),
        **dict.fromkeys(("-b", "--block"), "write --size SIZE, what each rank writes"),
        **dict.fromkeys(("-t", "--bs", "--transfer-size"), "write --blocks SIZE"),
        "-B": "write --direct",
        **dict.fromkeys(("-d", "--directory", "-o"), "write DIR last, without an option"),
        **dict.fromkeys(("-u", "--unique"), "both are measured: one directory, and one for each rank; leave it out"),
        **dict.fromkeys(("-I", "-N"), "write --files N"),
        **dict.fromkeys(("-C", "-T", "-r", "-w"), "write --tests LIST"),
        **dict.fromkeys(("-D", "--runtime"), "write --time SECONDS"),
    },
)

_REPLACED_BY_DEFAULT = "existing files are replaced by default; leave it out"
_ALWAYS_REPLACED = "existing files are replaced; unpack elsewhere"
_USE_TAR = "ptar has no such option; use tar"

_RARE_TAR_OPTIONS = (
    *("-B", "-F", "-H", "-K", "-R", "-l", "--block-number", "--bzip", "--check-device", "--check-links"),
    *("--clamp-mtime", "--group-map", "--hole-detection", "--ignore-command-error", "--info-script", "--level"),
    *("--new-volume-script", "--no-check-device", "--no-delay-directory-restore", "--no-ignore-command-error"),
    *("--no-quote-chars", "--no-seek", "--no-selinux", "--no-verbatim-files-from", "--old-archive", "--owner-map"),
    *("--pax-option", "--portability", "--preserve-order", "--quote-chars", "--read-full-records", "--restrict"),
    *("--rmt-command", "--rsh-command", "--same-order", "--show-defaults", "--show-omitted-dirs"),
    *("--show-snapshot-field-ranges", "--show-stored-names", "--show-transformed-names", "--sparse-version"),
    *("--starting-file", "--suffix", "--test-label", "--uncompress", "--unquote", "--usage", "--volno-file"),
)

ADVICE_OF_PTAR = UnknownOptionAdvice(
    "ptar",
    {
        **dict.fromkeys(("-r", "--append", "-u", "--update", "-A", "--catenate", "--concatenate", "--delete"),
            "ptar makes archives anew; use tar"),
        **dict.fromkeys(("-j", "--bzip2", "-J", "--xz", "--lzma", "-Z", "--compress", "--lzip", "--lzop"),
            "use tar, which supports this compression; or write -z or --zstd"),
        **dict.fromkeys(("-I", "--use-compress-program", "--lz4"),
            "write -z or --zstd, or use tar, which supports this compression"),
        "-X": "write --exclude-from FILE",
        **dict.fromkeys(("--exclude-vcs", "--exclude-caches", "--exclude-backups", "--exclude-tag", "--exclude-ignore",
            "--exclude-vcs-ignores", "--exclude-caches-all", "--exclude-caches-under", "--exclude-ignore-recursive",
            "--exclude-tag-all", "--exclude-tag-under"), "write --exclude P, a pattern as in .gitignore"),
        **dict.fromkeys(("--wildcards", "--no-anchored", "--wildcards-match-slash", "--ignore-case"),
            "MEMBERs are names; for a pattern P write --exclude '*' --include '*/' --include 'P'"),
        **dict.fromkeys(("--no-wildcards", "--anchored", "--no-ignore-case", "--no-wildcards-match-slash"),
            "MEMBERs are names by default; leave it out"),
        **dict.fromkeys(("-d", "--diff", "--compare"), "unpack it, and compare with pverify A B"),
        **dict.fromkeys(("-W", "--verify"), "write --signature FILE, and check it later with ptar -t --signature"),
        **dict.fromkeys(
            ("-k", "--keep-old-files", "--skip-old-files", "--keep-newer-files", "--backup"), _ALWAYS_REPLACED
        ),
        **dict.fromkeys(("--overwrite", "--overwrite-dir", "--unlink-first", "-U"), _REPLACED_BY_DEFAULT),
        "--one-top-level": "make a directory, and write -C DIR",
        "--recursive-unlink": "existing directories keep their contents; use prm first",
        **dict.fromkeys(("--no-overwrite-dir", "--keep-directory-symlink"), "use tar: directories get the metadata "
            "of the archive, and nothing is reached through a symbolic link"),
        "--delay-directory-restore": "directories get their metadata last by default; leave it out",
        **dict.fromkeys(("-P", "--absolute-names"), "names never lead out of DIR; write -C DIR"),
        **dict.fromkeys(("-h", "--dereference"), "symbolic links are archived as such"),
        **dict.fromkeys(("--gunzip", "--ungzip"), "write -z; -x and -t need no option"),
        **dict.fromkeys(("-O", "--to-stdout", "--to-command"), "ptar unpacks into directories; use tar"),
        **dict.fromkeys(("--owner", "--group", "--mode", "--mtime"), "members have their files' metadata; use tar"),
        **dict.fromkeys(("-m", "--touch"), "times are those of the archive; use tar"),
        **dict.fromkeys(("-o", "--no-same-owner"), "owners are those of the archive, if you may give them: unpack it "
            "as the user who is to own it, or write pchmod --owner USER afterwards"),
        "--no-same-permissions": "modes are those of the archive; write pchmod MODE afterwards",
        **dict.fromkeys(("--xattrs-include", "--selinux"), "all are kept by default; leave it out"),
        **dict.fromkeys(("--no-xattrs", "--no-acls", "--xattrs-exclude", "--hard-dereference"), _USE_TAR),
        **dict.fromkeys(("--transform", "--xform", "-s"), "names change only by --strip-components N; use tar"),
        "--remove-files": "ptar removes nothing: compare with pverify first, then prm",
        **dict.fromkeys(("--verbatim-files-from", "--recursion", "--no-null", "--no-unquote", "--seek"),
            "that is the default; leave it out"),
        "--no-recursion": "a directory is archived with all that is in it; list its files with --from",
        **dict.fromkeys(("-N", "--newer", "--after-date", "--newer-mtime"), "write --newer-than WHEN"),
        **dict.fromkeys(("-g", "--listed-incremental", "-G", "--incremental"), "write --newer-than WHEN; or use tar"),
        "--add-file": "name it as a PATH, or list it with --from",
        "--index-file": "write > FILE",
        "--quoting-style": "names are shown escaped; --json has them exactly",
        **dict.fromkeys(("-M", "--multi-volume", "-L", "--tape-length", "--label", "-i", "--ignore-zeros"), _USE_TAR),
        **dict.fromkeys(_RARE_TAR_OPTIONS, _USE_TAR),
        **dict.fromkeys(("-b", "--blocking-factor", "--record-size"), "records have 20 blocks, as tar's; leave it out"),
        **dict.fromkeys(("--totals", "--checkpoint", "--checkpoint-action"), _USE_PROGRESS),
        **dict.fromkeys(("-w", "--interactive", "--confirmation"),
            "ptar asks nothing; leave it out, or write --dry-run"),
        **dict.fromkeys(("--ignore-failed-read", "--warning", "--force-local", "--atime-preserve", "--posix"),
            "ptar does not need such an option; leave it out"),
        **dict.fromkeys(("--utc", "--full-time"), "write TZ=UTC before the command; --json has nanoseconds"),
        **dict.fromkeys(("--occurrence",), "of several members of one name the last one counts; leave it out"),
        "-V": "write --version",
    },
)  # fmt: skip

ADVICE_OF_PWALK = UnknownOptionAdvice(
    "pwalk",
    {
        "--bwlimit": "no contents are moved; --oplimit N limits operations",
        "--dry-run": "pwalk changes nothing; leave it out",
        "--log": "write --output FILE",
        **dict.fromkeys(
            ("-L", "-H", "--follow"),
            "symbolic links are not followed; to follow one, write its name with a slash, as in LINK/",
        ),
        "-P": "pwalk does that by default; leave it out",
        **dict.fromkeys(("-O1", "-O2", "-O3", "-D"), "pwalk has no levels of optimization; leave it out"),
        "--text": "write --output FILE.txt",
        "--input": "write --from LIST",
        "--max-depth": "write -maxdepth N after PATH",
        "--threads": "write -n N",
        **dict.fromkeys(("--apparent-size", "-b", "-s"), "write --summary, which shows sizes and allocated space"),
        **dict.fromkeys(("--lite", "-l"), "write --fields none"),
        **dict.fromkeys(("-p", "--print", "--name", "--type", "--size"), "write it with one dash, as for find"),
        "--distribution": "write --summary, which shows sizes and ages",
        "--csv": "write --output FILE.csv",
    },
)


def refuse_unknown_options(advice: UnknownOptionAdvice, others: Sequence[str], known: Collection[str]) -> None:
    """Raise ``RequestRefused`` if there is an option among ``others``, the words that argparse did not recognise.

    Args:
        advice: the program's advice on options that it does not have.
        others: operands and unknown options.
        known: the program's own options; the message names one that is similar to the unknown one.
    """
    for word in others:
        if word.startswith("-") and word != "-":
            raise _unknown_option_error(advice, word, known)


def refuse_unknown_letters(advice: UnknownOptionAdvice, words: Sequence[str], flags: str, valued: str) -> None:
    """Raise ``RequestRefused`` if a bundle of single-letter options, such as ``-arv``, contains an unknown letter.

    Args:
        advice: the program's advice on options that it does not have.
        words: the options as they were written.
        flags: the letters that may be bundled.
        valued: the letters of options that take a value; the text after such a letter is its value.
    """
    for word in words:
        rest = word[1:].lstrip(flags)
        if word[:1] == "-" and rest not in ("", word[1:]) and rest[0] not in valued:
            raise _unknown_letter_error(advice, rest[0], word)


def _unknown_option_error(advice_table: UnknownOptionAdvice, word: str, known: Collection[str]) -> RequestRefused:
    """Return the exception for the option ``word``, which the program does not have.

    The message contains what ``advice_table`` says about that option, or else the most similar one of the program's
    options ``known``.
    """
    option = word.partition("=")[0]
    advice = f"see {advice_table.program} --help"
    if option in advice_table.by_option:
        return RequestRefused(f"{option}: {advice_table.by_option[option]}; {advice}")
    if option[:2] != "--" and option[:2] in advice_table.by_option:
        return _unknown_letter_error(advice_table, option[1], option)
    name, hint = printable_path(os.fsencode(option)), ""
    if option[:2] == "--":
        hint = similar_choice_hint(option[2:], [one[2:] for one in known if one.startswith("--")], "--")
    return RequestRefused(f"unknown option {name}{hint}; {advice} (for a file of that name write ./{name})")


def message_with_nearest_choice(message: str) -> str:
    """Improve ``message``, an error message of argparse. If it is about an invalid value of an option, return a shorter
    message that names the most similar valid value. Return other messages unchanged.
    """
    found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
    if found is None:
        return message
    choices = [one.strip("' ") for one in found[2].split(",")]
    return (
        f"{message[: found.start()]}{found[1]}: not one of {', '.join(choices)}{similar_choice_hint(found[1], choices)}"
    )


def similar_choice_hint(word: str, choices: Collection[str], dashes: str = "") -> str:
    """Return the end of an error message about the unknown ``word``: it suggests the most similar one of ``choices``.

    Empty if none is similar. ``dashes`` are written before the suggested word.
    """
    from pcopy.jobs.suggestions import most_similar_word

    near = most_similar_word(word, choices)
    return f"; the nearest is {dashes}{near}" if near else ""


def _unknown_letter_error(advice: UnknownOptionAdvice, letter: str, word: str) -> RequestRefused:
    """Return the exception for ``letter``, a single-letter option in the bundle ``word`` that the program does not
    have.

    The message contains what ``advice`` says about it.
    """
    what = advice.by_option.get(f"-{letter}", "an unknown option")
    name, together = (printable_path(os.fsencode(part)) for part in (letter, word))
    return RequestRefused(f"-{name} in {together}: {what}; see {advice.program} --help")
