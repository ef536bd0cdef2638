"""Headless Chromium over its own pipe: Chrome DevTools Protocol, the standard library and nothing else.

The protocol is described at https://chromedevtools.github.io/devtools-protocol/; with
``--remote-debugging-pipe`` the browser reads commands from file descriptor 3 and writes answers to 4, as JSON
texts that end in a zero byte.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_SECONDS = 60.0


def chromium() -> str | None:
    """Path of a Chromium or Chrome, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of one browser. ``complaints``: console errors, exceptions and refused loads, as text."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._pending = 0, b""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = session["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; events that come meanwhile are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(PATIENCE_SECONDS)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer.get("result", {})
                return result
            self._note(answer)

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._pending:
            ready, _, _ = select.select(
                [self._answers], [], [], max(0.0, end - time.monotonic())
            )
            if not ready:
                raise TimeoutError(f"the browser said nothing for {seconds:.0f} seconds")
            self._pending += os.read(self._answers, 1 << 20)
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "assert", "warning"):
                self.complaints.append(json.dumps(told["args"])[:500])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(
                    f"{told['entry']['text']} {told['entry'].get('url', '')}"[:500]
                )
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"][:200])

    def open(
        self, page: Path, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        """Load a page from disk at a size of the window, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:800])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a JavaScript condition holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.value(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"never became true: {condition}")
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """One key, as a person would: ``Tab``, ``Enter``."""
        text = {"Enter": "\r", " ": " "}.get(key)
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **extra,
            )


@contextmanager
def opened() -> Iterator[Browser]:
    """A browser without a network; it ends with the block."""
    program = chromium()
    if program is None:
        raise FileNotFoundError("no Chromium here")
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # The browser wants the pipe at 3 and 4; whatever lies there in the new process may be overwritten.
        move = (
            "import os, sys; one, two = (os.dup(int(arg)) for arg in sys.argv[1:3]);"
            "one, two = (os.dup2(fd, to) for fd, to in ((one, 60), (two, 61)));"
            "os.dup2(one, 3); os.dup2(two, 4); os.execvp(sys.argv[3], sys.argv[3:])"
        )
        moved = [sys.executable, "-c", move, str(to_browser), str(from_browser), *command]
        process = subprocess.Popen(
            moved,
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            browser = Browser(commands, answers)
            yield browser
            browser._session = None
            browser.call("Browser.close")
        finally:
            os.close(commands)
            os.close(answers)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
