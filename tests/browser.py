"""A real Chromium, driven through its DevTools pipe: enough to open a page, press keys and look around."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank"),
]


class Page:
    """One tab. `events` holds everything that it reported."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._number, self._buffer = 0, b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(30)
            if answer is None:
                raise TimeoutError(f"no answer to {method}")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._back], [], [], left)[0]:
                return None
            part = os.read(self._back, 1 << 20)
            if not part:
                raise RuntimeError("the browser is gone")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.events = [e for e in self.events if e["method"] != "Page.loadEventFired"]  # those of pages before
        if "loaderId" not in self.call("Page.navigate", url=url):
            return  # another fragment of the same document
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            if self._receive(30) is None:
                raise TimeoutError(f"{url} does not load")

    def settle(self, seconds: float = 0.1) -> None:
        """Take in what is reported within a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._receive(left)

    def value(self, expression: str) -> Any:
        """What a piece of JavaScript gives (as JSON)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **(text if kind == "keyDown" else {}))  # fmt: skip

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def reported(self, method: str) -> list[dict[str, Any]]:
        return [e["params"] for e in self.events if e["method"] == method]


@contextlib.contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A tab of a fresh browser."""
    assert CHROMIUM is not None
    reads, to = os.pipe()
    back, writes = os.pipe()
    # The browser reads its file 3 and writes its file 4; the shell puts the pipes there.
    command = f'exec {CHROMIUM} "$@" 3<&{reads} 4>&{writes}'
    with profile.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command, "chromium", f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(reads, writes), stdout=log, stderr=log,
        )  # fmt: skip
    os.close(reads)
    os.close(writes)
    try:
        yield Page(to, back)
    finally:
        os.close(to)
        os.close(back)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
