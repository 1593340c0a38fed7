"""Continuous batching on a GPU: texts occupy rows of a session, and others join between graph replays.

Prompts are read together in passes (batched_prefill.py), in separate caches; keys, values and first tokens are then
copied into free rows (row_transfer.py) while steps that were launched before still run. The host launches everything in
order and records which texts each launch had in its rows, so that its tokens can be read later. It never waits for the
GPU in between: a row is free for the next text as soon as the last step of its present text was launched.

In 16 bits the number of rows follows the load: a single text uses the rungs for one row, and texts move into a session
with more rows when more arrive. In float32 texts never move, and prompts are read one by one, so that the same kernels
compute a text whoever joins. A run of few texts has a session of its number of rows, no longer than its texts can get.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from rung.errors import RungError
from rung.models.batching.host_sampling import chosen_tokens
from rung.models.batching.text import Backend, NewTokens, Request, Text
from rung.models.gpu.batched_prefill import CHUNK, FirstTokens, Reader, bucket, passes, shapes
from rung.models.gpu.batched_prefill import ROWS as PROMPT_ROWS
from rung.models.gpu.beginnings import LEAST, Beginnings, Reading, padded
from rung.models.gpu.device_copy import sent, to_host
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.row_transfer import EMPTY_RECORD, RowTransfer, record
from rung.models.gpu.session import Session
from rung.models.gpu.token_sampler import Draw
from rung.models.options import MOST_STOPS, Chosen, Options, Prompt
from rung.models.sampling import NOT_FINITE, Sampling
from rung.models.tensors import integers
from rung.models.transformer import Transformer

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # rows of the sessions between which texts move
AHEAD_SECONDS = 4e-3  # seconds of work that is launched ahead of the host; a new text waits for it
MOST_AHEAD = 32
SPARE_STEPS = 4  # that a graph of several steps may leave unfinished when the next is launched
FEW_TEXTS = 8  # whose tokens are taken step by step; of more texts, when a launch is complete
GATHER_SECONDS = 4e-3  # seconds of steps between two prefills, so that prompts which arrive meanwhile are read together
RAMP = 24 * CHUNK  # tokens of prompts in a turn while more texts wait than are running
OWN = 8  # sessions of runs that are kept when idle
LEAST_TOKENS = 256  # of a row that grows; then twice as many, and so on
GROWN_AHEAD = 64  # tokens of a row beyond its text's: more than the steps that are launched in a turn
LONGEST = 1 << 30  # steps of a session after which no text joins until its counters are reset


@dataclass
class RunningText:
    """A text in a row."""

    slot: int
    text: Text
    draw: Draw
    base: int  # tokens that were read before it wrote here
    wrote: int  # number of its tokens by then
    count: int = 0  # tokens that were seen since
    limit: int = 0  # the session's step count at its last token
    offset: int = 0  # offset from the session's steps to its own
    at: _SessionRows | None = None
    row: int = -1  # while a row is assigned

    def leave(self) -> None:
        """Its row is free once all that was launched has run."""
        if self.at is not None:
            self.at.rows[self.row] = None
            self.at, self.row = None, -1


def _cached(live: RunningText) -> int:
    """Its tokens whose keys and values are in its row once all that was launched has run."""
    assert live.at is not None
    return live.base + live.at.session.enqueued + live.offset - live.wrote - 1


def _arrived(event: torch.cuda.Event | None) -> bool:
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]


Arrived = tuple[RunningText, Sequence[int], Sequence[Chosen] | None, str | None]  # tokens, their details, an error


class _Note(Protocol):
    """A launch, and its tokens."""

    steps: int
    active: list[RunningText | None]  # by row; None: this row's tokens are not needed

    def take(self) -> list[Arrived] | None:
        """The tokens that have arrived; None before that."""


@dataclass
class _First:
    """The first tokens of prompts that were read together."""

    active: list[RunningText | None]
    tokens: torch.Tensor  # (rows), on the host
    peaks: torch.Tensor  # (rows), the largest logits
    ready: torch.cuda.Event | None
    logprobs: _Logprobs | None
    steps: int = 1

    def take(self) -> list[Arrived] | None:
        if not _arrived(self.ready) or (self.logprobs and not _arrived(self.logprobs.ready)):
            return None
        self.steps = 0
        tokens, finite = self.tokens.tolist(), self.peaks.isfinite().tolist()
        return [
            (live, tokens[row : row + 1], _details(self.logprobs, row, tokens[row : row + 1]),
             None if finite[row] else NOT_FINITE)
            for row, live in enumerate(self.active) if live
        ]  # fmt: skip


@dataclass
class _Steps:
    """Steps of a session, with the texts of its rows."""

    session: Session
    first: int
    steps: int
    active: list[RunningText | None]
    whole: bool = False  # its tokens are taken together
    logprobs: _Logprobs | None = None

    def take(self) -> list[Arrived] | None:
        count = min(self.session.seen - self.first, self.steps)
        if count <= 0 or (self.logprobs and not _arrived(self.logprobs.ready)):
            return None
        if self.whole and count < self.steps:
            return None  # a turn costs the host as much for a token of each text as for eight
        rows = self.session.block(self.first, count)
        self.first, self.steps = self.first + count, self.steps - count
        found: list[Arrived] = []
        for row, live in enumerate(self.active):
            if live is not None and (tokens := rows[row])[0] >= 0:
                if tokens[-1] < 0:
                    tokens = tokens[: tokens.index(-1)]
                details = _details(self.logprobs, row, tokens) if self.logprobs else None
                error = NOT_FINITE if details and not math.isfinite(details[0].logprob or 0) else None
                found.append((live, tokens, details, error))
        return found


@dataclass
class _Logprobs:
    """Log-probabilities of a step's tokens, being copied to the host."""

    values: torch.Tensor  # (rows), of the chosen tokens
    top: torch.Tensor | None  # (rows, k), the largest
    ids: torch.Tensor | None
    counts: list[int | None]  # by row: how many of the most likely; None: none requested
    ready: torch.cuda.Event | None

    def of(self, row: int, token: int) -> Chosen:
        count = self.counts[row]
        if count is None:
            return Chosen(token)
        best: tuple[tuple[int, float], ...] = ()
        if count and self.top is not None and self.ids is not None:
            best = tuple(zip(self.ids[row, :count].tolist(), self.top[row, :count].tolist(), strict=True))
        return Chosen(token, float(self.values[row]), best)


