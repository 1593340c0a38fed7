"""The engine: requests wait, take a slot, advance together, and leave when they end or are cancelled.

One thread calls the backend, so that a model may be used from any number of threads. The request with the lowest
priority number is admitted next. Among equals calls take turns, so that one with few texts does not wait for all texts
of another; the texts of a call are admitted in order. An admitted text keeps its slot until it ends.

An error of one text ends that text. Whatever else fails ends the running texts, is logged with their calls, and the
next request gets a new backend.
"""

from __future__ import annotations

import atexit
import gc
import heapq
import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from rung.errors import RungError
from rung.lazy import torch
from rung.models.batching.text import Backend, Clock, Piece, Request, Text, failure
from rung.models.tokenizer import Tokenizer

IDLE_SECONDS = 1.0  # after this long without work the thread ends; the next request starts another
Listener = Callable[[Piece], None]
log = logging.getLogger("rung.engine")
logging.getLogger("rung").addHandler(logging.NullHandler())  # a program decides where messages go
_engines: weakref.WeakSet[BatchEngine] = weakref.WeakSet()


class Submission(Protocol):
    """A submitted request."""

    def cancel(self) -> None: ...


class Engine(Protocol):
    """The interface to which a run submits its requests."""

    alone: threading.Lock

    @property
    def clock(self) -> Clock: ...

    def together(self) -> AbstractContextManager[object]:
        """Requests that are submitted inside are admitted in the same turn, whenever the engine's thread runs."""

    def submit(self, request: Request, listener: Listener) -> Submission: ...


def freeze() -> None:
    """What lives now, such as imported modules, is not walked again by each full collection of Python's collector,
    which stops all texts meanwhile. A model holds no cycles: it is freed without the collector."""
    if gc.isenabled():
        gc.collect()
        gc.freeze()


class Ticket:
    """A submitted request. Its listener is called with each piece, in the engine's thread."""

    def __init__(
        self, engine: BatchEngine, request: Request, listener: Listener, turn: int, number: int
    ) -> None:
        self.request, self.listener = request, listener
        self.order = (request.options.priority, turn, number)
        self.cancelled = self.ended = False
        self.submitted, self.queued = time.monotonic(), 0.0
        self._engine = engine

    def __lt__(self, other: Ticket) -> bool:
        return self.order < other.order

    def cancel(self) -> None:
        """End the text at the next token; its last piece says "interrupted"."""
        self._engine.cancel(self)


