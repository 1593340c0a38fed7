"""Continuous batching on a GPU: texts sit in rows of a session and are joined by others between graph replays.

A prompt is read by a reader, which has one or a few rows and a cache of its own; its keys, values and first token are
then copied into a free row while steps that were launched before still run. The host launches everything in order, so
that it knows which texts each launch had in its rows: a launch is noted with them, and its tokens are read later.

In 16 bits the rows follow the load: one text alone is written by the rungs for one row, and texts move into a session
of more rows when more come. In float32 there is one number of rows, and prompts are read one by one: the same kernels
compute a text whatever its company is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rung.errors import RungError
from rung.gpt2.batching.backend import Backend, Fresh
from rung.gpt2.batching.host import told
from rung.gpt2.batching.text import Text
from rung.gpt2.gpu.choice import Choice, Draw
from rung.gpt2.gpu.engine import Engine
from rung.gpt2.gpu.prefill import BUCKETS, Prefill
from rung.gpt2.gpu.session import MOST_STOPS, Session
from rung.gpt2.model import Transformer
from rung.gpt2.options import Chosen, plain

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)  # of the sessions that texts move between
READERS = (1, 4, 8)  # prompts that are read together
READ_TOKENS = 8192  # padding included, in one turn: what the texts under way wait for
AHEAD_SECONDS = 4e-3  # of work that is launched before the host has seen it; a new text waits behind it
MOST_AHEAD = 32
LONGEST = 1 << 30  # steps of a session until its counters begin again


@dataclass
class _Live:
    """A text in a row."""

    slot: int
    text: Text
    draw: Draw
    base: int  # tokens that were read before it wrote here
    wrote: int  # tokens that it had by then
    count: int = 0  # tokens that were seen since
    limit: int = 0  # how far the session's steps are with its last token
    offset: int = 0  # from the session's steps to its own
    row: int = -1


def _arrived(event: torch.cuda.Event | None) -> bool:
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]


class _Note(Protocol):
    """Something that was launched, and the tokens that come of it."""

    steps: int

    def take(self) -> list[tuple[_Live, tuple[Chosen, ...]]] | None:
        """The tokens that are there; None while the GPU has not come so far."""


@dataclass
class _First:
    """The first tokens of prompts that were read together."""

    lives: list[_Live]
    tokens: torch.Tensor  # (rows), on the host
    ready: torch.cuda.Event | None
    told: _Told | None
    steps: int = 1

    def take(self) -> list[tuple[_Live, tuple[Chosen, ...]]] | None:
        if not _arrived(self.ready) or (self.told and not _arrived(self.told.ready)):
            return None
        self.steps = 0
        tokens = self.tokens.tolist()
        return [(live, (_told(self.told, row, tokens[row]),)) for row, live in enumerate(self.lives)]


@dataclass
class _Steps:
    """Steps of a session, with the texts of its rows."""

    session: Session
    first: int
    steps: int
    lives: list[_Live | None]
    told: _Told | None = None

    def take(self) -> list[tuple[_Live, tuple[Chosen, ...]]] | None:
        count = min(self.session.seen - self.first, self.steps)
        if count <= 0 or (self.told and not _arrived(self.told.ready)):
            return None
        rows = self.session.block(self.first, count)
        self.first, self.steps = self.first + count, self.steps - count
        found = []
        for row, live in enumerate(self.lives):
            if live is not None and rows[row][0] >= 0:
                kept = rows[row][: rows[row].index(-1)] if rows[row][-1] < 0 else rows[row]
                found.append((live, tuple([_told(self.told, row, token) for token in kept])))
        return found


@dataclass
class _Told:
    """Log-probabilities of a step's tokens, on their way to the host."""

    values: torch.Tensor  # (rows), of the chosen tokens
    top: torch.Tensor | None  # (rows, k), the largest
    ids: torch.Tensor | None
    wanted: list[int | None]  # by row: how many of the likeliest; None: nothing at all
    ready: torch.cuda.Event | None

    def of(self, row: int, token: int) -> Chosen:
        wanted = self.wanted[row]
        if wanted is None:
            return plain(token)
        best: tuple[tuple[int, float], ...] = ()
        if wanted and self.top is not None and self.ids is not None:
            best = tuple(zip(self.ids[row, :wanted].tolist(), self.top[row, :wanted].tolist(), strict=True))
        return Chosen(token, float(self.values[row]), best)