def _details(logprobs: _Logprobs | None, row: int, tokens: Sequence[int]) -> list[Chosen] | None:
    if logprobs is None or logprobs.counts[row] is None:
        return None
    return [logprobs.of(row, token) for token in tokens]


@dataclass
class _SameWindow:
    """Texts that are read once, since the tokens to read are the same."""

    window: tuple[int, ...]
    texts: list[Text] = field(default_factory=list)


class _Shape(NamedTuple):
    """Of a pass over prompts."""

    rows: int
    length: int
    capacity: int | None = None  # tokens of its rows, if it reads the rest of prompts


@dataclass
class _SessionRows:
    """A session and the texts of its rows."""

    session: Session
    transfer: RowTransfer
    rows: list[RunningText | None]
    stale: set[int] = field(default_factory=set)  # rows whose text has left, not yet reported to the session

    @property
    def active(self) -> list[RunningText]:
        return [live for live in self.rows if live is not None]


class GpuBackend(Backend):
    """Slots of a model on a GPU (or emulated); with `exact`, the kernels do not depend on the number of texts. With
    `room`, rows are as long as the longest text needs, and all rows together have at most this many tokens: texts move
    to longer rows when they need them, and the newest wait and are read again if those are too many."""

    def __init__(
        self, transformer: Transformer | None, engine: GpuSteps, slots: int, *, exact: bool, room: int | None = None
    ) -> None:
        super().__init__()
        self._room = room
        self.slots, self.context = slots, engine.config.context
        self._transformer, self._engine = transformer, engine
        self._cuda = engine.device == "cuda"
        self._exact = exact
        self._banks: dict[tuple[int, int], _SessionRows] = {}  # by rows and capacity; the last used at the end
        self._readers: dict[_Shape, Reader] = {}
        self._beginnings: Beginnings | None = None
        self._firsts: dict[int, FirstTokens] = {}
        elements = engine.config.layers * max(CHUNK, self.context) * engine.config.NKV * engine.config.HS
        where = engine.operands["wte"].device
        self._caches = torch.zeros(2, elements, dtype=engine.real.torch, device=where).unbind()
        self._bank: _SessionRows | None = None
        self._waiting: deque[Text] = deque()
        self._slot_of: dict[int, int] = {}  # id of a text -> its slot
        self._texts: dict[int, Text] = {}  # slot -> its text
        self._notes: deque[_Note] = deque()
        self._prompts: dict[int, tuple[Chosen | None, ...]] = {}  # slot -> log-probabilities not yet handed out
        self._refused: dict[int, str] = {}  # slot -> why its text cannot go on
        self._per_step = 1e-3  # seconds, as seen
        self._since = 0  # steps that were launched since prompts were read
        self._seen_at, self._steps_taken = 0.0, 0
        self._gap_at = 0.0  # when a turn ended with work left to do

    # ---- slots ------------------------------------------------------------------------------------------------------

    def begin(self, slot: int, text: Text) -> None:
        if (stops := len(text.options.stop_tokens)) > MOST_STOPS:
            raise RungError(f"{stops} stop tokens are more than the {MOST_STOPS} that a step looks for.")
        _ = text.constraint  # a schema that cannot be followed is refused here
        self._texts[slot], self._slot_of[id(text)] = text, slot
        self._waiting.append(text)

    def end(self, slot: int) -> None:
        text = self._texts.pop(slot)
        del self._slot_of[id(text)]
        self._prompts.pop(slot, None)
        self._refused.pop(slot, None)
        if text in self._waiting:
            self._waiting.remove(text)
        for bank in self._banks.values():
            for live in bank.active:
                if live.slot == slot:
                    bank.stale.add(live.row)
                    live.leave()
        for other in self._notes:
            other.active = [None if live and live.slot == slot else live for live in other.active]

    @property
    def free_slots(self) -> int:
        return max(0, self.slots - self._busy - len(self._waiting))

    @property
    def _busy(self) -> int:
        """Rows that are occupied when all launched work is done."""
        return sum(len(bank.active) for bank in self._banks.values())

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[NewTokens]:
        began = time.perf_counter()
        if self._cuda:
            torch.cuda.set_device(torch.cuda.current_device())  # the driver's context, for this thread
        with self._engine.lock:
            if self._gap_at and not self._notes:
                self.clock.idle_seconds += began - self._gap_at
            fresh = self._read()
            read = time.perf_counter()
            self._launch()
        launched = time.perf_counter()
        fresh += self._collect(wait=not fresh)
        self.clock.admit_seconds += read - began
        self.clock.launch_seconds += launched - read
        self.clock.prefill_seconds += read - began
        self.clock.decode_seconds += launched - read
        self._gap_at = time.perf_counter() if self._busy or self._waiting else 0.0
        return fresh

    # ---- prompts ----------------------------------------------------------------------------------------------------

    def _read(self) -> list[NewTokens]:
        fresh: list[NewTokens] = []
        # Texts with equal windows are read once. With `exact` they also begin in one session.
        same: dict[tuple[object, ...], _SameWindow] = {}
        for text, window in self._next():
            if text.options.prompt_logprobs is not None and not text.tokens:
                fresh += self._tell_prompt(text)
            if text.options.max_new_tokens > 0:
                session = (text.request.rows, text.request.reach) if self._exact else ()
                same.setdefault((window, *session), _SameWindow(window)).texts.append(text)
        groups = list(same.values())
        readings = self._planned([group.window for group in groups])
        read = self._passes(readings)
        drawn = not all(text.options.sampling.greedy for group in groups for text in group.texts)
        firsts = {_together([groups[i] for i in which]) for _, which in read}
        with self._readers_for({shape for shape, _ in read}, firsts, drawn):
            if groups and not self._exact:
                self._fit(sum(len(group.texts) for group in groups), max(len(group.window) for group in groups))
            elif groups:
                self._rows_for(groups[0].texts)
        for shape, which in read:
            self.clock.passes += 1
            self.clock.padded_tokens += shape.rows * shape.length
            some = [groups[i] for i in which]
            self._place(self._reader(shape), some, [readings[i] for i in which], self._rows_for(some[0].texts))
        if self._beginnings is not None:
            self._beginnings.done(readings)
        return fresh

    def _planned(self, windows: Sequence[tuple[int, ...]]) -> list[Reading]:
        """How prompts are read. Beginnings are kept in 16 bits only, in which a text's bits depend on the kernels that
        the number of texts selects."""
        if self._beginnings is None and not self._exact and any(len(window) > LEAST for window in windows):
            self._beginnings = Beginnings(self._engine)
        return [Reading(w) for w in windows] if self._beginnings is None else self._beginnings.plan(windows)

    def _passes(self, readings: Sequence[Reading]) -> list[tuple[_Shape, list[int]]]:
        """The passes in their order, and which prompts they read."""
        alike: dict[tuple[int, int], list[int]] = {}  # by what comes first, and the length of what is left
        for i, r in enumerate(readings):
            length = padded(len(r.rest), self._beginnings.reach) if r.known and self._beginnings else 0
            alike.setdefault((r.after, length), []).append(i)
        found: list[tuple[_Shape, list[int]]] = []
        for (_, length), those in sorted(alike.items()):
            most = 1 if self._exact else PROMPT_ROWS[-1]
            capacity = None
            if length:
                assert self._beginnings is not None
                capacity = bucket(max(readings[i].past for i in those) + length, self._beginnings.reach)
                most = max(1, self._beginnings.tokens // capacity)
            for rows, width, which in passes([max(length, len(readings[i].rest)) for i in those], self.context, most):
                found.append((_Shape(rows, width, capacity), [those[i] for i in which]))
        return found

    def _rows_for(self, texts: Sequence[Text]) -> _SessionRows:
        """The session in which texts of one prompt begin. With `exact` it has as many rows as their run has texts, as
        long as they can get, if another run does not use them, or else all slots."""
        if not self._exact:
            assert self._bank is not None
            return self._bank
        own = texts[0].request.rows
        if own is not None and own <= self.slots:
            bank = self._open(own, texts[0].request.reach)
            if bank.rows.count(None) >= len(texts):
                return bank
        return self._open(self.slots)

    def _next(self) -> list[tuple[Text, tuple[int, ...]]]:
        """The texts whose prompts are read now, in the order in which they came, and their windows."""
        busy, texts = self._busy, list[tuple[Text, tuple[int, ...]]]()
        worn = [bank.session for bank in self._banks.values() if bank.session.enqueued > LONGEST]
        if worn and (busy or self._notes):
            return texts  # the counters are reset when the running texts have ended
        for session in worn:
            session.open()
        most = min(len(self._waiting), self.slots - busy)  # a text that slid may wait for a row
        few = most < busy
        if few and self._since * self._per_step < GATHER_SECONDS:
            return texts
        budget, prompts = CHUNK if few else RAMP, set[tuple[int, ...]]()
        longest = self._longest
        while len(texts) < most and budget > 0:
            window = self._waiting[0].window(self.context)
            longest = max(longest, len(window))
            count = busy + len(texts) + 1
            if count > 1 and not self._has_room(count, longest):
                break
            if window not in prompts:
                there = 0 if self._beginnings is None else self._beginnings.known(window)
                budget -= bucket(len(window) - there, self.context)
                prompts.add(window)
            texts.append((self._waiting.popleft(), window))
        if texts:
            self._since = 0
        return texts

    def _tell_prompt(self, text: Text) -> list[NewTokens]:
        ids, slot = list(text.request.ids), self._slot_of[id(text)]
        assert self._transformer is not None
        logits = self._transformer.logits(integers([ids]))[0]
        found = (None, *chosen_tokens(logits[:-1], ids[1:], text.options.prompt_logprobs or 0))
        if text.options.max_new_tokens == 0:
            self.clock.prompt_tokens += len(ids)
            return [NewTokens(slot, prompt=found)]
        self._prompts[slot] = found
        return []

    def _place(
        self, reader: Reader, groups: Sequence[_SameWindow], readings: Sequence[Reading], bank: _SessionRows
    ) -> None:
        if self._beginnings is not None:
            self._beginnings.bring(readings, reader)
        reader.read([group.window for group in groups], [r.past for r in readings])
        if self._beginnings is not None:
            self._beginnings.keep(readings, reader)
            self.clock.shared_tokens += sum(r.past for r in readings)
        vocabulary, active, of = self._engine.config.vocabulary, list[RunningText](), list[int]()
        for row, group in enumerate(groups):
            for text in group.texts:
                draw, length, wrote = _draw(text, vocabulary), len(group.window), len(text.tokens)
                active.append(RunningText(self._slot_of[id(text)], text, draw, length, wrote))
                of.append(row)
                self.clock.prompt_tokens += 0 if wrote else length
        going_on = [live.text.options.max_new_tokens > live.wrote + 1 and live.base < self.context for live in active]
        free = iter([row for row, live in enumerate(bank.rows) if live is None])
        records = [
            self._seat(bank, of[i], i, live, next(free)) if goes else EMPTY_RECORD
            for i, (live, goes) in enumerate(zip(active, going_on, strict=True))
        ]
        first = self._first_tokens(_together(groups))
        state = first.follow(reader, of, [(live.draw, live.wrote) for live in active], records)
        shown = self._measure_logprobs(state["logits"], active, first.rows)
        peaks = state["logits"].amax(1)  # NaN if a logit is
        masked = self._mask(state["logits"], active)
        first.choice.greedy = all(live.draw.greedy for live in active) and not masked
        first.choice.run(picked=False)
        ending = shown(state["next"]) if shown else None
        tokens, _ = to_host(state["next"])
        self._notes.append(_First(list(active), tokens, *to_host(peaks), ending))
        if any(going_on):
            bank.transfer.bring(state, first.records)

    def _seat(self, bank: _SessionRows, of: int, drawn: int, live: RunningText, row: int) -> list[int]:
        """A text of the prompt in the reader's row `of`, its first token in row `drawn`, continues in a free row."""
        live.at, live.row, bank.rows[row] = bank, row, live
        bank.stale.discard(row)
        done = bank.session.enqueued
        live.offset = live.wrote + 1 - done
        live.limit = done + min(live.text.options.max_new_tokens - live.wrote - 1, self.context - live.base)
        stops, marked = live.text.options.stop_tokens, live.draw.marks is not None
        return record(of, row, live.base, live.limit, live.offset, stops, marked=marked, drawn=drawn)

    def _reader(self, shape: _Shape) -> Reader:
        if shape not in self._readers:
            caches = self._caches
            if shape.capacity is not None:
                assert self._beginnings is not None
                caches = self._beginnings.caches
            self._readers[shape] = Reader(self._engine, shape.rows, shape.length, caches, shape.capacity)
        return self._readers[shape]

    def _first_tokens(self, rows: int) -> FirstTokens:
        if rows not in self._firsts:
            self._firsts[rows] = FirstTokens(self._engine, rows)
        return self._firsts[rows]

    @contextlib.contextmanager
    def _readers_for(self, shapes: set[_Shape], firsts: set[int], drawn: bool) -> Iterator[None]:
        """While the block opens sessions, a thread makes readers: their programs are compiled at the same time."""
        new, unseen = shapes - self._readers.keys(), firsts - self._firsts.keys()
        device = torch.cuda.current_device() if self._cuda else None
        mode = torch.is_inference_mode_enabled()

        def make() -> None:
            if device is not None:
                torch.cuda.set_device(device)  # the driver's context, for this thread
            with torch.inference_mode(mode):
                for shape in new:
                    self._reader(shape)
                for together in unseen:
                    first = self._first_tokens(together)
                    if drawn:
                        first.choice.prepare()

        if not new and not unseen:
            yield
            return
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(make)
            yield
            made.result()

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def _fit(self, more: int, longest: int) -> None:
        """The session has room for this many further texts, of at most `longest` tokens so far."""
        current = self._bank
        count, reach = (len(current.active) if current else 0) + more, self._reach(max(longest, self._longest))
        if current is None or count > len(current.rows) or self._engine.capacity(reach) > current.session.capacity:
            self._move(self._rows(count), reach)

    # Rows that grow. Without `room` a row has the context's length.

    def _reach(self, tokens: int) -> int:
        """The length of rows for texts of up to so many tokens so far; 0: the context's."""
        if self._room is None:
            return 0
        return min(self.context, max(LEAST_TOKENS, 1 << (tokens + GROWN_AHEAD - 1).bit_length()))

    @property
    def _longest(self) -> int:
        """Tokens of the longest running text, with the steps that were launched."""
        if self._room is None or self._bank is None:
            return 0  # nothing depends on it
        return max((_cached(live) for live in self._bank.active), default=0)

    def _has_room(self, texts: int, longest: int) -> bool:
        return self._room is None or self._taken(self._rows(texts), self._reach(longest)) <= self._room

    def _taken(self, rows: int, capacity: int) -> float:
        """What a session takes of the room, in tokens of 16 bits."""
        HS = self._engine.config.HS
        return rows * capacity * ((HS + 4) / (2 * HS) if self._engine.eight_bits(rows) else 1)

    def _grow(self) -> None:
        """Texts whose rows are nearly full move to longer rows; if these are too many, the newest wait."""
        bank = self._bank
        if self._room is None or bank is None:
            return
        while (active := bank.active) and self._needed(active) > bank.session.capacity:
            if len(active) > 1 and not self._has_room(len(active), self._longest):
                self._set_back(bank)
                continue
            reach = self._reach(self._longest)
            if self._engine.capacity(reach) > bank.session.capacity:
                self._move(self._rows(len(active)), reach)
            return

    def _needed(self, active: Sequence[RunningText]) -> int:
        """Tokens of a row after the steps that are launched until this is asked again."""
        enqueued = max(live.at.session.enqueued for live in active if live.at is not None)  # of one session
        return max(_cached(live) + min(GROWN_AHEAD, live.limit - enqueued) for live in active)

    def _set_back(self, bank: _SessionRows) -> None:
        """The newest text waits, and is read again with the tokens that have been seen."""
        running = {live.slot: live for live in bank.active}
        newest = running[next(slot for slot in reversed(self._texts) if slot in running)]
        bank.stale.add(newest.row)
        newest.leave()
        for note in self._notes:
            note.active = [None if live is newest else live for live in note.active]
        self._waiting.appendleft(newest.text)

    def _rows(self, texts: int) -> int:
        return min(self.slots, next((r for r in ROWS if r >= texts), self.slots))

    def _open(self, rows: int, reach: int = 0) -> _SessionRows:
        key = rows, self._engine.capacity(reach)
        bank = self._banks.pop(key, None)
        if bank is None:
            used = {id(note.session) for note in self._notes if isinstance(note, _Steps)}
            idle = [k for k, b in self._banks.items() if not b.active and id(b.session) not in used]
            own = [(rows, capacity) for rows, capacity in idle if capacity < self.context]
            if self._room is None:
                for oldest in own[: max(0, len(own) + (key[1] < self.context) - OWN)]:
                    del self._banks[oldest]
            else:
                self._forget(idle, self._taken(*key))
            session = self._engine.open(rows, reach)
            bank = _SessionRows(session, RowTransfer(session), [None] * rows, set(range(rows)))
        self._banks[key] = bank
        return bank

    def _forget(self, idle: Sequence[tuple[int, int]], tokens: float) -> None:
        """Idle sessions, the oldest first, until there is room for a further one of so many tokens."""
        assert self._room is not None
        for oldest in idle:
            if sum(self._taken(*key) for key in self._banks) + tokens <= self._room:
                return
            del self._banks[oldest]

    def _move(self, rows: int, reach: int) -> _SessionRows:
        """Running texts continue in the session with this many rows of this length."""
        old = self._bank
        new = self._bank = self._open(rows, reach)
        new.stale = set(range(rows))
        if old is None:
            return new
        a, b, active = old.session, new.session, old.active
        old.rows = [None] * len(old.rows)
        records = []
        for row, live in enumerate(active):
            used = _cached(live)
            live.limit += b.enqueued - a.enqueued
            live.offset += a.enqueued - b.enqueued
            stops = live.text.options.stop_tokens
            marked = live.draw.marks is not None
            records.append(record(live.row, row, used, live.limit, live.offset, stops, marked=marked))
            live.at, live.row, new.rows[row] = new, row, live
            new.stale.discard(row)
        if records:
            new.transfer.move(old.transfer.state, records)
        return new

    def warm(self) -> None:
        """Capture the graphs for all numbers and lengths of texts, so that none waits for a capture."""
        with self._engine.lock, torch.inference_mode():
            self._engine.arrive()
            for rows in [self.slots] if self._exact else sorted({self._rows(r) for r in ROWS}):
                bank = self._open(rows, self._reach(0))
                session = bank.session
                bank.transfer.leave(range(rows))
                for greedy in (True, False):
                    session.choice.greedy = greedy
                    for together in {1, session.work.steps} if self._cuda else ():
                        session.graph(together)
            prompts = shapes(self.context, 1 if self._exact else PROMPT_ROWS[-1])
            for rows, length in prompts:
                reader = self._reader(_Shape(rows, length))
                reader.tensors["lengths"].fill_(1)
                reader.replay()
            for rows in sorted({rows for rows, _ in prompts}):
                first = self._first_tokens(rows)
                for greedy in (True, False):
                    first.choice.greedy = greedy
                    first.choice.run(picked=False)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        current = self._bank
        if current and current.active and not self._waiting and 4 * len(current.active) <= len(current.rows):
            self._move(self._rows(len(current.active)), self._reach(self._longest))
        self._grow()
        for bank in [bank for bank in self._banks.values() if bank.active]:
            self._launch_steps(bank)

    def _launch_steps(self, bank: _SessionRows) -> None:
        session = bank.session
        # A schema's next token depends on those before it, which the host has to see.
        by_schema = any(live.text.options.schema is not None for live in bank.active)
        if by_schema and self._notes:
            return
        if bank.stale:
            bank.transfer.leave(sorted(bank.stale))
            bank.stale.clear()
        ahead = session.ahead
        most = max(2, min(MOST_AHEAD, int(AHEAD_SECONDS / self._per_step)))
        # Many steps as one graph, if at least as many remain; the GPU still has some while the host launches the next.
        least = session.work.steps if most >= session.work.steps else 1
        most = max(most, least + SPARE_STEPS)
        while active := bank.active:
            needed = max(live.limit for live in active) - session.enqueued
            if most - ahead < min(least, needed):
                break
            ahead += self._step(bank, min(needed, most - ahead))
            if by_schema:
                break

    def _step(self, bank: _SessionRows, most: int) -> int:
        """Launch some steps; returns how many."""
        session, active = bank.session, bank.active
        whole = len(active) > FEW_TEXTS
        first, rows = session.enqueued, list(bank.rows)
        masked = [
            one for one in active
            if one.text.options.logit_bias or one.text.options.schema is not None or self._early(one, first)
        ]  # fmt: skip
        session.choice.greedy = all(live.draw.greedy for live in active) and not masked
        with_logprobs = any(live.text.options.tells_logprobs for live in active)
        if with_logprobs or masked:
            logprobs = self._step_in_parts(session, rows, masked, first)
            self._notes.append(_Steps(session, first, 1, rows, whole, logprobs))
        else:
            session.enqueue(min(most, session.work.steps))
            self._notes.append(_Steps(session, first, session.enqueued - first, rows, whole))
        steps = session.enqueued - first
        self._since += steps
        self.clock.steps += steps
        self.clock.row_steps += steps * len(active)
        for live in active:
            if live.limit <= session.enqueued:  # its last step was launched
                live.leave()
        return steps

    def _step_in_parts(
        self, session: Session, rows: list[RunningText | None], masked: list[RunningText], step: int
    ) -> _Logprobs | None:
        """A step run part by part, if more than its tokens is needed."""
        logits = session.tensors["logits"]
        session.decode.run()
        shown = self._measure_logprobs(logits, rows, len(rows))
        for live in masked:
            self._change(logits[live.row], live, first_tokens=self._early(live, step))
        session.choice.run(picked=True)
        ending = shown(session.tensors["next"]) if shown else None
        session.publish()
        return ending

    def _early(self, live: RunningText, step: int) -> bool:
        """Whether no stop token may be chosen in this step."""
        options = live.text.options
        return bool(options.stop_tokens) and step + live.offset < options.min_tokens

    def _mask(self, logits: torch.Tensor, active: Sequence[RunningText]) -> bool:
        """Change the logits of rows whose options say so."""
        changed = [(i, live) for i, live in enumerate(active) if live.text.options.changes_logits]
        for i, live in changed:
            self._change(logits[i], live, first_tokens=live.wrote < live.text.options.min_tokens)
        return bool(changed)

    def _change(self, logits: torch.Tensor, live: RunningText, *, first_tokens: bool) -> None:
        """Biases, what a schema forbids, and no stop token among the first tokens, in a row (V) of logits."""
        options, constraint = live.text.options, live.text.constraint
        for token, bias in options.logit_bias:
            logits[token] += bias
        if constraint is not None:
            try:
                logits.copy_(constraint.forbid(logits[None])[0])
            except RungError as error:  # of this text alone
                self._refused[live.slot] = str(error)
        if first_tokens and options.stop_tokens:
            logits[list(options.stop_tokens)] = -torch.inf

    # ---- to the host ------------------------------------------------------------------------------------------------

    def _measure_logprobs(
        self, logits: torch.Tensor, active: Sequence[RunningText | None], rows: int
    ) -> Callable[[torch.Tensor], _Logprobs] | None:
        """Log-probabilities of all rows, if one of the texts requests them; before penalties and masks."""
        counts: list[int | None] = [None] * rows
        for row, live in enumerate(active):
            if live is not None and live.text.options.tells_logprobs:
                counts[row] = live.text.options.top_logprobs
        if all(w is None for w in counts):
            return None
        logprobs = logits.log_softmax(-1)

        def of(tokens: torch.Tensor) -> _Logprobs:
            most = max(w or 0 for w in counts)
            best = logprobs.topk(min(most, logprobs.shape[-1])) if most else None
            places = tokens.long().clamp(0, logprobs.shape[1] - 1)  # of logits that are no numbers none is the largest
            values, ready = to_host(logprobs.gather(1, places[:, None])[:, 0])
            if best is None:
                return _Logprobs(values, None, None, counts, ready)
            top, _ = to_host(best.values)
            ids, ready = to_host(best.indices)
            return _Logprobs(values, top, ids, counts, ready)

        return of

    def _collect(self, *, wait: bool) -> list[NewTokens]:
        fresh: list[NewTokens] = []
        polls, mark = 0, time.perf_counter()
        while self._notes:
            note = self._notes[0]
            before, tokens = note.steps, note.take()
            if tokens is None:
                if fresh or not wait or any(b.session.ahead <= SPARE_STEPS and b.active for b in self._banks.values()):
                    break
                polls += 1
                self._pause(polls)
                continue
            if note.steps == 0:
                self._notes.popleft()
            now = time.perf_counter()
            if isinstance(note, _Steps):
                self._steps_taken += before - note.steps
                self.clock.decode_seconds += now - mark
            else:
                self._seen_at = 0.0  # the GPU has read prompts since then
                self.clock.prefill_seconds += now - mark
            mark = now
            fresh += [self._fresh(*arrived) for arrived in tokens]
        self._pace(mark)
        return fresh

    def _pace(self, now: float) -> None:
        """Measure the time of a step from steps between which the GPU did nothing else."""
        if self._seen_at and self._steps_taken:
            self._per_step += 0.2 * ((now - self._seen_at) / self._steps_taken - self._per_step)
        self._seen_at, self._steps_taken = (now if self._notes else 0.0), 0

    def _fresh(
        self, live: RunningText, tokens: Sequence[int], details: Sequence[Chosen] | None, error: str | None
    ) -> NewTokens:
        text, slot = live.text, live.slot
        error = error or self._refused.get(slot)
        if error is not None:
            return NewTokens(slot, error=error)
        if text.constraint is not None:
            for token in tokens:
                text.constraint.add(token)
        live.count += len(tokens)
        full = live.base + live.count > self.context
        if full:
            live.leave()
            if text.options.slide:
                self._waiting.appendleft(text)  # its newer half is read again
        return NewTokens(slot, tokens, details, self._prompts.pop(slot, None), full and not text.options.slide)

    def _pause(self, polls: int) -> None:
        # The GPU has enough work for a while; other Python threads may run.
        time.sleep(2e-5)
        if polls % 50_000 == 0 and torch.cuda.current_stream().query() and self._notes[0].take() is None:
            raise RungError("the GPU stopped before the requested tokens were written.")


def _together(groups: Sequence[_SameWindow]) -> int:
    """The rows in which the first tokens of these texts are chosen together."""
    return 1 << (sum(len(group.texts) for group in groups) - 1).bit_length()


def _draw(text: Text, vocabulary: int) -> Draw:
    request, sampling = text.request, text.options.sampling
    marks = None
    if sampling.penalised:
        marks = torch.zeros(vocabulary, dtype=torch.int32, device="cpu")
        marks[list(request.ids)] = 1
        for token in text.tokens:
            marks[token] = (marks[token] | 1) + 2
    return Draw(sampling, request.seed, request.sample, marks)


def write_texts(
    backend: Backend,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    stop_tokens: Sequence[int] = (),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Iterator[list[int]]:
    """Texts of tokens, without an engine's thread: for each step the tokens of all texts, -1 where one has ended."""
    made: list[list[int]] = [[] for _ in prompts]
    reach = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    texts, sampling = [], sampling or Sampling(temperature=0)
    options = {n: Options(sampling=sampling, max_new_tokens=n, stop_tokens=tuple(stop_tokens)) for n in set(limits)}
    for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        asked = Request(Prompt("", tuple(prompt)), options[limit], seed, row, rows=len(prompts), reach=reach)
        texts.append(Text(asked, None))
        backend.begin(row, texts[-1])
    running, shown = dict(enumerate(texts)), 0
    while running or any(len(tokens) > shown for tokens in made):
        while running and any(len(made[row]) <= shown for row in running):
            for new in backend.turn():
                if new.slot not in running:
                    continue
                if new.error is not None:
                    raise RungError(new.error)
                text = running[new.slot]
                for token in new.tokens:
                    if text.reason is None:
                        made[new.slot].append(token)  # a stop token, too
                        text.accept((token,))
                if text.reason is not None or new.full:
                    backend.end(new.slot)
                    del running[new.slot]
        if any(len(tokens) > shown for tokens in made):
            yield [tokens[shown] if len(tokens) > shown else -1 for tokens in made]
            shown += 1


def read_into(engine: GpuSteps, session: Session, prompts: Sequence[Sequence[int]]) -> None:
    """The prompts' keys, values and likeliest next tokens in the first rows of an open session."""
    c, draw, transfer = engine.config, Draw(Sampling(temperature=0), 0, 0), RowTransfer(session)
    length, first = bucket(max(map(len, prompts)), c.context), FirstTokens(engine, 1)
    flat = torch.zeros(2, c.layers * length * c.C, dtype=engine.real.torch, device=session.where)
    reader = Reader(engine, 1, length, flat.unbind())
    for row, prompt in enumerate(prompts):
        reader.read([prompt])
        state = first.follow(reader, [0], [(draw, 0)], [record(0, row, len(prompt), 1 << 30, 0, ())])
        first.choice.run(picked=False)
        transfer.bring(state, first.records)


def logits_after(engine: GpuSteps, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits (rows, T, V) that follow each token of `texts`, which are read token by token after the prompts."""
    session = engine.open(len(prompts), max(len(p) + len(t) for p, t in zip(prompts, texts, strict=True)))
    read_into(engine, session, prompts)
    found, t = [], session.tensors
    for at, tokens in enumerate(zip(*texts, strict=True)):
        sent(tokens, t["tokens"])
        for row, prompt in enumerate(prompts):
            t["history"][row, len(prompt) + at] = tokens[row]  # rungs without a cache read it there again
        sent([len(prompt) + at for prompt in prompts], t["lengths"])
        t["done"].zero_()
        session.step(logits=True)
        found.append(t["logits"].clone())
    return torch.stack(found, 1)
