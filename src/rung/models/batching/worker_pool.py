"""Several engines as one: workers in processes of their own, one on each GPU, and perhaps the engine of this process.

Each text goes to the least loaded engine. When a worker dies, is killed because it hangs, or loses its GPU, its texts
are written again elsewhere, or by the worker that replaces it: a text is a function of its request, so that what was
delivered before is compared and left out. A text that was running at two deaths ends with an error, since it may be
their cause. A worker that dies more often than RESTARTS times in WINDOW seconds is not started again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from gpuless.base.processors import gpu_named
from rung.errors import RungError
from rung.models.batching.engine import BatchEngine, Listener, Submission
from rung.models.batching.text import Clock, Piece, Request


@dataclass(frozen=True)
class Setup:
    """What a worker must load: keywords of `rung.load`, slots (None: by available memory), its one visible GPU.

    A `warm` worker is ready when it has prepared for any text; one without `texts` only computes calls.
    """

    model: Mapping[str, Any]
    slots: int | None = None
    gpu: int | None = None
    warm: bool = False
    texts: bool = True


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    slots: int


@dataclass(frozen=True)
class Failed:
    """The model could not be loaded."""

    reason: str


@dataclass(frozen=True)
class Progress:
    """Pieces of texts by the parent's keys, and how the engine is; sent each second at least."""

    pieces: list[tuple[int, Piece]]
    running: int
    waiting: int
    usage: float
    stalled: float  # seconds of its present step
    failures: int
    shared_tokens: int
    set_back: int


@dataclass(frozen=True)
class Submit:
    key: int
    request: Request


@dataclass(frozen=True)
class Cancel:
    key: int


# Parts of a result from a model, and None for none yet; whether they are still wanted is asked in between.
Work = Callable[[Any], Iterator[Any]]


@dataclass(frozen=True)
class Call:
    """Compute the parts of work(model), unless Cancel comes before their end."""

    key: int
    work: Work


@dataclass(frozen=True)
class Result:
    key: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class Stop:
    """End; running texts are interrupted."""


