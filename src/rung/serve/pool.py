"""The server's view of the engines: which process computes a text, and how a process's death is handled."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from rung.errors import RungError
from rung.models.batching import protocol
from rung.models.batching.protocol import Cancel, Failed, Progress, Ready, Setup, Stop, Submit
from rung.models.batching.text import Piece, Request

DIED = "the engine's process died while the text was being written; send the request again."
RESTARTS = 1  # a process that dies more often would die again if restarted
STOP_SECONDS = 10.0
Listener = Callable[[Piece], None]


@dataclass
class Job:
    """A text assigned to a worker."""

    key: int
    listener: Listener
    worker: Worker
    ended: bool = False

    def cancel(self) -> None:
        """Free its slot; the listener is not called any more."""
        if not self.ended:
            self.ended = True
            self.worker.forget(self)


@dataclass
class Worker:
    """One process with an engine."""

    setup: Setup
    loop: asyncio.AbstractEventLoop
    process: subprocess.Popen[bytes] | None = None
    connection: Connection | None = None
    jobs: dict[int, Job] = field(default_factory=dict)
    alive: bool = False
    slots: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    restarts: int = 0
    stopping: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # it has started, or cannot
    reason: str = ""  # why it could not start

    def start(self) -> None:
        self.settled.clear()
        self.process, self.connection = protocol.start(self.setup)
        threading.Thread(target=self._listen, args=(self.process, self.connection), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        def call_in_loop(handler: Callable[..., None], *arguments: object) -> None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(handler, *arguments)

        try:
            while True:
                call_in_loop(self._receive, connection.recv())
        except (EOFError, OSError):
            pass
        process.wait()
        connection.close()
        call_in_loop(self._died)

    def _receive(self, message: Ready | Failed | Progress) -> None:
        if isinstance(message, Ready):
            self.alive, self.slots = True, message.slots
            self.settled.set()
        elif isinstance(message, Failed):
            self.reason, self.stopping = message.reason, True
        else:
            self.running, self.waiting, self.usage = message.running, message.waiting, message.usage
            for key, piece in message.pieces:
                job = self.jobs.get(key)
                if job is None:
                    continue
                if piece.last:
                    job.ended = True
                    del self.jobs[key]
                job.listener(piece)

    def _died(self) -> None:
        self.alive, self.running, self.waiting, self.usage = False, 0, 0, 0.0
        unfinished, self.jobs = list(self.jobs.values()), {}
        for job in unfinished:
            job.ended = True
            job.listener(Piece(error=DIED))
        if self.stopping or self.restarts == RESTARTS:
            self.settled.set()
        else:
            self.restarts += 1
            self.start()

    def submit(self, key: int, request: Request, listener: Listener) -> Job:
        job = self.jobs[key] = Job(key, listener, self)
        self._send(Submit(key, request))
        return job

    def forget(self, job: Job) -> None:
        self.jobs.pop(job.key, None)
        self._send(Cancel(job.key))

    def _send(self, message: Submit | Cancel | Stop) -> None:
        try:
            if self.connection is not None:
                self.connection.send(message)
        except (OSError, ValueError):
            pass  # it has died; _died notifies the waiting listeners

    def stop(self) -> None:
        self.stopping = True
        self._send(Stop())


class Pool:
    """Workers; each text goes to the least loaded one."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self._setups = setups
        self._keys = itertools.count()
        self.workers: list[Worker] = []

    async def start(self) -> None:
        """Returns when all workers are ready; RungError if one cannot load."""
        loop = asyncio.get_running_loop()
        self.workers = [Worker(setup, loop) for setup in self._setups]
        for one in self.workers:
            one.start()
        for one in self.workers:
            await one.settled.wait()
            if not one.alive:
                await self.stop()
                raise RungError(one.reason or "the engine's process died while starting; see its output above.")

    async def stop(self) -> None:
        """End all workers; those that do not end by themselves are killed."""
        for one in self.workers:
            one.stop()
        for one in self.workers:
            if one.process is not None:
                try:
                    await asyncio.to_thread(one.process.wait, STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    one.process.kill()

    @property
    def healthy(self) -> bool:
        return all(one.alive for one in self.workers)

    @property
    def serving(self) -> bool:
        return any(one.alive for one in self.workers)

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self.workers if one.alive)

    @property
    def jobs(self) -> int:
        """Texts that are being written or wait."""
        return sum(len(one.jobs) for one in self.workers)

    def submit(self, request: Request, listener: Listener) -> Job:
        """Submit a text to a live worker (see `serving`); the listener is called with its pieces in the event loop."""
        one = min((w for w in self.workers if w.alive), key=lambda w: len(w.jobs) / max(1, w.slots))
        return one.submit(next(self._keys), request, listener)
