"""Running programs: progress, stops, exceptions, threads, asyncio, MPI; and crashes, after which the job is resumed."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import pcopy
from pcopy.api import environment, running
from tests.api.conftest import child, processes_with, progress_line
from tests.support.command import BEING_WRITTEN, REPOSITORY, mpiexec
from tests.support.oracle import differences
from tests.support.processes import HANGS, PROMPT, wait_until
from tests.support.warm import TOKEN

SLOWLY: dict[str, Any] = {"bwlimit": "4M", "progress_interval": 0.1, "ranks": 2, "chunk_size": 1 << 20}
RUNNING_CODE = """
import sys
import pcopy
job = pcopy.start(pcopy.copy, {source!r}, {copy!r}, bwlimit="4M", progress_interval=0.1, ranks=2)
for event in job:
    if isinstance(event, pcopy.Progress):
        print("running", flush=True)
        break
"""


def begun(job: pcopy.RunningJob[Any]) -> None:
    """Wait until the job copies."""
    assert wait_until(lambda: (progress := job.progress()) and progress.moved)


def resume_and_compare(job: str | None, source: Path, copy: Path) -> None:
    assert job is not None
    result = pcopy.resume(job, bwlimit=0)
    assert result.failed == 0
    assert differences(source, copy) == []
    assert pcopy.jobs() == []


class TestProgress:
    def test_events_of_a_job(self, area: Path, large: Path) -> None:
        with pcopy.start(pcopy.copy, large, area / "copy", bwlimit="100M", progress_interval=0.05) as job:
            events = list(job)
            result = job.wait(0)
        steps = [event for event in events if isinstance(event, pcopy.Progress)]
        assert len(steps) > 3
        assert [step.elapsed for step in steps] == sorted(step.elapsed for step in steps)
        assert steps[-1].found == result.found == 5
        assert steps[0].job == job.name
        assert [step for step in steps if step.other] == []
        assert [event.text for event in events if isinstance(event, pcopy.Notice)] == [f"{large} -> {area}/copy"]
        assert job.done()
        assert list(job) == []

    def test_representation(self, area: Path, large: Path) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)
        assert wait_until(lambda: (progress := job.progress()) and progress.percent)
        assert re.fullmatch(r"<RunningJob pcopy: running, copy, \d+\.\d %>", repr(job))
        job.stop()
        assert repr(job).startswith("<RunningJob pcopy: stopping, ")
        with pytest.raises(pcopy.Stopped):
            job.wait(PROMPT)
        assert repr(job).startswith("<RunningJob pcopy: failed: stopped by SIGTERM; ")
        job = pcopy.start(pcopy.copy, area / "large/0", area / "copied")
        job.wait(HANGS)
        assert repr(job) == "<RunningJob pcopy: done>"

    def test_refusal_is_no_event(self, area: Path) -> None:
        job = pcopy.start(pcopy.copy, area / "missing", area / "copy")
        events = list(job)
        assert [type(event) for event in events] == [pcopy.Notice]
        with pytest.raises(pcopy.Refused, match="does not exist") as refused:
            job.wait()
        assert (refused.value.errno, refused.value.filename) == (errno.ENOENT, os.fsencode(area / "missing"))
        assert list(refused.value.failures) == []

    def test_failures_are_events(self, area: Path, tree: Path) -> None:
        (area / "copy/link/full").mkdir(parents=True)
        job = pcopy.start(pcopy.copy, tree, area / "copy", no_target_directory=True)
        failed = [event for event in job if isinstance(event, pcopy.FailedItem)]
        assert [item.path for item in failed] == [os.fsencode(area / "copy/link")]
        with pytest.raises(pcopy.ItemsFailed):
            job.wait()

    def test_function_is_called_in_the_thread_of_the_caller(self, area: Path, large: Path) -> None:
        calls: list[tuple[int, float]] = []
        pcopy.copy(
            large,
            area / "copy",
            bwlimit="100M",
            progress_interval=0.05,
            progress=lambda progress: calls.append((threading.get_ident(), progress.elapsed)),
        )
        assert len(calls) > 3
        assert {thread for thread, _ in calls} == {threading.get_ident()}

    def test_exception_of_the_function_stops_the_job(self, area: Path, large: Path) -> None:
        def fail(progress: pcopy.Progress) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            pcopy.copy(large, area / "copy", progress=fail, **SLOWLY)
        (unfinished,) = pcopy.jobs()
        assert unfinished.state == "stopped"
        resume_and_compare(unfinished.job, large, area / "copy")

    def test_configuration_files_do_not_hide_it(self, area: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (area / "configuration").mkdir()
        text = "quiet: true\nverbose: 2\njson: true\nprogress: none\nerrors: failures\nexclude: ['*.tmp']\n"
        (area / "configuration/pcopy.yaml").write_text(text)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(area / "configuration"))
        steps: list[pcopy.Progress] = []
        (area / "copy/link/full").mkdir(parents=True)
        with pytest.raises(pcopy.ItemsFailed) as failed:
            pcopy.copy(tree, area / "copy", no_target_directory=True, progress=steps.append)
        assert len(failed.value.failures) == 1
        assert failed.value.result.excluded == 1
        assert steps
        walked = {os.path.relpath(entry.path, os.fsencode(tree)) for entry in pcopy.walk(tree)}
        assert walked == {
            *(b".", b"inner", b"inner/deep", b"inner/file", b"inner/deep/large", b"hard link", b"link"),
            *(b"\xff\xfe\n", b"fifo"),
        }  # not inner/file.tmp


class TestStops:
    def test_stop_and_resume(self, area: Path, large: Path) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)
        begun(job)
        job.stop()
        with pytest.raises(pcopy.Stopped) as stopped:
            job.wait(PROMPT)
        assert stopped.value.status == 75
        assert stopped.value.message == "stopped by SIGTERM; every file that has been copied is complete"
        assert stopped.value.result.exit_status == 75
        assert stopped.value.job == job.name
        resume_and_compare(stopped.value.job, large, area / "copy")

    @pytest.mark.parametrize("launcher", [False, True])
    def test_stop_while_a_forked_process_has_the_pipe(self, area: Path, large: Path, launcher: bool) -> None:
        """A process of multiprocessing inherits the pipe, so that closing it has no effect."""
        more: dict[str, Any] = {"launcher": [mpiexec(), "-n", "2"], "ranks": None} if launcher else {}
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY | more)
        begun(job)
        number = os.fork()
        if number == 0:
            signal.pause()
            os._exit(0)
        try:
            assert os.readlink(f"/proc/{number}/fd/{job._input.fileno()}").startswith("pipe:")
            job.stop()
            job.stop()
            with pytest.raises(pcopy.Stopped) as stopped:
                job.wait(PROMPT)
        finally:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
        job.stop()
        resume_and_compare(stopped.value.job, large, area / "copy")

    @pytest.mark.parametrize("setting", ["SIG_DFL", "SIG_IGN"])
    def test_stop_of_a_program_that_has_just_ended(self, area: Path, setting: str) -> None:
        """The pipe has no reader; that does not end a caller for which SIGPIPE is not ignored."""
        code = f"""
