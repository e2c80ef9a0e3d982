"""Options on jobs: their meaning, and combinations that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pcopy.cli.job_options import changeable_fields, options_with_command
from pcopy.cli.pcopy import PCOPY, help_or_version, parse
from pcopy.errors import RequestRefused
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.jobs.lifecycle import CheckpointSettings
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tools.arguments import CopyArguments, StoredJobRequest, options_determining_result, options_of_resumed_job
from tests.support import refusals

NEW = (
    *("--resume", "--jobs", "--discard", "--checkpoint", "--checkpoint-interval", "--checkpoint-store", "--spool"),
    "--memory",
)

ALLOWED_ON_RESUME = options_with_command(PCOPY.options, "resume")
CHANGEABLE = changeable_fields(PCOPY.options)


def refusal(*argv: str) -> str:
    return refusals.refusal(lambda: parse(argv))


class TestJobOptions:
    @pytest.mark.parametrize("option", NEW)
    def test_help_lists_job_options(self, option: str) -> None:
        reported = help_or_version(["--help"])
        assert reported is not None
        assert option in reported
        assert all(len(line) < 80 for line in reported.splitlines())

    def test_defaults(self) -> None:
        assert parse(["a", "b"]) == CopyArguments(sources=(b"a",), destination=b"b", changeable_fields=CHANGEABLE)
        assert CheckpointSettings() == (b"", "", 60.0, "auto", b"", 0, False, 0, (), False, 0)

    def test_values(self) -> None:
        where = ["--checkpoint", "dir\udcff", "--spool=/tmp/../var"]
        how = ["--checkpoint-interval", "0.5", "--checkpoint-store", "lmdb", "--memory", "1.5G"]
        found = parse([*where, *how, "a", "b"])
        directory = os.path.join(os.getcwdb(), b"dir\xff")
        assert (found.is_recorded, found.checkpoint) == (
            True,
            CheckpointSettings(directory, "", 0.5, "lmdb", b"/var", 3 << 29, durable_at_start=True),
        )
        assert found.job_request == StoredJobRequest()
        assert (found.sources, found.destination) == ((b"a",), b"b")

    def test_checkpoint_none_disables_recording(self) -> None:
        found = parse(["--checkpoint", "none", "a", "b"])
        assert (found.is_recorded, found.checkpoint) == (False, CheckpointSettings())
        directory = os.path.join(os.getcwdb(), b"none")
        assert parse(["--checkpoint", "./none", "a", "b"]).checkpoint == CheckpointSettings(
            directory=directory, durable_at_start=True
        )

    @pytest.mark.parametrize(
        ("argv", "asked"),
        [
            (["--resume"], StoredJobRequest(resume=b"")),
            (["--resume", "j\udcfe"], StoredJobRequest(resume=b"j\xfe")),
            (["--resume=../dir/"], StoredJobRequest(resume=b"../dir/")),
            (["-q", "--resume"], StoredJobRequest(resume=b"", given_options=frozenset({"quiet"}))),
            (["--resume", "-n", "3"], StoredJobRequest(resume=b"", given_options=frozenset({"ranks"}))),
            (["--jobs"], StoredJobRequest(jobs=True)),
            (["--json", "--jobs", "-v"], StoredJobRequest(jobs=True, given_options=frozenset({"json", "verbose"}))),
            (["--discard", "j"], StoredJobRequest(discard=(b"j",))),
            (
                ["--discard", "j", "k", "-q", "l"],
                StoredJobRequest(discard=(b"j", b"k", b"l"), given_options=frozenset({"quiet"})),
            ),
            (["--discard=j", "--discard", "k"], StoredJobRequest(discard=(b"j", b"k"))),
            (
                ["--discard", "--older-than=7d"],
                StoredJobRequest(discard=(), older_than=604800, given_options=frozenset({"older_than"})),
            ),
            (
                ["--older-than", "1.5h", "--discard"],
                StoredJobRequest(discard=(), older_than=5400, given_options=frozenset({"older_than"})),
            ),
        ],
    )
    def test_requests_for_existing_jobs(self, argv: list[str], asked: StoredJobRequest) -> None:
        found = parse(argv)
        assert found.job_request == asked
        assert found.job_request.is_any_command_requested
        assert (found.sources, found.destination) == ((), b"")

    def test_resume_accepts_options_on_how_the_job_runs(self) -> None:
        how = [
            *("-n2", "-qvv", "-arR", "--json", "--errors", "e", "--max-errors", "0", "--progress", "auto"),
            *("--progress-interval", "1", "--no-sync", "--termination", "tree", "--checkpoint-interval", "60"),
            *("--checkpoint-store", "auto", "--spool", "s", "--memory", "1G", "--in-flight", "auto"),
        ]
        found = parse(["--resume", "j", *how])
        assert found.job_request.given_options == {
            *("ranks", "quiet", "verbose", "archive", "json", "errors", "max_errors", "progress"),
            *("progress_interval", "no_sync", "termination", "checkpoint_interval", "checkpoint_store", "spool"),
            *("memory", "in_flight"),
        }
        assert (found.ranks, found.checkpoint.memory) == (2, 1 << 30)
        assert (found.output.verbose, found.output.quiet) == (2, True)

    @pytest.mark.parametrize(
        ("option", "named"),
        [
            (["-u"], "-u"),
            (["--update"], "--update"),
            (["--existing", "replace"], "--existing"),
            (["--existing=skip"], "--existing"),
            (["--checksum"], "--checksum"),
            (["--inplace"], "--inplace"),
            (["-L"], "-L"),
            (["-qx"], "--one-file-system"),
            (["-T"], "-T"),
            (["--preserve", "all"], "--preserve"),
            (["--no-preserve=xattr"], "--no-preserve"),
            (["--chown", f"{os.getuid()}:{os.getgid()}"], "--chown"),
            (["--modify-window", "0"], "--modify-window"),
            (["--verify"], "--verify"),
            (["--repair"], "--repair"),
            (["--signature", "s"], "--signature"),
            (["--manifest", "m"], "--manifest"),
            (["--hash", "blake3"], "--hash"),
            (["--chunk-size", "auto"], "--chunk-size"),
            (["--block-size", "4M"], "--block-size"),
            (["--checkpoint", "d"], "--checkpoint"),
            (["--checkpoint", "none"], "--checkpoint"),
            (["--compress", "zstd"], "--compress"),
            (["--decompress"], "--decompress"),
        ],
    )
    def test_resume_refuses_options_that_affect_the_result(self, option: list[str], named: str) -> None:
        for argv in ([*option, "--resume"], ["--resume", "job", *option]):
            assert refusal(*argv).startswith(f"{named} cannot be given with --resume: ")

    def test_every_option_is_either_refused_or_accepted_by_resume(self) -> None:
        """Options that affect the destination are refused with ``--resume`` and listed here; others are in
        MAY_CHANGE.
        """
        refused = {"existing", "checksum", "inplace", "dereference", "one_file_system", "no_target_directory"}
        refused |= {"preserve", "chown", "modify_window", "verify", "repair", "signature", "manifest", "hash"}
        refused |= {"list_file", "nul_separated", "patterns", "newer_than", "larger_than", "smaller_than"}
        refused |= {"direct", "drop_cache", "fsync", "reflink"}
        refused |= {"delete", "backup", "delete_all", "mirror", "max_delete", "dry_run"}
        refused |= {"stripe", "stripe_table", "stripe_affinity", "group_lock"}
        refused |= {"compress", "decompress"}
        refused |= {"chunk_size", "block_size", "checkpoint", "jobs", "discard", "older_than", "control"}
        parser = PCOPY.parser()
        names = {action.dest for action in parser._actions} - {"resume", "help", "version", "show_config"}
        assert names == refused | (names & ALLOWED_ON_RESUME)

    def test_options_accepted_by_resume_take_effect(self) -> None:
        """An option that a resume accepts has to reach the job."""
        words = {"max_errors": "9", "termination": "ring", "no_sync": None, "bwlimit": "5M", "oplimit": "9"}
        fields = {*Options._fields, *CopyOptions._fields}
        assert {name for name in ALLOWED_ON_RESUME if name.removeprefix("no_") in fields} == set(words)
        for name, value in words.items():
            option = "--" + name.replace("_", "-")
            line = parse(["--resume", "j", option, *([value] if value else [])])
            assert options_of_resumed_job(Options(), line.options, frozenset({name}), CHANGEABLE) != Options(), option

    @pytest.mark.parametrize("argv", [["--resume", "j", "a"], ["a", "b", "--resume"], ["--resume", "--", "a"]])
    def test_resume_refuses_paths(self, argv: list[str]) -> None:
        path = argv[0] if argv[0] == "a" else argv[-1]
        wanted = f"--resume takes a job, not SRC and DST: leave out {path}; write pcopy --resume, or pcopy --resume JOB"
        assert wanted in refusal(*argv)

    @pytest.mark.parametrize("mode", [["--jobs"], ["--discard", "j"]])
    def test_jobs_and_discard_refuse_paths_and_copy_options(self, mode: list[str]) -> None:
        if mode == ["--jobs"]:
            assert "--jobs takes no SRC or DST: leave out a" in refusal(*mode, "a")
        for option in ("-n2", "-u", "--no-sync", "--memory=1G"):
            assert f"cannot be given with {mode[0]}: it copies nothing" in refusal(*mode, option)

    def test_only_one_job_request_is_accepted(self) -> None:
        assert "--resume and --jobs cannot be given together: leave one out" in refusal("--jobs", "--resume")
        assert "--resume and --discard cannot be given together: leave one out" in refusal("--resume", "--discard", "j")
        assert "--jobs and --discard cannot be given together: leave one out" in refusal("--discard", "j", "--jobs")
        for argv in (["--discard"], ["--discard", "j", "--older-than", "7d"]):
            assert "--discard: name jobs, or give --older-than AGE, and not both" in refusal(*argv)
        assert "--older-than cannot be given with --resume" in refusal("--resume", "--older-than", "7d")

    @pytest.mark.parametrize(
        ("argv", "reason"),
        [
            (["--resume="], "--resume: the empty string names nothing"),
            (["--discard", ""], "--discard: the empty string names nothing"),
            (["--checkpoint", ""], "--checkpoint: the empty string names nothing"),
            (["--spool", ""], "--spool: the empty string names nothing"),
            (["--checkpoint-interval", "0"], "--checkpoint-interval: 0: not a number of seconds above 0"),
            (["--checkpoint-interval", "1m"], "--checkpoint-interval: 1m: not a number of seconds"),
            (["--checkpoint-store", "sql"], "--checkpoint-store: sql: not one of auto, pickle, lmdb"),
            (["--memory", "0"], "--memory: 0: work needs at least one byte"),
            (["--memory", "much"], "--memory: much: not a size"),
            (["--jobs=1"], "--jobs: takes no value"),
            (["--check", "d"], "unknown option --check"),
        ],
    )
    def test_wrong_values_are_refused(self, argv: list[str], reason: str) -> None:
        assert refusal(*argv, "a", "b").startswith(reason)


def test_options_that_affect_the_result_are_listed_by_name(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    options, copy_options = Options(preserve=PreservedMetadataKinds(chown=(1, 2))), CopyOptions(existing="newer")
    arguments = CopyArguments(
        (b"a/", b"/b"), b"../c", True, options=options, copy_options=copy_options, changeable_fields=CHANGEABLE
    )
    asked = options_determining_result(arguments)
    assert asked["SRC"] == (bytes(area / "a") + b"/", b"/b")
    assert asked["DST"] == bytes(area) + b"/../c"
    assert (asked["--no-target-directory"], asked["--existing"]) == (True, "newer")
    assert type(asked["--preserve"]) is tuple
    others = Options(sync=False, max_errors=7, umask=0, termination="ring")
    differing = options_determining_result(arguments._replace(options=others, copy_options=CopyOptions()))
    assert {name for name in asked if asked[name] != differing[name]} == {"--existing", "--preserve"}


def test_resumed_job_keeps_options_that_are_not_given_again() -> None:
    stored = Options(one_file_system=True, max_errors=9, termination="ring", umask=0o27, sync=False)
    now = Options(max_errors=1)
    assert options_of_resumed_job(stored, now, frozenset(), CHANGEABLE) == stored
    assert options_of_resumed_job(stored, now, frozenset({"max_errors", "ranks"}), CHANGEABLE) == stored._replace(
        max_errors=1
    )
    assert options_of_resumed_job(stored, now, frozenset({"termination", "no_sync"}), CHANGEABLE) == stored._replace(
        termination="tree", sync=True
    )
    assert options_of_resumed_job(stored, now, None, CHANGEABLE) == stored._replace(
        max_errors=1, termination="tree", sync=True
    )
    with pytest.raises(RequestRefused, match="--no-sync leaves nothing on storage"):
        options_of_resumed_job(Options(), Options(sync=False), frozenset({"no_sync"}), CHANGEABLE, verifies=True)
