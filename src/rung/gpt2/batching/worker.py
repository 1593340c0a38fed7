"""An engine in a process of its own: requests go in and pieces come out through one connection.

The parent starts it with `start`. The child ends when it is told to, or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rung.errors import RungError
from rung.gpt2.batching.engine import BatchEngine, Ticket
from rung.gpt2.batching.text import Piece, Request


@dataclass(frozen=True)
class Setup:
    """What a worker is to load: keywords of `rung.load`, slots (None: by the memory), the one GPU that it sees."""

    model: Mapping[str, Any]
    slots: int | None = None
    gpu: int | None = None


@dataclass(frozen=True)
class Ready:
    """The model is there."""

    slots: int


@dataclass(frozen=True)
class Failed:
    """The model could not be loaded."""

    reason: str


@dataclass(frozen=True)
class News:
    """Pieces of texts by the parent's keys, and how full the engine is."""

    pieces: list[tuple[int, Piece]]
    running: int
    waiting: int
    usage: float


@dataclass(frozen=True)
class Submit:
    key: int
    request: Request


@dataclass(frozen=True)
class Cancel:
    key: int


@dataclass(frozen=True)
class Stop:
    """End; what is under way is interrupted."""


def start(setup: Setup) -> tuple[subprocess.Popen[bytes], Connection]:
    """A worker that begins to load; its first message is Ready or Failed."""
    ours, theirs = socket.socketpair()
    # The child imports what this process would.
    program = f"import sys; sys.path[:] = {sys.path}; from rung.gpt2.batching import worker; worker"
    program += f".main({theirs.fileno()})"
    seeing = [] if setup.gpu is None else ["env", f"CUDA_VISIBLE_DEVICES={setup.gpu}"]
    with theirs:
        process = subprocess.Popen(
            [*seeing, sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    connection = Connection(ours.detach())
    connection.send(setup)
    return process, connection


def main(descriptor: int) -> None:
    """The child."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child too; the parent decides
    with Connection(descriptor) as connection, contextlib.suppress(BrokenPipeError):  # the parent ended first
        setup = connection.recv()
        try:
            engine = _load(setup)
        except RungError as error:
            connection.send(Failed(str(error)))
            return
        connection.send(Ready(engine.slots))
        outbox: queue.SimpleQueue[tuple[int, Piece] | None] = queue.SimpleQueue()
        sender = threading.Thread(target=_send, args=(connection, engine, outbox), daemon=True)
        sender.start()
        _receive(connection, engine, outbox)
        engine.close(None)
        outbox.put(None)
        sender.join(1)


def _load(setup: Setup) -> BatchEngine:
    from rung.gpt2.load import load

    model = load(**setup.model)
    model.engine.prepare(setup.slots)
    return model.engine


def _receive(connection: Connection, engine: BatchEngine, outbox: queue.SimpleQueue[Any]) -> None:
    tickets: dict[int, Ticket] = {}
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, Submit):
            for key in [key for key, ticket in tickets.items() if ticket.ended]:
                del tickets[key]
            key = message.key
            tickets[key] = engine.submit(message.request, lambda piece, key=key: outbox.put((key, piece)))  # type: ignore[misc]
        elif isinstance(message, Cancel):
            if message.key in tickets:
                tickets[message.key].cancel()
        elif isinstance(message, Stop):
            return


def _send(connection: Connection, engine: BatchEngine, outbox: queue.SimpleQueue[tuple[int, Piece] | None]) -> None:
    while (first := outbox.get()) is not None:
        pieces = [first]
        while not outbox.empty():
            more = outbox.get()
            if more is None:
                return
            pieces.append(more)
        running, waiting = engine.load
        try:
            connection.send(News(pieces, running, waiting, engine.usage))
        except OSError:
            return