import os, signal
import pcopy
signal.signal(signal.SIGPIPE, signal.{setting})
job = pcopy.start(pcopy.copy, "missing", "copy")
with job._lock:  # The thread that reads the end waits for it.
    os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)
    job.stop()
try:
    job.wait()
except pcopy.Refused:
    print("refused", signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
        run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=area)
        assert (run.returncode, run.stdout, run.stderr) == (0, "refused set() set()\n", "")

    def test_block_that_stops_the_job_ends_without_an_exception(self, area: Path, large: Path) -> None:
        with pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY) as job:
            begun(job)
            job.stop()
        assert job.done()

    def test_exception_that_leaves_the_block_stops_the_job(self, area: Path, large: Path) -> None:
        with pytest.raises(ZeroDivisionError), pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY) as job:
            begun(job)
            raise ZeroDivisionError
        assert job.done()
        (unfinished,) = pcopy.jobs()
        assert unfinished.state == "stopped"
        resume_and_compare(unfinished.job, large, area / "copy")

    def test_end_of_the_block_raises_the_exception_of_the_job(self, area: Path) -> None:
        with pytest.raises(pcopy.Refused), pcopy.start(pcopy.copy, area / "missing", area / "copy"):
            pass
        with pcopy.start(pcopy.copy, area / "missing", area / "copy") as job, pytest.raises(pcopy.Refused):
            job.wait()

    def test_timeout_does_not_stop_the_job(self, area: Path, large: Path) -> None:
        calls: list[pcopy.Progress] = []
        job = pcopy.start(pcopy.copy, large, area / "copy", progress=calls.append, **SLOWLY)
        begun(job)
        for seconds in (0, 0.3):
            with pytest.raises(TimeoutError):
                job.wait(seconds)
        assert calls
        assert not job.done()
        job.stop()
        with pytest.raises(pcopy.Stopped):
            job.wait(PROMPT)

    def test_changes_of_a_running_job(self, area: Path, large: Path) -> None:
        with pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY) as job:
            assert job.control(pause=True).paused is True
            with pytest.raises(pcopy.Refused, match="active=3"):
                job.control(active=3)
            state = job.control(pause=False, bwlimit="20M", active=1)
            assert (state.paused, state.bwlimit, state.oplimit, state.active) == (False, 20 << 20, 0, 1)
            assert {*state.other} == {"control", "ranks", "run"}
        assert differences(large, area / "copy") == []
        with pytest.raises(pcopy.Refused, match="only a copy that is recorded and runs"):
            job.control(active=1)

    @pytest.mark.parametrize("output", ["", "{", '{"found": 1}', "[]"])
    def test_change_whose_output_is_lost(self, area: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
        line = progress_line(1, job="name")
        code = f"""
import os, sys
if any(word.startswith("--control") for word in sys.argv):
    print({output!r})
else:
    os.write(2, {line!r}.encode() + b"\\n")
    os.read(0, 1)
"""
        child(area, monkeypatch, code)
        job: pcopy.RunningJob[Any] = running.RunningJob(running.Request("pcopy", [], lambda _: None))
        with pytest.raises(pcopy.InternalError, match="not complete"):
            job.control(pause=True)
        job.stop()
        job.wait(HANGS)

    def test_change_of_a_job_that_is_refused(self, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It ends without any progress; a thread that waits for the first one does not wait for ever."""
        child(area, monkeypatch, "import os; os.read(0, 1); os.write(2, b'pcopy: no\\n'); os._exit(2)")
        job = pcopy.start(pcopy.copy, "a", "b")
        failures: list[BaseException] = []

        def change() -> None:
            try:
                job.control(active=1)
            except pcopy.Refused as refused:
                failures.append(refused)

        waiting = threading.Thread(target=change, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        job.stop()
        waiting.join(HANGS)
        assert [str(failure) for failure in failures] == ["pcopy: only a copy that is recorded and runs can be changed"]
        with pytest.raises(pcopy.Refused, match=r"^no$"):
            job.wait()

    def test_directory_of_a_job(self, area: Path, large: Path) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", checkpoint=area / "job", **SLOWLY)
        begun(job)
        job.control(active=1)
        job.stop()
        with pytest.raises(pcopy.Stopped) as stopped:
            job.wait()
        assert stopped.value.job == str(area / "job")
        pcopy.copy(large, area / "copy", checkpoint=area / "job", chunk_size=1 << 20, bwlimit="0")
        assert differences(large, area / "copy") == []

    def test_unrecorded_job_has_no_name(self, area: Path, large: Path) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", checkpoint="none", **SLOWLY)
        begun(job)
        job.stop()
        with pytest.raises(pcopy.Stopped) as stopped:
            job.wait()
        assert (stopped.value.job, stopped.value.status) == (None, 128 + signal.SIGTERM)
        with pytest.raises(pcopy.Refused, match="only a copy that is recorded"):
            job.control(active=1)


class TestCrashes:
    @pytest.mark.parametrize("victim", ["all", "rank 0", "rank 1"])
    def test_killed_ranks(self, area: Path, large: Path, victim: str) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)
        begun(job)
        if victim == "all":
            job.kill()
        elif victim == "rank 0":
            os.kill(job.pid, signal.SIGKILL)
        else:
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGKILL)
        with pytest.raises(pcopy.InternalError) as crashed:
            job.wait(HANGS)
        assert crashed.value.status == (70 if victim == "rank 1" else -signal.SIGKILL)
        assert crashed.value.job == job.name
        assert "pcopy.resume(" in str(crashed.value)
        resume_and_compare(crashed.value.job, large, area / "copy")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("print('{\"found\": 1, \"copied\"', end='')", "its output is not complete"),
            ("print('{\"found\": 1}')", "its output is not complete"),
            ("pass", "its output is not complete"),
            ("print('[]')", "its output is not complete"),
            ("import os; os.write(2, b'{\"elapsed\": 1}\\n{}\\npcopy: no\\xff\\n'); os._exit(70)", r"no\\xff"),
            ("import os; os._exit(99)", "pcopy ended with status 99"),
            ("import os; os._exit(1)", "its output is not complete"),
        ],
    )
    def test_output_that_is_not_complete(
        self, area: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
    ) -> None:
        child(area, monkeypatch, code)
        with pytest.raises(pcopy.InternalError, match=message):
            pcopy.copy(area, area / "copy")

    @pytest.mark.parametrize("way", ["SIGKILL", "exit", "exception"])
    def test_caller_that_ends(self, area: Path, large: Path, way: str) -> None:
        """The job stops in order, and is kept."""
        end = {"SIGKILL": "import time; time.sleep(1000)", "exit": "sys.exit()", "exception": "1 / 0"}[way]
        code = RUNNING_CODE.format(source=str(large), copy=str(area / "copy")) + end
        words = [sys.executable, "-c", code]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as caller:
            assert caller.stdout
            assert caller.stdout.readline() == b"running\n"
            if way == "SIGKILL":
                caller.kill()
        assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)
        (unfinished,) = pcopy.jobs()
        assert unfinished.state == "stopped"
        resume_and_compare(unfinished.job, large, area / "copy")

    @pytest.mark.parametrize("where", ["copy", "wait", "events"])
    def test_keyboard_interrupt_in_the_caller(self, area: Path, large: Path, where: str) -> None:
        code = {
            "copy": "pcopy.copy({source!r}, {copy!r}, bwlimit='4M', ranks=2, progress=lambda _: print(1, flush=True))",
            "wait": "job = pcopy.start(pcopy.copy, {source!r}, {copy!r}, bwlimit='4M', ranks=2)\n"
            "print(next(iter(job)), flush=True); job.wait()",
            "events": "with pcopy.start(pcopy.copy, {source!r}, {copy!r}, bwlimit='4M', ranks=2) as job:\n"
            "    for event in job: print(event, flush=True)",
        }[where]
        words = [sys.executable, "-c", "import pcopy\n" + code.format(source=str(large), copy=str(area / "copy"))]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdout=pipe, stderr=pipe, start_new_session=True) as caller:
            assert caller.stdout
            assert caller.stderr
            caller.stdout.readline()
            assert wait_until(
                lambda: any(file.is_file() and file.stat().st_blocks for file in (area / "copy").rglob("*"))
            )
            os.killpg(caller.pid, signal.SIGINT)
            messages = caller.stderr.read()
            assert caller.wait(PROMPT) == -signal.SIGINT, messages
        assert processes_with(os.environ[TOKEN]) == []
        (unfinished,) = pcopy.jobs()
        assert unfinished.state == "stopped"
        advice = f"the job is kept; to resume it: pcopy.resume({unfinished.job!r})"
        assert messages.decode().rstrip().endswith(f"\nKeyboardInterrupt\n{advice}")
        resume_and_compare(unfinished.job, large, area / "copy")


class TestThreads:
    def test_jobs_in_threads(self, area: Path, tree: Path) -> None:
        """A thread that ends does not end its job, and no handler of signals is installed."""
        handlers = [signal.getsignal(number) for number in range(1, 32)]
        jobs: dict[int, pcopy.RunningJob[pcopy.CopyResult]] = {}

        def run(number: int) -> None:
            jobs[number] = pcopy.start(pcopy.copy, tree, area / f"copy{number}", ranks=2)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results: list[pcopy.CopyResult] = []
        waiting = [threading.Thread(target=lambda: results.append(jobs[0].wait())) for _ in range(3)]
        for thread in waiting:
            thread.start()
        for number, job in jobs.items():
            assert job.wait(HANGS).failed == 0
            assert differences(tree, area / f"copy{number}") == []
        for thread in waiting:
            thread.join()
        assert results == [jobs[0].wait()] * 3
        assert [signal.getsignal(number) for number in range(1, 32)] == handlers

    def test_job_is_stopped_by_another_thread(self, area: Path, large: Path) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)

        def stop() -> None:
            begun(job)
            job.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        with pytest.raises(pcopy.Stopped):
            job.wait(HANGS)
        stopping.join()


class TestAsyncio:
    def test_await(self, area: Path, tree: Path) -> None:
        async def copies() -> list[pcopy.CopyResult]:
            jobs = [pcopy.start(pcopy.copy, tree, area / f"copy{number}", ranks=1) for number in range(5)]
            return await asyncio.gather(*jobs)

        assert [result.failed for result in asyncio.run(copies())] == [0] * 5
        assert differences(tree, area / "copy3") == []

    def test_events_do_not_block_the_loop(self, area: Path, large: Path) -> None:
        async def watch() -> tuple[int, int, int]:
            ticks = steps = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.01)

            ticking = asyncio.create_task(tick())
            calls: list[pcopy.Progress] = []
            options: dict[str, Any] = {"bwlimit": "100M", "progress_interval": 0.05, "progress": calls.append}
            async with pcopy.start(pcopy.copy, large, area / "copy", **options) as job:
                async for event in job:
                    steps += isinstance(event, pcopy.Progress)
                await job
            ticking.cancel()
            return ticks, steps, len(calls)

        ticks, steps, calls = asyncio.run(watch())
        assert ticks > 5
        assert steps > 3
        assert calls == 0  # They are calls of "await", which has begun after the end.

    def test_exceptions(self, area: Path, large: Path) -> None:
        async def refused() -> None:
            await pcopy.start(pcopy.copy, area / "missing", area / "copy")

        async def cancelled() -> None:
            job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)
            async for event in job:
                if isinstance(event, pcopy.Progress):
                    break
            await asyncio.wait_for(job, 0.1)

        async def left() -> None:
            async with pcopy.start(pcopy.copy, large, area / "other", **SLOWLY) as job:
                async for event in job:
                    if isinstance(event, pcopy.Progress):
                        raise ZeroDivisionError

        with pytest.raises(pcopy.Refused):
            asyncio.run(refused())
        with pytest.raises(TimeoutError):
            asyncio.run(cancelled())
        assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(left())
        assert sorted(job.state or "" for job in pcopy.jobs()) == ["stopped", "stopped"]

    @pytest.mark.parametrize("way", ["block", "progress"])
    def test_note_about_the_kept_job(self, area: Path, large: Path, way: str) -> None:
        def fail(_: pcopy.Progress) -> None:
            raise ZeroDivisionError

        async def run() -> None:
            if way == "progress":
                await pcopy.start(pcopy.copy, large, area / "copy", progress=fail, **SLOWLY)
            async with pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY) as job:
                async for event in job:
                    if isinstance(event, pcopy.Progress):
                        fail(event)

        with pytest.raises(ZeroDivisionError) as failed:
            asyncio.run(run())
        assert wait_until(lambda: not processes_with(os.environ[TOKEN]), PROMPT)
        (unfinished,) = pcopy.jobs()
        assert failed.value.__notes__ == [f"the job is kept; to resume it: pcopy.resume({unfinished.job!r})"]

    def test_job_may_outlive_the_loop(self, area: Path, large: Path) -> None:
        async def begin() -> pcopy.RunningJob[pcopy.CopyResult]:
            job = pcopy.start(pcopy.copy, large, area / "copy", bwlimit="40M", progress_interval=0.05)
            async for _ in job:
                break
            return job

        assert asyncio.run(begin()).wait(HANGS).failed == 0


class TestChild:
    def test_child_runs_the_package_of_the_caller(self, area: Path) -> None:
        """Whatever is first on the module search path, and whatever the working directory contains."""
        shutil.copytree(REPOSITORY / "pcopy", area / "own/pcopy", ignore=BEING_WRITTEN)
        start = area / "own/pcopy/__init__.py"
        start.write_text(start.read_text().replace(f'"{pcopy.__version__}"', '"99.9"'))
        for name in ("yaml.py", "pcopy.py", "json.py"):
            (area / name).write_text("1 / 0")
        (area / "source").write_text("contents")
        code = (
            f"import sys; sys.path[0] = {str(area / 'own')!r}; import subprocess, pcopy, pcopy.api.process as process\n"
            "print(subprocess.check_output([sys.executable, '-P', process.CHILD, 'pcopy', '--version'], text=True))\n"
            "print(pcopy.copy('source', 'copy').copied)"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        words = [sys.executable, "-c", code]
        run = subprocess.run(words, check=False, capture_output=True, text=True, cwd=area, env=environment)
        assert run.returncode == 0, run.stderr
        assert run.stdout.startswith("pcopy 99.9 (backend ")
        assert run.stdout.endswith("\n1\n")

    def test_second_interrupt_kills_the_job(self, area: Path, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        job = pcopy.start(pcopy.copy, large, area / "copy", **SLOWLY)
        begun(job)
        os.kill(job.pid, signal.SIGSTOP)  # It cannot stop in order.
        timers = [threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in (0.3, 0.8)]
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            job.wait()
        for timer in timers:
            timer.join()
        with pytest.raises(pcopy.InternalError, match="killed by signal 9") as killed:
            job.wait(PROMPT)
        resume_and_compare(killed.value.job, large, area / "copy")


class TestLaunchers:
    def test_ranks_of_a_launcher(self, area: Path, tree: Path) -> None:
        result = pcopy.copy(tree, area / "copy", launcher=[mpiexec(), "-n", "2"], from_=["inner"])
        assert result.ranks == 2
        assert differences(tree / "inner", area / "copy/inner") == []
        with pytest.raises(pcopy.Refused, match="ranks"):
            pcopy.copy(tree, area / "second", launcher=[mpiexec(), "-n", "2"], ranks=3)

    def test_job_of_a_launcher_stops(self, area: Path, large: Path) -> None:
        options = {**SLOWLY, "ranks": None}
        job = pcopy.start(pcopy.copy, large, area / "copy", launcher=[mpiexec(), "-n", "2"], **options)
        begun(job)
        job.stop()
        with pytest.raises(pcopy.Stopped) as stopped:
            job.wait(HANGS)
        resume_and_compare(stopped.value.job, large, area / "copy")

    @pytest.mark.parametrize("launcher", [False, True])
    def test_call_from_within_an_mpi_program(self, area: Path, tree: Path, launcher: bool) -> None:
        pytest.importorskip("mpi4py")
        inner = f"[{mpiexec()!r}, '-n', '2']" if launcher else "None"
        ranks = "None" if launcher else "2"
        code = f"""
import sys
from mpi4py import MPI
import pcopy
rank = MPI.COMM_WORLD.Get_rank()
assert MPI.COMM_WORLD.Get_size() == 2
result = pcopy.copy({str(tree)!r}, {str(area)!r} + f"/copy{{rank}}", ranks={ranks}, launcher={inner})
assert (result.ranks, result.failed) == (2, 0), result
MPI.COMM_WORLD.Barrier()
print(rank, result.copied)
"""
        words = [mpiexec(), "-n", "2", sys.executable, "-c", code]
        run = subprocess.run(words, check=False, capture_output=True, text=True, timeout=HANGS, cwd=area)
        assert run.returncode == 0, run.stderr
        for rank in range(2):
            assert differences(tree, area / f"copy{rank}") == []

    def test_variables_of_launchers_are_not_passed_on(self) -> None:
        foreign = ("PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_vpid")
        more = ("HYDI_CONTROL_FD", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "MPI_LOCALNRANKS")
        kept = ("HOME", "SLURM_JOB_ID", "SLURM_NTASKS", "OMPI_MCA_btl", "HYDRA_LAUNCHER", "MPIR_CVAR_DEBUG_HOLD")
        assert set(environment.child_environment(dict.fromkeys((*foreign, *more, *kept), "1"))) == set(kept)
