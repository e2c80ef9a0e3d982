"""Run Python code in a process that sees the stand-in for Lustre: a child of a server that has the stand-in preloaded.

A new interpreter for each request would take most of the time of these tests: they make hundreds of requests.
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
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.environ.update(seen)
                sys.argv = ["-c", *words]
                exec(code, {"os": os, "sys": sys, "errno": errno, "fcntl": fcntl})
                sys.stdout.flush()
                status = 0
            except BaseException:
                os.write(1, traceback.format_exc().encode())
            os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        print(json.dumps([status, output.read().decode()]), flush=True)
"""

_servers: dict[str, subprocess.Popen[str]] = {}
"""Servers, by the preloaded library; a real Lustre needs no library."""


def asked(code: str, *words: str | Path, seen: Mapping[str, str]) -> str:
    """Return the output of Python code that runs with the environment ``seen``; ``words`` are its arguments."""
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
    """End all servers; called once, at the end of the session."""
    while _servers:
        _servers.popitem()[1].communicate()
