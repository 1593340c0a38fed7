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
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rung.errors import RungError
from rung.models.batching.host_sampling import chosen_tokens
from rung.models.batching.text import Backend, NewTokens, Text
from rung.models.gpu.batched_prefill import CHUNK, FirstTokens, Reader, bucket, passes, shapes
from rung.models.gpu.batched_prefill import ROWS as PROMPT_ROWS
from rung.models.gpu.beginnings import LEAST, Beginnings, Reading, padded
from rung.models.gpu.device_copy import to_host
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.launched import (
    FirstLaunch,
    Launch,
    Logprobs,
    RunningText,
    SessionRows,
    StepLaunch,
    measure_logprobs,
)
from rung.models.gpu.row_transfer import EMPTY_RECORD, record
from rung.models.gpu.session import Session
from rung.models.gpu.session_table import ROWS, SessionTable
from rung.models.gpu.token_sampler import Draw
from rung.models.options import MOST_STOPS, Chosen
from rung.models.tensors import integers
from rung.models.transformer import Transformer

AHEAD_SECONDS = 4e-3  # seconds of work that is launched ahead of the host; a new text waits for it
MOST_AHEAD = 32
SPARE_STEPS = 4  # that a graph of several steps may leave unfinished when the next is launched
FEW_TEXTS = 8  # whose tokens are taken step by step; of more texts, when a launch is complete
GATHER_SECONDS = 4e-3  # seconds of steps between two prefills, so that prompts which arrive meanwhile are read together
RAMP = 24 * CHUNK  # tokens of prompts in a turn while more texts wait than are running
LONGEST = 1 << 30  # steps of a session after which no text joins until its counters are reset


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