def _told(told: _Told | None, row: int, token: int) -> Chosen:
    return told.of(row, token) if told else plain(token)


class _Reader:
    """Prompts into a cache of its own, and the first token behind each."""

    def __init__(self, engine: Engine, rows: int) -> None:
        c, where = engine.config, engine.operands["wte"].device
        self.rows = rows
        cache = (c.layers, rows, c.NH, c.context, c.HS)
        self.tensors = {
            **engine.operands,
            "lengths": torch.zeros(rows, dtype=torch.int32, device=where),
            "history": torch.zeros(rows, c.context, dtype=torch.int32, device=where),
            "k_cache": torch.zeros(cache, dtype=engine.real.torch, device=where),
            "v_cache": torch.zeros(cache, dtype=engine.real.torch, device=where),
            "logits": torch.empty(rows, c.vocabulary, device=where),
            "next": torch.zeros(rows, dtype=torch.int32, device=where),
            "steps": torch.zeros(1, dtype=torch.int32, device=where),
        }
        self._prefill = Prefill(c, self.tensors, rows, c.context)
        self.choice = Choice(self.tensors, rows, c.vocabulary, engine.device, engine.sample)

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        """Leaves the logits that follow each prompt; rows that are not asked for repeat the last one."""
        self._prefill.run([*prompts, *[prompts[-1]] * (self.rows - len(prompts))])


@dataclass
class _Bank:
    """A session and the texts of its rows."""

    session: Session
    rows: list[_Live | None] = field(default_factory=list)
    stale: set[int] = field(default_factory=set)  # rows whose text has left, while the session does not know it

    @property
    def lives(self) -> list[_Live]:
        return [live for live in self.rows if live is not None]


