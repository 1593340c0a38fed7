"""An engine in a process of its own: requests go in and pieces come out through one connection (see wire.py).

The process ends on Stop, or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from rung.errors import RungError
from rung.models.batching.engine import BatchEngine, Ticket
from rung.models.batching.protocol import Cancel, Failed, Progress, Ready, Setup, Stop, Submit
from rung.models.batching.text import Piece
from rung.models.load import load


def main(descriptor: int) -> None:
    """The child."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child too; the parent decides
    with Connection(descriptor) as connection, contextlib.suppress(BrokenPipeError):  # the parent has ended
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
    model = load(**setup.model)
    model.engine.prepare(setup.slots, warm=setup.warm)
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
            connection.send(Progress(pieces, running, waiting, engine.usage))
        except OSError:
            return