class BatchEngine:
    """`backend` creates the backend at the first request; the number of slots may be given."""

    def __init__(self, backend: Callable[..., Backend], tokenizer: Tokenizer | None) -> None:
        self._backend_of, self._tokenizer = backend, tokenizer
        self._make: Callable[[], Backend] = backend
        self.failures = 0  # of the backend
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self._new()
        _engines.add(self)

    def _new(self) -> None:
        self._pid = os.getpid()
        self.alone = threading.Lock()  # held by the one run that a plan writes as a whole, without the engine
        self._lock = threading.Condition()
        self._backend: Backend | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._count = 0
        self._turn_now = 0  # of the text that was admitted last
        self._turns: dict[str, int] = {}  # by call: the turn of its last text
        self._beat = time.monotonic()
        self._frozen = False  # done once, after the first texts
        self._cancelled = False  # a request was cancelled since the last check
        self._waiting: list[Ticket] = []  # a heap
        self._running: dict[int, tuple[Ticket, Text]] = {}
        self._free: list[int] = []  # a heap: unused numbers below _top
        self._top = 0

    # ---- from any thread --------------------------------------------------------------------------------------------

    def together(self) -> AbstractContextManager[object]:
        """See Engine.together."""
        if os.getpid() != self._pid:
            self._new()  # after a fork the parent's thread and its texts do not exist here
        return self._lock

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Submit a request. The listener must not block."""
        with self.together():
            if self._closed:
                raise RungError("the engine was closed; load the model again.")
            turn = self._turn_now + 1
            if request.call:
                turn = self._turns[request.call] = max(turn, self._turns.get(request.call, 0) + 1)
            ticket = Ticket(self, request, listener, turn, self._count)
            self._count += 1
            heapq.heappush(self._waiting, ticket)
            self._lock.notify()
            if self._thread is None:
                self._beat = time.monotonic()
                self._thread = threading.Thread(target=self._serve, name="rung-engine", daemon=True)
                self._thread.start()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """See Ticket.cancel."""
        with self._lock:
            ticket.cancelled = self._cancelled = True
            self._lock.notify()

    @property
    def load(self) -> tuple[int, int]:
        """How many texts are being written, and how many wait."""
        return len(self._running), len(self._waiting)

    @property
    def stalled(self) -> float:
        """Seconds since the thread began its present step; 0 without work."""
        return time.monotonic() - self._beat if self._running or self._waiting else 0.0

    @property
    def slots(self) -> int:
        """How many texts can be written at a time; 0 before the first request."""
        return self._backend.slots if self._backend else 0

    @property
    def usage(self) -> float:
        """The share of the memory for keys and values that is in use."""
        if self._backend is not None and (usage := self._backend.usage) is not None:
            return usage
        tokens = sum(len(text.request.ids) + len(text.tokens) for _, text in list(self._running.values()))
        return tokens / (self._backend.slots * self._backend.context) if self._backend else 0.0

    def prepare(self, slots: int | None = None, *, warm: bool = False) -> None:
        """Create the backend now, with this number of slots if one is given."""
        with self._lock:
            if slots is not None:
                self._make = partial(self._backend_of, slots)
            if self._backend is None or slots is not None:
                self._use(self._make())
            if warm and self._backend is not None:
                self._backend.warm()

    def _use(self, backend: Backend) -> Backend:
        self._backend, self._free, self._top = backend, [], 0
        return backend

    @property
    def clock(self) -> Clock:
        return self._backend.clock if self._backend else Clock()

    def close(self, timeout: float | None = 5.0) -> None:
        """End all texts and the thread."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._lock.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    # ---- in the engine's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with torch.inference_mode() if sys.modules.get("torch") else nullcontext():
            self._serve_all()

    def _serve_all(self) -> None:
        try:
            while self._wait():
                self._beat = time.monotonic()
                try:
                    backend = self._backend or self._use(self._make())
                    self._admit(backend)
                    self._turn(backend)
                except Exception as error:  # all waiting listeners have to be notified
                    self._fail(error)
        finally:
            if self._thread is threading.current_thread():  # it could not go on; the next request starts another
                self._thread = None

    def _wait(self) -> bool:
        """Wait for work; False when the thread is to end."""
        with self._lock:
            if not self._running and not self._waiting and not self._closed:
                if self._backend is not None and not self._frozen:
                    self._frozen = True
                    freeze()
                self._lock.wait_for(lambda: self._waiting or self._closed, IDLE_SECONDS)
            if self._running or self._waiting:
                if not self._closed:
                    return True
                tickets = [*self._waiting, *(ticket for ticket, _ in self._running.values())]
                self._waiting.clear()
                self._running.clear()
                for ticket in tickets:
                    self._deliver(ticket, Piece(reason="interrupted"))
            self._thread = None
            return False

    def _admit(self, backend: Backend) -> None:
        left, cancelled = [], []
        with self._lock:
            if self._cancelled:
                self._cancelled = False
                left = [ticket for ticket in self._waiting if ticket.cancelled]
                self._waiting = [ticket for ticket in self._waiting if not ticket.cancelled]
                heapq.heapify(self._waiting)
                cancelled = [slot for slot, (ticket, _) in self._running.items() if ticket.cancelled]
        for ticket in left:
            self._deliver(ticket, Piece(reason="interrupted"))
        for slot in cancelled:
            ticket, text = self._leave(backend, slot)
            self._deliver(ticket, Piece(text.finish("interrupted"), reason=text.reason))
        while (next_one := self._next(backend)) is not None:
            ticket = next_one
            if not self._free:
                self._free, self._top = [self._top], self._top + 1
            slot, text = heapq.heappop(self._free), Text(ticket.request, self._tokenizer)
            ticket.queued = time.monotonic() - ticket.submitted
            self._running[slot] = ticket, text
            try:
                backend.begin(slot, text)
            except Exception as error:  # of this text alone
                heapq.heappush(self._free, slot)
                del self._running[slot]
                self._refuse(ticket, failure(error))

    def _next(self, backend: Backend) -> Ticket | None:
        """The text that is admitted next; None if none waits, or if the first has to wait on."""
        with self._lock:
            if not self._waiting:
                self._turns.clear()
            if not self._waiting or not backend.takes(self._waiting[0].request):
                return None
            ticket = heapq.heappop(self._waiting)
            self._turn_now = max(self._turn_now, ticket.order[1])
            return ticket

    def _turn(self, backend: Backend) -> None:
        if not self._running:
            return
        for new in backend.turn():
            if new.slot not in self._running:
                continue  # an earlier token of this turn ended the text
            ticket, text = self._running[new.slot]
            try:
                if new.error is not None:
                    raise RungError(new.error)
                before, shown = len(text.tokens), text.accept(new.tokens)
                if text.reason is None and (new.full or not new.tokens):
                    shown += text.finish("context" if new.tokens else "length")
            except Exception as error:  # of this text alone
                self._leave(backend, new.slot)
                self._refuse(ticket, failure(error))
                continue
            count, tokens, details = len(text.tokens) - before, new.tokens, new.details
            if count < len(tokens):
                tokens, details = tokens[:count], details and details[:count]
            if text.reason is not None:
                self._leave(backend, new.slot)
            queued = None if before else ticket.queued
            self._deliver(ticket, Piece(shown, tokens, details, text.reason, new.prompt, queued))

    def _refuse(self, ticket: Ticket, message: str) -> None:
        log.warning("a text of %s ended with an error: %s", ticket.request.call or "a run", message)
        self._deliver(ticket, Piece(error=message))

    def _leave(self, backend: Backend, slot: int) -> tuple[Ticket, Text]:
        backend.end(slot)
        heapq.heappush(self._free, slot)
        return self._running.pop(slot)

    def _fail(self, error: Exception) -> None:
        """All running texts end with the reason; the next ones get a new backend."""
        with self._lock:
            tickets = [ticket for ticket, _ in self._running.values()]
            if self._backend is None:
                tickets += self._waiting
                self._waiting = []
            self._running.clear()
            self._backend = None
            self.failures += 1
        calls = ", ".join(sorted({ticket.request.call for ticket in tickets} - {""})) or "runs"
        log.error("the engine failed while it wrote %d texts of %s", len(tickets), calls, exc_info=error)
        self.on_failure(error)
        for ticket in tickets:
            self._deliver(ticket, Piece(error=failure(error)))

    def _deliver(self, ticket: Ticket, piece: Piece) -> None:
        ticket.ended = ticket.ended or piece.last
        try:
            ticket.listener(piece)
        except Exception:  # a listener's mistake is not the engine's
            log.exception("a listener of %s failed; its text is cancelled", ticket.request.call or "a run")
            self.cancel(ticket)


class Stream:
    """Pieces of several requests in one queue, for a blocking reader: (key, piece)."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._pid = engine, os.getpid()
        self._pieces: queue.SimpleQueue[tuple[int, Piece]] = queue.SimpleQueue()
        self._tickets: dict[int, Submission] = {}

    def submit(self, key: int, request: Request) -> None:
        self._tickets[key] = self._engine.submit(request, lambda piece: self._pieces.put((key, piece)))

    def __iter__(self) -> Iterator[tuple[int, Piece]]:
        """Until all requests have ended; more may be submitted meanwhile."""
        while self._tickets:
            if os.getpid() != self._pid:
                raise RungError("the text was begun before a fork; request it again in the new process.")
            key, piece = self._pieces.get()
            if piece.last:
                del self._tickets[key]
            yield key, piece

    def cancel(self) -> None:
        """End the running ones; their last pieces are still delivered."""
        for ticket in self._tickets.values():
            ticket.cancel()


@atexit.register
def _close_all() -> None:
    # A thread that computes while the interpreter shuts down would crash the process.
    for engine in list(_engines):
        engine.close()


def _after_fork() -> None:
    # The threads of torch's pool exist only in the parent; a child that waited for them would hang.
    if "torch" in sys.modules:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_after_fork)