class GpuBackend(Backend):
    """Slots of a model on a GPU (or emulated)."""

    def __init__(self, transformer: Transformer, engine: Engine, slots: int) -> None:
        super().__init__()
        self.slots, self.context = slots, engine.config.context
        self._transformer, self._engine = transformer, engine
        self._cuda = engine.device == "cuda"
        self._exact = engine.real.name == "f32"
        self._banks: dict[int, _Bank] = {}
        self._readers: dict[int, _Reader] = {}
        self._bank: _Bank | None = None
        self._waiting: deque[Text] = deque()
        self._slot_of: dict[int, int] = {}  # id of a text -> its slot
        self._held: dict[int, Text] = {}  # slot -> its text
        self._notes: deque[_Note] = deque()
        self._prompts: dict[int, tuple[Chosen | None, ...]] = {}  # slot -> log-probabilities not yet handed out
        self._per_step = 1e-3  # seconds, as seen
        self._seen_at, self._taken = 0.0, 0

    # ---- slots ------------------------------------------------------------------------------------------------------

    def begin(self, slot: int, text: Text) -> None:
        if len(text.options.stop_tokens) > MOST_STOPS:
            stops = len(text.options.stop_tokens)
            raise RungError(f"{stops} stop tokens are more than the {MOST_STOPS} that a step looks for.")
        self._held[slot], self._slot_of[id(text)] = text, slot
        self._waiting.append(text)

    def end(self, slot: int) -> None:
        text = self._held.pop(slot)
        del self._slot_of[id(text)]
        self._prompts.pop(slot, None)
        if text in self._waiting:
            self._waiting.remove(text)
        for live in self._bank.lives if self._bank else ():
            if live.slot == slot:
                self._leave(live)

    def _leave(self, live: _Live) -> None:
        if self._bank is not None and live.row >= 0 and self._bank.rows[live.row] is live:
            self._bank.rows[live.row] = None
            self._bank.stale.add(live.row)

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[Fresh]:
        began = time.perf_counter()
        if self._cuda:
            torch.cuda.set_device(torch.cuda.current_device())  # the driver's context, for this thread
        with self._engine.lock:
            self._engine.arrive()
            fresh = self._read()
            read = time.perf_counter()
            self._launch()
        fresh += self._collect(wait=not fresh)
        ended = time.perf_counter()
        self.clock.prefill_seconds += read - began
        self.clock.decode_seconds += ended - read
        self._pace(ended)
        return fresh

    def _pace(self, now: float) -> None:
        """Learn how long a step takes from turns throughout which the GPU had work."""
        if self._seen_at and self._taken:
            self._per_step += 0.2 * ((now - self._seen_at) / self._taken - self._per_step)
        self._seen_at, self._taken = (now if self._notes else 0.0), 0

    # ---- prompts ----------------------------------------------------------------------------------------------------

    def _read(self) -> list[Fresh]:
        fresh, budget = [], READ_TOKENS
        while self._waiting and budget > 0:
            group = self._group()
            budget -= len(group) * _bucket(max(len(text.window(self.context)) for text in group), self.context)
            for text in group:
                if text.options.prompt_logprobs is not None and not text.tokens:
                    fresh += self._tell_prompt(text)
            rest = [text for text in group if text.options.max_new_tokens > 0]
            if rest:
                self._place(rest)
        return fresh

    def _group(self) -> list[Text]:
        """The next prompts that are read together: as many as wait and are padded alike."""
        most = 1 if self._exact else max(r for r in READERS if r <= max(1, len(self._waiting)))
        first = self._waiting.popleft()
        group, bucket = [first], _bucket(len(first.window(self.context)), self.context)
        for text in list(self._waiting):
            if len(group) == most:
                break
            if _bucket(len(text.window(self.context)), self.context) == bucket:
                self._waiting.remove(text)
                group.append(text)
        return group

    def _tell_prompt(self, text: Text) -> list[Fresh]:
        ids, slot = list(text.request.ids), self._slot_of[id(text)]
        logits = self._transformer.logits(torch.tensor([ids]))[0]
        found = (None, *told(logits[:-1], ids[1:], text.options.prompt_logprobs or 0))
        if text.options.max_new_tokens == 0:
            self.clock.prompt_tokens += len(ids)
            return [Fresh(slot, (), found)]
        self._prompts[slot] = found
        return []

    def _place(self, texts: list[Text]) -> None:
        windows = [text.window(self.context) for text in texts]
        vocabulary = self._engine.config.vocabulary
        lives = [
            _Live(self._slot_of[id(text)], text, _draw(text, vocabulary), len(window), len(text.tokens))
            for text, window in zip(texts, windows, strict=True)
        ]
        reader = self._reader(len(texts))
        reader.read(windows)
        self.clock.prompt_tokens += sum(len(w) for t, w in zip(texts, windows, strict=True) if not t.tokens)
        shown = self._tell(reader.tensors["logits"], lives, reader.rows)
        masked = self._mask(reader.tensors["logits"], lives)
        reader.choice.place(range(len(lives)), [(live.draw, live.wrote) for live in lives])
        reader.choice.greedy = all(live.draw.greedy for live in lives) and not masked
        reader.choice.run(picked=False)
        ending = shown(reader.tensors["next"]) if shown else None
        self._notes.append(_First(lives, *self._to_host(reader.tensors["next"]), ending))
        going_on = [
            (i, live)
            for i, live in enumerate(lives)
            if live.text.options.max_new_tokens > live.wrote + 1 and live.base < self.context
        ]
        if going_on:
            self._settle(reader, going_on)

    def _settle(self, reader: _Reader, lives: list[tuple[int, _Live]]) -> None:
        """From the reader's rows into free rows of the session that texts are written in."""
        bank = self._fit(len(lives))
        free = [row for row, live in enumerate(bank.rows) if live is None]
        session, where = bank.session, bank.session.where
        for (_, live), row in zip(lives, free, strict=False):
            live.row, bank.rows[row] = row, live
            bank.stale.discard(row)
            live.offset = live.wrote + 1 - session.enqueued
            live.limit = session.enqueued + live.text.options.max_new_tokens - live.wrote - 1
        to = torch.tensor([live.row for _, live in lives], device=where)
        of = torch.tensor([i for i, _ in lives], device=where)
        t, r = session.tensors, reader.tensors
        for i, live in lives:
            for name in ("k_cache", "v_cache"):
                t[name][:, live.row, :, : live.base] = r[name][:, i, :, : live.base]
        t["history"][to] = r["history"][of, : session.capacity]
        t["tokens"][to] = r["next"][of]
        rows = [live.row for _, live in lives]
        session.place(
            rows,
            [live.base for _, live in lives],
            [live.limit for _, live in lives],
            [live.text.options.stop_tokens for _, live in lives],
        )
        session.choice.place(rows, [(live.draw, live.offset) for _, live in lives], marks=False)
        if any(live.draw.marks is not None for _, live in lives):
            session.choice.marks[to] = reader.choice.marks[of]  # the first token is among them

    def _reader(self, prompts: int) -> _Reader:
        rows = next(r for r in READERS if r >= prompts)
        if rows not in self._readers:
            self._readers[rows] = _Reader(self._engine, rows)
        return self._readers[rows]

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def _fit(self, more: int) -> _Bank:
        """The session with room for so many more texts; those under way move into it."""
        current = self._bank
        count = more + (len(current.lives) if current else 0)
        if current is None or count > len(current.rows):
            return self._move(self._rows(count))
        if current.session.enqueued > LONGEST and not current.lives and not self._notes:
            current.session.open()
        return current

    def _rows(self, texts: int) -> int:
        if self._exact:
            return self.slots
        return min(self.slots, next((r for r in ROWS if r >= texts), self.slots))

    def _move(self, rows: int) -> _Bank:
        """Texts under way go on in the session of so many rows."""
        old = self._bank
        if rows not in self._banks:
            self._banks[rows] = _Bank(self._engine.open(rows), [None] * rows)
        new = self._bank = self._banks[rows]
        new.stale = set(range(rows))
        if old is None:
            return new
        a, b, lives = old.session, new.session, old.lives
        old.rows = [None] * len(old.rows)
        if not lives:
            return new
        of = torch.tensor([live.row for live in lives], device=a.where)
        for name in ("tokens", "lengths", "done", "history", "stop_tokens", "stops"):
            b.tensors[name][: len(lives)] = a.tensors[name][of]
        b.choice.marks[: len(lives)] = a.choice.marks[of]
        for row, live in enumerate(lives):
            used = live.base + a.enqueued + live.offset - live.wrote - 1
            for name in ("k_cache", "v_cache"):
                b.tensors[name][:, row, :, :used] = a.tensors[name][:, live.row, :, :used]
            live.limit += b.enqueued - a.enqueued
            live.offset += a.enqueued - b.enqueued
            live.row, new.rows[row] = row, live
            new.stale.discard(row)
        b.limit([live.limit for live in lives])
        b.choice.place(range(len(lives)), [(live.draw, live.offset) for live in lives], marks=False)
        return new

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        bank = self._bank
        if bank is None or not bank.lives:
            return
        if not self._exact and not self._waiting and 4 * len(bank.lives) <= len(bank.rows):
            bank = self._move(self._rows(len(bank.lives)))
        session = bank.session
        if bank.stale:
            session.leave(sorted(bank.stale))
            bank.stale.clear()
        needed = max(live.limit for live in bank.lives) - session.enqueued
        ahead = sum(note.steps for note in self._notes)
        most = max(2, min(MOST_AHEAD, int(AHEAD_SECONDS / self._per_step)))
        while needed > 0 and ahead < most:
            together = self._step(bank, min(needed, most - ahead))
            needed, ahead = needed - together, ahead + together

    def _step(self, bank: _Bank, most: int) -> int:
        """Launch some steps; how many."""
        session, lives = bank.session, bank.lives
        logits = session.tensors["logits"]
        first, rows = session.enqueued, list(bank.rows)
        masked = [live for live in lives if self._masked(live, first)]
        session.choice.greedy = all(live.draw.greedy for live in lives) and not masked
        wanted = any(live.text.options.logprobs or live.text.options.top_logprobs for live in lives)
        if not wanted and not masked:
            session.enqueue(most if most < session.work.steps else session.work.steps)
            self._notes.append(_Steps(session, first, session.enqueued - first, rows))
            return session.enqueued - first
        session.decode.run()
        shown = self._tell(logits, rows, len(rows))
        for live in masked:
            logits[live.row, list(live.text.options.stop_tokens)] = -torch.inf
        session.choice.run(picked=True)
        ending = shown(session.tensors["next"]) if shown else None
        session.publish()
        self._notes.append(_Steps(session, first, 1, rows, ending))
        return 1

    def _masked(self, live: _Live, step: int) -> bool:
        options = live.text.options
        return bool(options.stop_tokens) and step + live.offset < options.min_tokens

    def _mask(self, logits: torch.Tensor, lives: Sequence[_Live]) -> bool:
        masked = False
        for i, live in enumerate(lives):
            options = live.text.options
            if options.stop_tokens and live.wrote < options.min_tokens:
                logits[i, list(options.stop_tokens)] = -torch.inf
                masked = True
        return masked

    # ---- to the host ------------------------------------------------------------------------------------------------

    def _to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        if not self._cuda:
            return tensor.clone(), None
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return copy, ready

    def _tell(
        self, logits: torch.Tensor, lives: Sequence[_Live | None], rows: int
    ) -> Callable[[torch.Tensor], _Told] | None:
        """Log-probabilities of all rows, where one of the texts asks for them; before penalties and masks."""
        wanted: list[int | None] = [None] * rows
        for row, live in enumerate(lives):
            if live is not None and (live.text.options.logprobs or live.text.options.top_logprobs):
                wanted[row] = live.text.options.top_logprobs
        if all(w is None for w in wanted):
            return None
        logprobs = logits.log_softmax(-1)

        def of(tokens: torch.Tensor) -> _Told:
            most = max(w or 0 for w in wanted)
            best = logprobs.topk(min(most, logprobs.shape[-1])) if most else None
            values, ready = self._to_host(logprobs.gather(1, tokens.long()[:, None])[:, 0])
            if best is None:
                return _Told(values, None, None, wanted, ready)
            top, _ = self._to_host(best.values)
            ids, ready = self._to_host(best.indices)
            return _Told(values, top, ids, wanted, ready)

        return of

    def _collect(self, *, wait: bool) -> list[Fresh]:
        fresh: list[Fresh] = []
        looks = 0
        while self._notes:
            before = self._notes[0].steps
            taken = self._notes[0].take()
            if taken is None:
                if fresh or not wait:
                    break
                looks += 1
                self._look(looks)
                continue
            if isinstance(self._notes[0], _Steps):
                self._taken += before - self._notes[0].steps
            if self._notes[0].steps == 0:
                self._notes.popleft()
            for live, chosen in taken:
                fresh += self._fresh(live, chosen)
        return fresh

    def _fresh(self, live: _Live, chosen: tuple[Chosen, ...]) -> list[Fresh]:
        text, slot = live.text, live.slot
        if self._held.get(slot) is not text:
            return []  # it has left
        live.count += len(chosen)
        full = live.base + live.count > self.context
        if full:
            self._leave(live)
            if text.options.slide:
                self._waiting.appendleft(text)  # its newer half is read again
        return [Fresh(slot, chosen, self._prompts.pop(slot, None), full and not text.options.slide)]

    def _look(self, looks: int) -> None:
        # The GPU has work for a while; whoever else wants the interpreter shall have it.
        time.sleep(2e-5)
        if looks % 50_000 == 0 and torch.cuda.current_stream().query() and self._notes[0].take() is None:
            raise RungError("the GPU stopped before the tokens it was asked for were written.")


def _bucket(tokens: int, capacity: int) -> int:
    return min([*(b for b in BUCKETS if b >= tokens), capacity])


def _draw(text: Text, vocabulary: int) -> Draw:
    request, sampling = text.request, text.options.sampling
    marks = None
    if sampling.penalised:
        marks = torch.zeros(vocabulary, dtype=torch.int32)
        marks[list(request.ids)] = 1
        for token in text.tokens:
            marks[token] = (marks[token] | 1) + 2
    return Draw(sampling, request.seed, request.sample, marks)