class GpuBackend(Backend):
    """Slots of a model on a GPU (or emulated); with `exact`, the kernels do not depend on the number of texts. With
    `room`, rows are as long as the longest text needs, and all rows together have at most this many tokens: texts move
    to longer rows when they need them, and the newest wait and are read again if those are too many."""

    def __init__(
        self, transformer: Transformer | None, engine: GpuSteps, slots: int, *, exact: bool, room: int | None = None
    ) -> None:
        super().__init__()
        self.slots, self.context = slots, engine.config.context
        self._transformer, self._engine = transformer, engine
        self._cuda = engine.device == "cuda"
        self._exact = exact
        self._sessions = SessionTable(engine, slots, self.context, room, self._used, self._set_back)
        self._readers: dict[_Shape, Reader] = {}
        self._beginnings: Beginnings | None = None
        self._firsts: dict[int, FirstTokens] = {}
        elements = engine.config.layers * max(CHUNK, self.context) * engine.config.NKV * engine.config.HS
        where = engine.operands["wte"].device
        self._caches = torch.zeros(2, elements, dtype=engine.real.torch, device=where).unbind()
        self._waiting: deque[Text] = deque()
        self._slot_of: dict[int, int] = {}  # id of a text -> its slot
        self._texts: dict[int, Text] = {}  # slot -> its text
        self._live: dict[int, RunningText] = {}  # slot -> its text since it was read last
        self._launches: deque[Launch] = deque()
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
        live = self._live.pop(slot, None)
        if live is not None:
            live.drop()
        if live is None or live.text.options.slide:
            with contextlib.suppress(ValueError):  # it need not wait
                self._waiting.remove(text)

    @property
    def free_slots(self) -> int:
        return max(0, self.slots - self._sessions.busy - len(self._waiting))

    def _used(self) -> set[int]:
        """Sessions with steps whose tokens have not been seen."""
        return {id(launch.session) for launch in self._launches if isinstance(launch, StepLaunch)}

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[NewTokens]:
        began = time.perf_counter()
        if self._cuda:
            torch.cuda.set_device(torch.cuda.current_device())  # the driver's context, for this thread
        with self._engine.lock:
            if self._gap_at and not self._launches:
                self.clock.idle_seconds += began - self._gap_at
            fresh, admitted = self.schedule()
            self.run(admitted, began)
        fresh += self.postprocess(wait=not fresh)
        self._gap_at = time.perf_counter() if self._sessions.busy or self._waiting else 0.0
        return fresh

    def schedule(self) -> tuple[list[NewTokens], list[_SameWindow]]:
        """The texts whose prompts are read in this turn, texts with equal windows together; and the log-probabilities
        of prompts that need nothing else."""
        fresh: list[NewTokens] = []
        same: dict[tuple[object, ...], _SameWindow] = {}
        for text, window in self._next():
            if text.options.prompt_logprobs is not None and not text.tokens:
                fresh += self._tell_prompt(text)
            if text.options.max_new_tokens > 0:
                # With `exact` texts with equal windows also begin in one session.
                session = (text.request.rows, text.request.reach) if self._exact else ()
                same.setdefault((window, *session), _SameWindow(window)).texts.append(text)
        return fresh, list(same.values())

    def run(self, admitted: Sequence[_SameWindow], began: float) -> None:
        """Launch the passes that read prompts, and then steps."""
        self._read(admitted)
        read = time.perf_counter()
        self._launch()
        launched = time.perf_counter()
        self.clock.admit_seconds += read - began
        self.clock.launch_seconds += launched - read
        self.clock.prefill_seconds += read - began
        self.clock.decode_seconds += launched - read

    # ---- prompts ----------------------------------------------------------------------------------------------------

    def _read(self, groups: Sequence[_SameWindow]) -> None:
        if not groups:
            return
        readings = self._planned([group.window for group in groups])
        read = self._passes(readings)
        drawn = not all(text.options.sampling.greedy for group in groups for text in group.texts)
        firsts = {_together([groups[i] for i in which]) for _, which in read}
        with self._readers_for({shape for shape, _ in read}, firsts, drawn):
            if self._exact:
                self._session_for(groups[0].texts)
            else:
                self._sessions.fit(
                    sum(len(group.texts) for group in groups), max(len(group.window) for group in groups)
                )
        for shape, which in read:
            self.clock.passes += 1
            self.clock.padded_tokens += shape.rows * shape.length
            some = [groups[i] for i in which]
            self._place(self._reader(shape), some, [readings[i] for i in which], self._session_for(some[0].texts))
        if self._beginnings is not None:
            self._beginnings.done(readings)

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

    def _session_for(self, texts: Sequence[Text]) -> SessionRows:
        """The session in which texts of one prompt begin. With `exact` it has as many rows as their run has texts, as
        long as they can get, if another run does not use them, or else all slots."""
        if not self._exact:
            assert self._sessions.current is not None
            return self._sessions.current
        own = texts[0].request.rows
        if own is not None and own <= self.slots:
            bank = self._sessions.open(own, texts[0].request.reach)
            if len(bank.rows) - bank.count >= len(texts):
                return bank
        return self._sessions.open(self.slots)

    def _next(self) -> list[tuple[Text, tuple[int, ...]]]:
        """The texts whose prompts are read now, in the order in which they came, and their windows."""
        busy, texts = self._sessions.busy, list[tuple[Text, tuple[int, ...]]]()
        worn = [bank.session for bank in self._sessions.opened.values() if bank.session.enqueued > LONGEST]
        if worn and (busy or self._launches):
            return texts  # the counters are reset when the running texts have ended
        for session in worn:
            session.open()
        most = min(len(self._waiting), self.slots - busy)  # a text that slid may wait for a row
        few = most < busy
        if few and self._since * self._per_step < GATHER_SECONDS:
            return texts
        budget, prompts = CHUNK if few else RAMP, set[tuple[int, ...]]()
        longest = self._sessions.longest
        while len(texts) < most and budget > 0:
            window = self._waiting[0].window(self.context)
            longest = max(longest, len(window))
            count = busy + len(texts) + 1
            if count > 1 and not self._sessions.has_room(count, longest):
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
        self, reader: Reader, groups: Sequence[_SameWindow], readings: Sequence[Reading], bank: SessionRows
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
                slot = self._slot_of[id(text)]
                self._live[slot] = RunningText(slot, text, draw, length, wrote)
                active.append(self._live[slot])
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
        shown = measure_logprobs(state["logits"], active, first.rows)
        peaks = state["logits"].amax(1)  # NaN if a logit is
        masked = self._mask(state["logits"], active)
        first.choice.greedy = all(live.draw.greedy for live in active) and not masked
        first.choice.run(picked=False)
        ending = shown(state["next"]) if shown else None
        tokens, _ = to_host(state["next"])
        self._launches.append(FirstLaunch(list(active), tokens, *to_host(peaks), ending))
        if any(going_on):
            bank.transfer.bring(state, first.records)

    def _seat(self, bank: SessionRows, of: int, drawn: int, live: RunningText, row: int) -> list[int]:
        """A text of the prompt in the reader's row `of`, its first token in row `drawn`, continues in a free row."""
        live.sit(bank, row)
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

    def _set_back(self, bank: SessionRows) -> None:
        """The newest text waits, and is read again with the tokens that have been seen."""
        newest = next(live for slot in reversed(self._texts) if (live := self._live.get(slot)) and live.at is bank)
        del self._live[newest.slot]
        newest.drop()
        self._waiting.appendleft(newest.text)

    def warm(self) -> None:
        """Capture the graphs for all numbers and lengths of texts, so that none waits for a capture."""
        with self._engine.lock, torch.inference_mode():
            self._engine.arrive()
            for rows in [self.slots] if self._exact else sorted({self._sessions.rows_for(r) for r in ROWS}):
                bank = self._sessions.open(rows, self._sessions.reach(0))
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
        current = self._sessions.current
        if current and current.count and not self._waiting and 4 * current.count <= len(current.rows):
            self._sessions.move(self._sessions.rows_for(current.count), self._sessions.reach(self._sessions.longest))
        self._sessions.grow()
        for bank in [bank for bank in self._sessions.opened.values() if bank.count]:
            self._launch_steps(bank)

    def _launch_steps(self, bank: SessionRows) -> None:
        session = bank.session
        # A schema's next token depends on those before it, which the host has to see.
        by_schema = any(live.text.options.schema is not None for live in bank.active)
        if by_schema and self._launches:
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

    def _step(self, bank: SessionRows, most: int) -> int:
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
            self._launches.append(StepLaunch(session, first, 1, rows, whole, logprobs))
        else:
            session.enqueue(min(most, session.work.steps))
            launch = StepLaunch(session, first, session.enqueued - first, rows, whole)
            before = self._launches[-1] if self._launches else None
            together = max(1, min(session.work.steps, int(AHEAD_SECONDS / self._per_step)))
            if not (isinstance(before, StepLaunch) and before.extends_to(launch, together)):
                self._launches.append(launch)
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
    ) -> Logprobs | None:
        """A step run part by part, if more than its tokens is needed."""
        logits = session.tensors["logits"]
        session.decode.run()
        shown = measure_logprobs(logits, rows, len(rows))
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

    def postprocess(self, *, wait: bool) -> list[NewTokens]:
        """The tokens that have arrived; with `wait` at least some, unless the GPU runs out of work meanwhile."""
        fresh: list[NewTokens] = []
        polls, mark = 0, time.perf_counter()
        while self._launches:
            launch = self._launches[0]
            before, tokens = launch.steps, launch.take()
            if tokens is None:
                if (
                    fresh
                    or not wait
                    or any(b.session.ahead <= SPARE_STEPS and b.count for b in self._sessions.opened.values())
                ):
                    break
                polls += 1
                self._pause(polls)
                continue
            if launch.steps == 0:
                self._launches.popleft()
            now = time.perf_counter()
            if isinstance(launch, StepLaunch):
                self._steps_taken += before - launch.steps
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
        self._seen_at, self._steps_taken = (now if self._launches else 0.0), 0

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
        if polls % 50_000 == 0 and torch.cuda.current_stream().query() and self._launches[0].take() is None:
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
