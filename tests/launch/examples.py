"""The scripts of ``examples``, as users run them: with pcopy and mpiexec on the PATH, and a home."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.command import REPOSITORY, SLOW, Argument, command, new_token
from tests.support.oracle import differences
from tests.support.preload import preloaded
from tests.support.processes import Run, wait_until

EXAMPLES = REPOSITORY / "examples"
STOPPED = 75
DIRECTORIES = 60
"""The files of a directory are a task, which is on record only as a whole after a kill."""

_PCOPY = """#!/bin/sh
[ ! -e {area}/slow ] || export LD_PRELOAD={area}/slow.so PCOPY_TEST_DELAYS=utimensat={milliseconds}
exec {line} {options} "$@"
"""


class Desk:
    """All of it lies in ``area``: what is copied, and where to; jobs, and what they say. At first pcopy is slow."""

    def __init__(
        self,
        area: Path,
        mpiexec: Argument = "false",
        *,
        files: int = 1200,
        milliseconds: int = 20,
        wrap: Sequence[Argument] = (),
        options: Sequence[str] = (),
    ) -> None:
        """Each file takes a rank so many milliseconds at first; pcopy has these ``options``, too."""
        self.area = area
        self.source, self.copy, self.job = area / "source", area / "copy", area / "home/move.job"
        self.token = new_token()
        line, environment = command(token=self.token, wrap=wrap)
        for name in ("bin", "home", *(f"source/{number}" for number in range(DIRECTORIES))):
            (area / name).mkdir(parents=True)
        for number in range(files):
            (self.source / str(number % DIRECTORIES) / f"file{number}").write_bytes(b"%d" % number * 1000)
        shutil.copy(preloaded(SLOW)["LD_PRELOAD"], area / "slow.so")
        (area / "slow").touch()
        self.program(
            "pcopy",
            _PCOPY.format(
                area=area,
                milliseconds=milliseconds,
                line=shlex.join(map(os.fsdecode, line)),
                options=shlex.join(["--in-flight=1", *options]),
            ),
        )
        self.program("mpiexec", f'#!/bin/sh\nexec {os.fsdecode(mpiexec)} "$@"\n')
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        path = f"{area}/bin:{environment['PATH']}:/usr/sbin:/sbin"
        self.environment = {**environment, **root, "PATH": path, "HOME": f"{area}/home"}

    def program(self, name: str, text: str) -> None:
        """What is called by ``name``."""
        (self.area / "bin" / name).write_text(text)
        (self.area / "bin" / name).chmod(0o755)

    def be_quick(self) -> None:
        """From the next start on."""
        (self.area / "slow").unlink()

    def copied(self) -> dict[Path, int]:
        """The files that are in the destination, with their inodes."""
        found = {path: path.stat().st_ino for path in self.copy.rglob("[!.]*") if path.is_file()}
        return {path: inode for path, inode in found.items() if ".pcopy" not in path.name}

    def is_amid(self) -> bool:
        """Some files have come, and most have not."""
        return len(self.copied()) >= 60

    def await_amid(self) -> None:
        assert wait_until(self.is_amid, 60), "nothing is copied"

    @contextmanager
    def started(self, *words: Argument, cwd: str = "", env: Mapping[str, str] | None = None) -> Iterator[Run]:
        """A command in a session of its own; whatever is left of it is killed in the end."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words,
            cwd=self.area / cwd,
            env=env or self.environment,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        run = Run(process, self.token)
        try:
            yield run
        finally:
            run.kill_all()
            process.communicate()

    def assert_told(self, log: str) -> None:
        """What pcopy says when it was stopped in order, once; notes how many files it has recorded."""
        assert log.count("pcopy: stopped by SIGUSR1") == 1, log
        assert log.count(f"pcopy: to go on: pcopy --resume {self.job}\n") == 1, log
        (recorded,) = re.findall(r"copied: (\d+) files", log)
        self._recorded = int(recorded)

    def assert_stopped(self, run: Run) -> None:
        log = run.process.communicate(timeout=60)[0].decode()
        assert run.process.returncode == STOPPED, log
        assert run.survivors() == []
        self.assert_told(log)

    def assert_gone_on(self, run: Run, before: dict[Path, int]) -> None:
        log = run.process.communicate(timeout=60)[0].decode()
        assert run.process.returncode == 0, log
        self.assert_whole(before)

    def assert_whole(self, before: dict[Path, int]) -> None:
        """All is there, the job is gone, and what the first run has recorded is still what was there ``before``."""
        assert differences(self.source, self.copy) == []
        after = self.copied()
        assert sum(after[path] == inode for path, inode in before.items()) >= self._recorded > 0
        assert not self.job.exists()
