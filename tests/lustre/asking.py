"""What programs are told to which file systems look like Lustre: forks of one that has the stand-in preloaded.

A program of its own each time would be most of the time of these tests: they ask hundreds of times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SERVE = """
import os, sys, errno, fcntl, json, tempfile, traceback
for line in sys.stdin:
    code, words, seen = json.loads(line)
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(told.fileno(), 1)
                os.environ.update(seen)
                sys.argv = ["-c", *words]
                exec(code, {"os": os, "sys": sys, "errno": errno, "fcntl": fcntl})
                sys.stdout.flush()
                status = 0
            except BaseException:
                os.write(1, traceback.format_exc().encode())
            os._exit(status)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        print(json.dumps([status, told.read().decode()]), flush=True)
"""

_servers: dict[str, subprocess.Popen[str]] = {}
"""By the library that is preloaded; none is on a real Lustre."""


def asked(code: str, *words: str | Path, seen: Mapping[str, str]) -> str:
    """What a program prints to which file systems look as ``seen`` (an environment) says; words are its ``argv``."""
    library = seen.get("LD_PRELOAD", "")
    if library not in _servers:
        environment = {**os.environ, **({"LD_PRELOAD": library} if library else {})}
        _servers[library] = subprocess.Popen(
            [sys.executable, "-S", "-c", _SERVE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
    server = _servers[library]
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([code, [str(word) for word in words], dict(seen)]) + "\n")
    server.stdin.flush()
    status, reported = json.loads(server.stdout.readline())
    assert status == 0, reported
    assert isinstance(reported, str)
    return reported


def clean_up() -> None:
    """Called once, at the end of the session."""
    while _servers:
        _servers.popitem()[1].communicate()