def start_worker(setup: Setup) -> tuple[subprocess.Popen[bytes], Connection]:
    """A worker that starts loading; its first message is Ready or Failed."""
    ours, theirs = socket.socketpair()
    # The child uses this process's import path.
    program = f"import sys; sys.path[:] = {sys.path}; from rung.models.batching import worker; worker"
    program += f".main({theirs.fileno()})"
    seeing = [] if setup.gpu is None else ["env", f"CUDA_VISIBLE_DEVICES={gpu_named(setup.gpu)}"]
    with theirs:
        process = subprocess.Popen(
            [*seeing, sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    connection = Connection(ours.detach())
    connection.send(setup)
    return process, connection


RESTARTS, WINDOW = 3, 600.0
TRIES = 2  # of a text, or of a call
SILENT_SECONDS = 5.0  # a worker reports each second; after this long without a report it is not healthy,
HUNG_SECONDS = 60.0  # and after this long it is killed
STALLED_SECONDS = 300.0  # for one step, after which an engine is not healthy; graphs may be captured in it
STOP_SECONDS = 10.0
DIED = "the engine's process died twice while the text was being written; it may be the cause."
DIED_TWICE = "the engine's process died twice while this was being computed; it may be the cause."
DIFFERENT = "the engine's process died, and the text came out differently the second time; send the request again."
GONE = "no engine is running; see the server's log."
log = logging.getLogger("rung.workers")


class EngineLost(RungError):
    """What was asked for cannot be answered now, through no fault of the request."""


@dataclass(eq=False)
class PooledCall:
    """A call and its result; cancelling the future ends the computation."""

    key: int
    work: Work
    future: Future[Any] = field(default_factory=Future)
    tries: int = 0
    worker: Worker | None = None

    def fail(self, error: RungError) -> None:
        """The result is this error, if anybody still waits for it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def succeed(self, value: Any) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)


@dataclass(eq=False)
class PooledText:
    """A text and the worker that writes it. `whole`: it is delivered when it has ended, in one piece."""

    pool: WorkerPool
    key: int
    request: Request
    listener: Listener
    whole: bool
    worker: Worker | None = None
    tries: int = 0
    ended: bool = False
    pieces: list[Piece] = field(default_factory=list)  # of a whole text
    tokens: list[int] = field(default_factory=list)  # that were delivered, and how many characters
    characters: int = 0
    again: int = 0  # tokens and characters that the present try still repeats
    skip: int = 0

    def cancel(self) -> None:
        """End the text; its last piece says "interrupted"."""
        self.pool.cancel(self)

    def drop(self) -> None:
        """End the text; the listener is not called any more."""
        self.pool.drop(self)

    def begin(self) -> None:
        """Another try."""
        self.tries += 1
        self.pieces.clear()
        self.again, self.skip = len(self.tokens), self.characters

    def take(self, piece: Piece) -> Piece | None:
        """What the listener has not had of this piece."""
        if self.whole:
            self.pieces.append(piece)
            return _joined(self.pieces) if piece.last else None
        if piece.error is not None:
            return piece
        repeated, told = self.again, bool(self.tokens)
        done = len(self.tokens) - repeated
        if repeated and list(piece.tokens[:repeated]) != self.tokens[done : done + len(piece.tokens)]:
            return Piece(error=DIFFERENT)
        new = list(piece.tokens[repeated:])
        text = piece.text[self.skip :]
        self.again -= min(repeated, len(piece.tokens))
        self.skip -= min(self.skip, len(piece.text))
        self.tokens += new
        self.characters += len(text)
        if not (new or text or piece.last or piece.prompt):
            return None
        details = None if piece.details is None else piece.details[repeated:]
        prompt, queued = (None, None) if told else (piece.prompt, piece.queued)
        return replace(piece, text=text, tokens=new, details=details, prompt=prompt, queued=queued)


def _joined(pieces: Sequence[Piece]) -> Piece:
    first, last = pieces[0], pieces[-1]
    details = [one for p in pieces for one in p.details or ()] if first.details is not None else None
    tokens = [token for p in pieces for token in p.tokens]
    return replace(
        last, text="".join(p.text for p in pieces), tokens=tokens, details=details, prompt=first.prompt,
        queued=first.queued,
    )  # fmt: skip


class Worker:
    """One process, and what it works on."""

    def __init__(self, pool: WorkerPool, setup: Setup) -> None:
        self.pool, self.setup = pool, setup
        self.process: subprocess.Popen[bytes] | None = None
        self.texts: dict[int, PooledText] = {}
        self.calls: dict[int, PooledCall] = {}
        self.slots = self.running = self.waiting = self.failures = self.restarts = 0
        self.usage = self.stalled = 0.0
        self.shared_tokens = self.set_back = 0
        self.alive = self.stopping = False
        self.heard = time.monotonic()
        self.deaths: list[float] = []
        self.reason = ""  # why it could not start
        self.settled = threading.Event()  # it has started, or cannot
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()

    def start(self) -> None:
        self._outbox, self.heard = queue.SimpleQueue(), time.monotonic()
        self.process, connection = start_worker(self.setup)
        for work in (self._write, self._listen):
            threading.Thread(target=work, args=(self.process, connection, self._outbox), daemon=True).start()

    def send(self, message: Submit | Cancel | Stop | Call) -> None:
        """Never waits: a thread writes to the process, however slowly that one reads."""
        self._outbox.put(message)

    @property
    def healthy(self) -> bool:
        """Whether it reports, and its engine goes on."""
        return self.alive and time.monotonic() - self.heard < SILENT_SECONDS and self.stalled < STALLED_SECONDS

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    # ---- threads ----------------------------------------------------------------------------------------------------

    def _write(self, process: Any, connection: Connection, outbox: queue.SimpleQueue[object]) -> None:
        while (message := outbox.get()) is not None:
            try:
                connection.send(message)
            except (OSError, ValueError):
                return  # it has died, which _listen notices

    def _listen(self, process: subprocess.Popen[bytes], connection: Connection, outbox: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._receive(connection.recv())
        code = process.wait()
        outbox.put(None)
        connection.close()
        self.pool.died(self, code)

    def _receive(self, message: Ready | Failed | Progress | Result) -> None:
        self.heard = time.monotonic()
        if isinstance(message, Ready):
            self.slots = message.slots
            self.pool.ready(self)
        elif isinstance(message, Failed):
            self.reason = message.reason
        elif isinstance(message, Result):
            self.pool.answered(self, message)
        else:
            self.running, self.waiting, self.usage = message.running, message.waiting, message.usage
            self.stalled, self.failures = message.stalled, message.failures
            self.shared_tokens, self.set_back = message.shared_tokens, message.set_back
            for key, piece in message.pieces:
                self.pool.arrived(self, key, piece)


class WorkerPool:
    """`local` is this process's engine, which takes texts as well. Without `restart` a worker that dies stays away."""

    def __init__(self, setups: Sequence[Setup], local: BatchEngine | None = None, *, restart: bool = True) -> None:
        self.workers = [Worker(self, setup) for setup in setups]
        self.alone = local.alone if local else threading.Lock()
        self.deaths = 0
        self.on_gone: Callable[[], None] = lambda: None  # called when no worker will serve any more
        self._local, self._restart = local, restart
        self._at_home = 0  # texts of the local engine
        self._lock = threading.RLock()
        self._keys = itertools.count()
        self._unassigned: list[PooledText] = []  # while all workers are being started again
        self._unassigned_calls: list[PooledCall] = []
        self._closed = threading.Event()

    def start(self) -> None:
        """Returns when all workers are ready; RungError if one cannot load."""
        try:
            for one in self.workers:
                one.start()
            if self._local is not None:
                self._local.prepare()
            for one in self.workers:
                one.settled.wait()
                if not one.alive:
                    raise RungError(one.reason or "a worker died while it started; see its output above.")
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """End all workers; those that do not end by themselves are killed."""
        self._closed.set()
        for one in self.workers:
            one.stopping = True
            one.send(Stop())
        until = time.monotonic() + STOP_SECONDS
        for one in self.workers:
            if one.process is not None:
                try:
                    one.process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    one.kill()

    # ---- how it is --------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        return all(one.healthy for one in self.workers)

    @property
    def serving(self) -> bool:
        return any(one.healthy for one in self.workers) or self._local is not None

    @property
    def gone(self) -> bool:
        """Whether no worker will serve any more."""
        return self._local is None and all(one.settled.is_set() and not one.alive for one in self.workers)

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self.workers if one.alive)

    @property
    def texts(self) -> int:
        """Texts that are being written or wait."""
        return sum(len(one.texts) for one in self.workers) + len(self._unassigned) + self._at_home

    @property
    def clock(self) -> Clock:
        """The figure of this process's engine."""
        return self._local.clock if self._local else Clock()

    # ---- texts ------------------------------------------------------------------------------------------------------

    def together(self) -> AbstractContextManager[object]:
        """See Engine.together; a worker admits what has arrived."""
        return self._local.together() if self._local is not None else nullcontext()

    def submit(self, request: Request, listener: Listener, *, whole: bool | None = None) -> Submission:
        """Submit a text to the least loaded engine. The listener is called in a thread, and must not block."""
        if whole is None:
            whole = self._local is not None
        with self._lock:
            free = self._least()
            if self._local is not None and (free is None or self._at_home / max(1, self._local.slots) <= _load(free)):
                self._at_home += 1
                return self._local.submit(request, self._counted(listener))
            text = PooledText(self, next(self._keys), request, listener, whole)
            self._hand(text, free)
            return text

    def _least(self) -> Worker | None:
        alive = [one for one in self.workers if one.alive]
        return min(alive, key=lambda one: (not one.healthy, _load(one)), default=None)

    def _hand(self, text: PooledText, worker: Worker | None) -> None:
        text.begin()
        text.worker = worker
        if worker is None:
            self._unassigned.append(text)
        else:
            worker.texts[text.key] = text
            worker.send(Submit(text.key, text.request))

    def _counted(self, listener: Listener) -> Listener:
        def on_piece(piece: Piece) -> None:
            if piece.last:
                with self._lock:
                    self._at_home -= 1
            listener(piece)

        return on_piece

    def cancel(self, text: PooledText) -> None:
        """See PooledText.cancel."""
        with self._lock:
            if text.worker is not None and not text.ended:
                text.worker.send(Cancel(text.key))
            waiting = text in self._unassigned
            if waiting:
                self._unassigned.remove(text)
                text.ended = True
        if waiting:
            text.listener(Piece(reason="interrupted"))

    def drop(self, text: PooledText) -> None:
        """See PooledText.drop."""
        with self._lock:
            if not text.ended:
                text.ended = True
                if text.worker is not None and text.key in text.worker.texts:
                    del text.worker.texts[text.key]
                    text.worker.send(Cancel(text.key))
                elif text in self._unassigned:
                    self._unassigned.remove(text)

    def arrived(self, worker: Worker, key: int, piece: Piece) -> None:
        """A piece from a worker."""
        with self._lock:
            text = worker.texts.get(key)
            shown = text.take(piece) if text is not None else None
            if text is None or shown is None:
                return
            if shown.last:
                text.ended = True
                del worker.texts[key]
                if not piece.last:
                    worker.send(Cancel(key))
        text.listener(shown)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call(self, work: Work) -> Future[Any]:
        """The parts of `work(model)` as a list, computed in the process of a worker."""
        with self._lock:
            call = PooledCall(next(self._keys), work)
            self._hand_call(call)
        call.future.add_done_callback(lambda done: self._give_up(call) if done.cancelled() else None)
        return call.future

    def _hand_call(self, call: PooledCall) -> None:
        """To a worker; where none is alive, to the first that is again."""
        alive = [one for one in self.workers if one.alive]
        call.worker = min(alive, key=lambda one: (not one.healthy, len(one.calls)), default=None)
        if call.worker is None:
            self._unassigned_calls.append(call)
            return
        call.tries += 1
        call.worker.calls[call.key] = call
        call.worker.send(Call(call.key, call.work))

    def _give_up(self, call: PooledCall) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            if call.worker is not None and call.key in call.worker.calls:
                del call.worker.calls[call.key]
                call.worker.send(Cancel(call.key))
            elif call in self._unassigned_calls:
                self._unassigned_calls.remove(call)

    def answered(self, worker: Worker, result: Result) -> None:
        """The result of a call."""
        with self._lock:
            call = worker.calls.pop(result.key, None)
        if call is None:
            return
        if result.error:
            call.fail(RungError(result.error))
        else:
            call.succeed(result.value)

    # ---- deaths -----------------------------------------------------------------------------------------------------

    def ready(self, worker: Worker) -> None:
        """A worker has loaded its model."""
        with self._lock:
            worker.alive = True
            waiting, self._unassigned = self._unassigned, []
            calls, self._unassigned_calls = self._unassigned_calls, []
            for text in waiting:
                text.tries -= 1
                self._hand(text, worker)
            for call in calls:
                self._hand_call(call)
        worker.settled.set()

    def died(self, worker: Worker, code: int) -> None:
        """A worker's process has ended."""
        with self._lock:
            texts, calls = self._bury(worker, code)
            lost = [text for text in texts if not self._again(worker, text)]
            failed = [call for call in calls if not self._call_again(worker, call)]
            gone = self.gone
            if gone:
                lost += self._unassigned
                failed += self._unassigned_calls
                self._unassigned, self._unassigned_calls = [], []
        for text in lost:
            text.ended = True
            text.listener(Piece(error=DIED if text.tries >= TRIES else GONE))
        for call in failed:
            call.fail(EngineLost(DIED_TWICE if call.tries >= TRIES else GONE))
        if gone and not worker.stopping:
            self.on_gone()

    def _bury(self, worker: Worker, code: int) -> tuple[list[PooledText], list[PooledCall]]:
        """What a worker worked on when it died; it is started again, unless it dies too often."""
        started, worker.alive, now = worker.alive, False, time.monotonic()
        worker.running = worker.waiting = 0
        worker.usage = worker.stalled = 0.0
        texts, worker.texts = list(worker.texts.values()), {}
        calls, worker.calls = list(worker.calls.values()), {}
        if not worker.stopping:
            worker.deaths = [at for at in worker.deaths if now - at < WINDOW] + [now]
        again = not worker.stopping and self._restart and len(worker.deaths) <= RESTARTS
        again = again and (started or worker.restarts > 0)
        if not worker.stopping:
            self.deaths += 1
            ids = ", ".join(sorted({text.request.call for text in texts} - {""})) or "none"
            what = "it is started again" if again else "it is not started again"
            log.error("a worker died (exit code %d) with %d texts of requests %s; %s", code, len(texts), ids, what)
        if again:
            worker.restarts += 1
            worker.settled.clear()
            worker.start()
        else:
            worker.settled.set()
        return texts, calls

    def _again(self, worker: Worker, text: PooledText) -> bool:
        """Whether the text of a dead worker is written again."""
        other = self._least()
        if text.tries >= TRIES or worker.stopping or (other is None and self.gone):
            return False
        if other is None and self._local is not None:
            self._at_home += 1
            text.begin()
            self._local.submit(text.request, self._counted(self._relayed(text)))
        else:
            self._hand(text, other)
        return True

    def _call_again(self, worker: Worker, call: PooledCall) -> bool:
        """Whether the call of a dead worker is computed again."""
        if call.tries >= TRIES or worker.stopping or self.gone:
            return False
        self._hand_call(call)
        return True

    def _relayed(self, text: PooledText) -> Listener:
        def on_piece(piece: Piece) -> None:
            if (shown := text.take(piece)) is not None:
                text.ended = shown.last
                text.listener(shown)

        return on_piece

    def _watch(self) -> None:
        """Kills workers that hang: a request must not wait for one for ever."""
        while not self._closed.wait(1.0):
            for one in self.workers:
                if one.alive and time.monotonic() - one.heard > HUNG_SECONDS:
                    log.error("a worker has not reported for %.0f s; it is killed", HUNG_SECONDS)
                    one.kill()


def _load(worker: Worker) -> float:
    return len(worker.texts) / max(1, worker.slots)
