"""From a model's name to a server that listens, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from rung.errors import RungError
from rung.models.batching.protocol import Setup
from rung.models.gpt2.config import read_config
from rung.models.load import find
from rung.models.tokenizer import read_tokenizer
from rung.serve.app import Limits, Server
from rung.serve.completions import Served
from rung.serve.pool import Pool


class _Uvicorn(uvicorn.Server):
    """The first signal lets running requests finish, a second ends at once, with rung's exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_end)
        yield

    def _asked_to_end(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def serve(
    setups: Sequence[Setup], *, name: str | None, host: str, port: int, limits: Limits, key: str | None,
    origins: Sequence[str],
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. One engine for each of `setups`, all with the same model."""
    served = served_by(setups[0], name)
    with _listen(host, port) as listening:
        asyncio.run(_serve(setups, served, listening, limits, key, origins))


def served_by(setup: Setup, name: str | None) -> Served:
    """The model's description for clients."""
    how: dict[str, Any] = dict(setup.model)
    folder = find(how["model"], revision=how.get("revision"), offline=how.get("offline", False))
    return Served(name or how["model"], read_config(folder / "config.json"), read_tokenizer(folder))


async def _serve(
    setups: Sequence[Setup], served: Served, listening: socket.socket, limits: Limits, key: str | None,
    origins: Sequence[str],
) -> None:  # fmt: skip
    pool = Pool(setups)
    await pool.start()
    app = Server(served, pool, limits, key, origins).app
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds),
    )  # fmt: skip
    listening.listen(2048)  # once the line below is printed, connections are accepted
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    slots = f"{pool.slots} texts at a time"
    print(f"rung: {served.name} at http://{shown}:{port} ({slots}); Ctrl-C ends.", file=sys.stderr, flush=True)
    await _Uvicorn(config).serve(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        raise RungError(f"cannot listen on {host} port {port} ({error}); choose another --port.") from None
    return listening
