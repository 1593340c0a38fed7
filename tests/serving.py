"""A server for tests: in a thread of this process, its engine in a process of its own; or all of it by the command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.models.batching.worker_pool import Setup, WorkerPool
from rung.serve.app import Limits, Server
from rung.serve.run import _Uvicorn, served_from, settings

SOURCE = Path(__file__).parents[1] / "src"


class Running:
    """`url`, and the server's parts."""

    def __init__(self, folder: Path, name: str, slots: int, limits: Limits, workers: int = 1, **how: Any) -> None:
        setup = Setup({"model": str(folder), "dtype": "float32"}, slots)
        self.pool = WorkerPool([setup] * workers)
        self.server = Server(served_from(folder, name), self.pool, limits, **how)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._uvicorn = _Uvicorn(settings(self.server.app, replace(limits, grace=5)))
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._up.wait(120)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.pool.start)
        self._up.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._uvicorn._serve([self._listening])

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def running(folder: Path, name: str = "tiny", slots: int = 4, **how: Any) -> Iterator[Running]:
    """A server while the block runs."""
    limits = Limits(**how.pop("limits", {}))
    one = Running(folder, name, slots, limits, **how)
    try:
        yield one
    finally:
        one.stop()


@contextlib.contextmanager
def command(*words: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`rung serve` with these words, at a free port where none is named, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rung", "serve", "--port", str(port), *words], stderr=subprocess.PIPE, text=True,
        env={**os.environ},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"http://\S+:\d+", line):
                threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True).start()  # its log
                yield process, found[0]
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
