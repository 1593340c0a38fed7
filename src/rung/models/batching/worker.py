"""An engine in a process of its own: requests go in and pieces come out through one connection (see worker_pool.py).

The process ends on Stop, when its parent is gone, or when its GPU can no longer be used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from rung.errors import RungError
from rung.models.batching.engine import BatchEngine, Ticket, freeze
from rung.models.batching.text import Piece, failure
from rung.models.batching.worker_pool import Call, Cancel, Failed, Progress, Ready, Result, Setup, Stop, Submit
from rung.models.load import Model, load

BEAT_SECONDS = 1.0
BROKEN = 70  # the exit code after an error of the GPU, which fails all later work of the process
Outbox = queue.SimpleQueue[tuple[int, Piece] | Result | None]
log = logging.getLogger("rung.worker")


def main(descriptor: int) -> None:
    """The child."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the child too; the parent decides
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    with Connection(descriptor) as connection, contextlib.suppress(BrokenPipeError):  # the parent has ended
        setup: Setup = connection.recv()
        try:
            model = load(**setup.model)
            if setup.texts:
                model.engine.prepare(setup.slots, warm=setup.warm)
        except RungError as error:
            connection.send(Failed(str(error)))
            return
        freeze()  # a busy worker is never idle, when the engine does it
        engine = model.engine
        engine.on_failure = _end_if_broken
        connection.send(Ready(engine.slots))
        outbox: Outbox = queue.SimpleQueue()
        sender = threading.Thread(target=_send, args=(connection, engine, outbox), daemon=True)
        sender.start()
        with ThreadPoolExecutor(1) as calls:
            _receive(connection, model, outbox, calls)
            calls.shutdown(wait=False, cancel_futures=True)
        engine.close(None)
        outbox.put(None)
        sender.join(1)


def _end_if_broken(error: Exception) -> None:
    """The parent writes the texts again in a new process."""
    if "CUDA" in f"{type(error).__name__} {error}" or type(error).__name__ == "AcceleratorError":
        log.error("the GPU cannot be used any more (%s); the process ends", error)
        sys.stderr.flush()
        os._exit(BROKEN)


def _receive(connection: Connection, model: Model, outbox: Outbox, calls: ThreadPoolExecutor) -> None:
    engine = model.engine
    tickets: dict[int, Ticket] = {}
    wanted: set[int] = set()  # calls that have not ended
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
            wanted.discard(message.key)
            if message.key in tickets:
                tickets[message.key].cancel()
        elif isinstance(message, Call):
            wanted.add(message.key)
            calls.submit(_compute, message, model, outbox, wanted)
        elif isinstance(message, Stop):
            return


def _compute(call: Call, model: Model, outbox: Outbox, wanted: set[int]) -> None:
    parts: list[Any] = []
    try:
        if call.key in wanted:
            for part in call.work(model):
                if part is not None:
                    parts.append(part)
                if call.key not in wanted:
                    return
            outbox.put(Result(call.key, parts))
    except Exception as error:
        if not isinstance(error, RungError):
            log.exception("a call failed")
        outbox.put(Result(call.key, error=failure(error)))
    finally:
        wanted.discard(call.key)


def _send(connection: Connection, engine: BatchEngine, outbox: Outbox) -> None:
    while True:
        messages: list[Any] = []
        with contextlib.suppress(queue.Empty):
            messages.append(outbox.get(timeout=BEAT_SECONDS))
            while True:
                messages.append(outbox.get_nowait())
        pieces = [one for one in messages if isinstance(one, tuple)]
        running, waiting = engine.load
        try:
            for one in messages:
                if isinstance(one, Result):
                    connection.send(one)
            how = engine.usage, engine.stalled, engine.failures, engine.clock.shared_tokens, engine.clock.set_back
            connection.send(Progress(pieces, running, waiting, *how))
        except OSError:
            return
        if None in messages:
            return
