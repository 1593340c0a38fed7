"""Several engines as one: that of this process and those of workers, one on each of a machine's GPUs.

A worker's text is delivered when it has ended, so that if the worker dies, another one writes the text again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from subprocess import Popen

from rung.errors import RungError
from rung.models.batching import protocol
from rung.models.batching.backend import Clock
from rung.models.batching.engine import BatchEngine, Listener, Submission
from rung.models.batching.protocol import Cancel, Failed, Progress, Ready, Setup, Stop, Submit
from rung.models.batching.text import Piece, Request


@dataclass
class _Text:
    """A text assigned to a worker."""

    request: Request
    listener: Listener
    key: int
    at: _Worker | None = None
    pieces: list[Piece] = field(default_factory=list)

    def cancel(self) -> None:
        if self.at is not None:
            self.at.send(Cancel(self.key))


class _Worker:
    """A worker process, and its texts."""

    def __init__(self, setup: Setup) -> None:
        self.process: Popen[bytes]
        self.connection: Connection
        self.process, self.connection = protocol.start(setup)
        self.texts: dict[int, _Text] = {}
        self.slots = 0

    def ready(self) -> None:
        """Wait until its model is loaded."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            raise RungError("a worker died while loading; see its output above.") from None
        if isinstance(message, Failed):
            raise RungError(message.reason)
        assert isinstance(message, Ready)
        self.slots = message.slots

    def send(self, message: Submit | Cancel | Stop) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has died; its texts go to other engines
            self.connection.send(message)


class Fleet:
    """The engine of this process, and workers."""

    def __init__(self, own: BatchEngine, setups: Sequence[Setup]) -> None:
        self._own, self._setups = own, setups
        self._lock = threading.RLock()
        self._count, self._local = 0, 0
        self.alone = own.alone
        self.workers = [_Worker(setup) for setup in setups]
        try:
            own.prepare()
            for one in self.workers:
                one.ready()
        except BaseException:
            self.close()
            raise
        for one in self.workers:
            threading.Thread(target=self._listen, args=(one,), daemon=True).start()

    @property
    def clock(self) -> Clock:
        """The figure of this process's engine."""
        return self._own.clock

    def submit(self, request: Request, listener: Listener) -> Submission:
        """Submit a request to the least loaded engine."""
        with self._lock:
            self._count += 1
            return self._hand(_Text(request, listener, self._count))

    def _hand(self, text: _Text) -> Submission:
        free = min(self.workers, key=lambda one: len(one.texts) / one.slots, default=None)
        if free is None or self._local / self._own.slots <= len(free.texts) / free.slots:
            self._local += 1
            return self._own.submit(text.request, self._counted(text.listener))
        text.at, free.texts[text.key] = free, text
        free.send(Submit(text.key, text.request))
        return text

    def _counted(self, listener: Listener) -> Callable[[Piece], None]:
        def on_piece(piece: Piece) -> None:
            if piece.last:
                with self._lock:
                    self._local -= 1
            listener(piece)

        return on_piece

    def _listen(self, one: _Worker) -> None:
        try:
            while True:
                message = one.connection.recv()
                assert isinstance(message, Progress)
                for key, piece in message.pieces:
                    self._receive(one, key, piece)
        except (EOFError, OSError):
            pass
        with self._lock:
            self.workers.remove(one)
            unfinished, one.texts = list(one.texts.values()), {}
            for text in unfinished:
                text.pieces = []
                self._hand(text)

    def _receive(self, one: _Worker, key: int, piece: Piece) -> None:
        text = one.texts[key]
        text.pieces.append(piece)
        if not piece.last:
            return
        with self._lock:
            del one.texts[key]
        first = text.pieces[0]
        text.listener(
            Piece(
                "".join(p.text for p in text.pieces),
                [token for p in text.pieces for token in p.tokens],
                [one for p in text.pieces for one in p.details or ()] if first.details is not None else None,
                piece.reason,
                first.prompt,
                first.queued,
                piece.error,
            )
        )

    def close(self) -> None:
        """End the workers."""
        for one in self.workers:
            one.send(Stop())
