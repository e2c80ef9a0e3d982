"""A headless Chromium that tests control over its DevTools protocol, through two pipes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.users import is_root

ANSWERS_WITHIN = 60.0
"""Seconds within which the browser must answer a command or load a page."""

_WITH_PIPES = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
"""A script that gives the pipes the descriptors that the browser expects. dash has no descriptors of two digits."""


class Browser:
    """One process of the browser, and one page in it."""

    def __init__(self, program: str, profile: Path) -> None:
        its_input, self._to = _pipe()
        self._from, its_output = _pipe()
        command = [program, "--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars"]
        if is_root():
            command.append("--no-sandbox")
        self._process = subprocess.Popen(
            ["bash", "-c", _WITH_PIPES, "bash", str(its_input), str(its_output), *command, "about:blank"],
            pass_fds=(its_input, its_output),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(its_input)
        os.close(its_output)
        self._received = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result. Events that arrive before are appended to ``events``."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWERS_WITHIN
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._from, 1 << 20)
            assert received, "the browser ended"
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def wait_for_event(self, method: str) -> None:
        """Wait until an event of this name has arrived since the last ``open``."""
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._receive())

    def open(self, url: str) -> None:
        """Load a page, and forget the events of the page before."""
        self.events.clear()
        opened = self.command("Page.navigate", url=url)
        assert "errorText" not in opened, (url, opened)
        self.wait_for_event("Page.loadEventFired")

    def show_at(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Set the size of the window, and the colour scheme that the reader prefers."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, script: str) -> Any:
        """Evaluate an expression repeatedly until it is true, and return its value."""
        end = time.monotonic() + ANSWERS_WITHIN
        while not (value := self.value(script)):
            assert time.monotonic() < end, script
            time.sleep(0.02)
        return value

    def requested(self) -> list[str]:
        """Return the addresses that the page has requested."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the page: exceptions, its console, and files that could not be loaded."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        return found

    def close(self) -> None:
        """End the browser and all its processes."""
        os.close(self._to)
        os.close(self._from)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe, with numbers that are neither 3 nor 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


@contextlib.contextmanager
def started_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium, or skip the test if it is not installed."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium")
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
