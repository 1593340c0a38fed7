"""The backend that samples on the host: any plan's logits, and the CPU's native step for all texts at once. A text's
bits do not depend on the batch. On a CPU each column of the native step is computed independently of the others, and a
longer prompt is read alone, by passes whose bits do not depend on where they begin. Beginnings that another text has
read are shared (pages.py). When pages end, the newest text gives its own back, and is read again later in the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from gpuless.base.processors import processors
from rung.arrays import Array, to_host
from rung.errors import RungError
from rung.lazy import torch
from rung.models.batching.pages import PAGE, PagedCache, pages_of
from rung.models.batching.text import Backend, NewTokens, Request, Text, failure
from rung.models.cache import SHORT_PROMPT, Cache, Column, Run
from rung.models.drafts import MOST, PROPOSING, Columns, Draft, DraftModel, Lookup, Pace, follow, numbers
from rung.models.options import Chosen
from rung.models.sampling import NOT_FINITE, Penalties
from rung.models.tensors import integers
from rung.models.transformer import Drafting, Transformer
from rung.precision import torch_threads

PART = 128  # tokens of a prompt that are read per turn, while the other texts wait


@dataclass(eq=False)
class _Row:
    """A slot's text. `pending` are the tokens to read before the next token can be chosen."""

    text: Text
    window: tuple[int, ...]  # the tokens from its cache's first position on, as they were when it began
    pending: tuple[int, ...]
    penalties: Penalties | None
    first: Array = None  # (V), logits after the prompt, while the cache still holds it
    leader: _Row | None = None  # another row that reads the same prompt
    prompt_logprobs: list[Chosen | None] | None = None  # log-probabilities of the prompt so far
    slot: int = 0
    order: int = 0  # of admission
    start: int = 0  # the window's first token among those of the prompt and the text
    passes: int = 0  # tokens of `pending` that are read by passes
    again: int = 0  # tokens of `pending` that come then, were read by steps before, and need no logits
    every: bool = False  # logits of every token are wanted, by products of their own
    waiting: bool = False  # it gave its pages back
    seen: bool = field(default=False)  # the prompt's log-probabilities were delivered
    draft: Draft = field(default_factory=Draft)  # the tokens of `pending` after the text's last token
    pace: Pace | None = None
    lookup: Lookup = field(default_factory=Lookup)


@runtime_checkable
class Passes(Columns, Protocol):
    """Steps that also read many tokens: a token's bits do not depend on the tokens that are read with it."""

    def prepare(self) -> None:
        """Wait for what the first read needs."""

    def read(self, runs: Sequence[Run], cache: Cache) -> Array:
        """Logits (runs, V) after the last token of each run; keys and values go to the cache."""


def _age(row: _Row) -> tuple[int, int]:
    return row.text.options.priority, row.order


class HostBackend(Backend):
    """`native` computes few tokens of many texts in one call; without it each text goes through the plan."""

    def __init__(
        self,
        transformer: Transformer,
        slots: int,
        native: Columns | None = None,
        drafting: Drafting | None = None,
        proposing: Columns | None = None,
        room: int | None = None,
    ) -> None:
        super().__init__()
        self.slots = slots
        self._transformer, self._native = transformer, native
        self._passes = native if isinstance(native, Passes) else None
        config, plan = transformer.config, transformer.plan
        self.context, self._vocabulary = config.context, config.vocabulary
        on_cpu = plan.on == "cpu"
        self._paged: PagedCache | None = None
        if on_cpu:
            shape = (config.layers, config.NKV, config.HS)
            room = slots * config.context if room is None else room
            self._paged = PagedCache(shape, slots, config.context, room, plan.cache_dtype)
            self._cache: Cache = self._paged
        else:
            self._cache = (native and native.cache) or transformer.new_cache(slots, config.context)
            self._cache.begin(slots)
        self._rows: dict[int, _Row] = {}  # in the order of admission
        self._begun = 0
        self._drafting = drafting
        self._draft_model = DraftModel(drafting.source, slots, proposing) if drafting and drafting.source else None
        self._part = PART if on_cpu else config.context
        # A step of the rungs serves all rows at once; the CPU's plain operations round differently per batch size.
        self._together = native is None and not on_cpu and not plan.tokens_alone

    # ---- slots ------------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._rows)

    def warm(self) -> None:
        if self._passes is not None:
            self._passes.prepare()

    @property
    def usage(self) -> float | None:
        pages = self._paged and self._paged.pages
        return pages.held / pages.count if pages else None

    def takes(self, request: Request) -> bool:
        """A text waits for the pages of its prompt, and as long as an earlier one waits for pages."""
        if self.free_slots == 0 or any(row.waiting for row in self._rows.values()):
            return False
        if self._paged is None or not self._rows:
            return True
        ids = request.ids[-self.context :]
        wanted = pages_of(self._most(request, len(ids))) - self._paged.pages.busy(self._paged.pages.known(ids))
        return self._promised() + wanted <= self._paged.pages.available

    def _most(self, request: Request, tokens: int) -> int:
        """The tokens for which a text needs pages before it begins: torch's operations cannot read again what they
        read in another grouping, so that all of a text's are promised.
        """
        if self._native is not None:
            return min(tokens + 1, self.context)
        return min(len(request.ids) + request.options.max_new_tokens, self.context)

    def _promised(self) -> int:
        """The pages that the present texts do not hold yet."""
        assert self._paged is not None
        count = 0
        for row in self._rows.values():
            if row.waiting:
                continue
            held = len(self._paged.held[row.slot])
            if row.leader is not None:
                held = len(row.window) // PAGE
            elif not held and row.passes:
                held = self._paged.pages.busy(self._paged.pages.known(row.window))
            tokens = self._paged.lengths[row.slot] + len(row.pending)
            count += max(0, pages_of(self._most(row.text.request, tokens)) - held)
        return count

    def begin(self, slot: int, text: Text) -> None:
        options, ids = text.options, text.window(self.context)
        penalties = None
        if options.sampling.penalised:
            penalties = Penalties(options.sampling, text.request.ids, self._vocabulary)
            for token in text.tokens:
                penalties.add(token)
        pace = Pace(self._drafting.cost) if self._drafting else None
        row = _Row(text, ids, ids, penalties, slot=slot, order=self._begun, pace=pace)
        self._begun += 1
        row.start = len(text.request.ids) + len(text.tokens) - len(ids)
        row.passes = self._by_passes(ids)
        if options.prompt_logprobs is not None and not text.tokens:
            row.prompt_logprobs, row.every = [None], True
        row.leader = next((r for r in self._rows.values() if self._leads(r, row)), None)
        self._rows[slot] = row
        if self._draft_model is not None:
            self._draft_model.forget(slot)

    def _by_passes(self, window: Sequence[int]) -> int:
        return len(window) if len(window) > self._short else 0

    def _leads(self, row: _Row, follower: _Row) -> bool:
        # A prompt with logits for every token uses other matrix products, whose bits differ.
        reading = row.leader is None and not row.text.tokens
        asked = [None if r.prompt_logprobs is None else r.text.options.prompt_logprobs for r in (row, follower)]
        same = row.text.request.ids == follower.window and asked[0] == asked[1]
        return same and (row.first is not None or reading)

    def end(self, slot: int) -> None:
        row = self._rows.pop(slot)
        self._abandon(row)
        self._cache.release(slot)

    def _abandon(self, row: _Row) -> None:
        for other in self._rows.values():
            if other.leader is row:
                other.leader = None  # it reads the prompt itself, unless the next row does

    # ---- pages ------------------------------------------------------------------------------------------------------

    def _fit(self, row: _Row, tokens: int) -> bool:
        """Pages for so many tokens of the row. If there are not enough, the newest texts wait, perhaps this one."""
        while not self._cache.fit(row.slot, min(tokens, self._cache.capacity)):
            assert self._paged is not None
            some = [r for r in self._rows.values() if r is row or self._paged.held[r.slot]]
            newest = max(some, key=_age)
            self._set_back(newest)
            if newest is row:
                return False
        return True

    def _set_back(self, row: _Row) -> None:
        """The row's pages are free; what it has read is read again later, in the same way: its bits stay the same."""
        self._cache.release(row.slot)
        self._abandon(row)
        row.pending = (*row.text.request.ids, *row.text.tokens)[row.start :]
        row.passes = self._by_passes(row.window)
        row.again = max(0, len(row.pending) - 1 - row.passes) if len(row.pending) > len(row.window) else 0
        row.waiting, row.first, row.draft = True, None, Draft()
        if row.prompt_logprobs is not None and not row.seen:
            row.prompt_logprobs = [None]
        self.clock.set_back += 1

    def _resume(self) -> None:
        """Texts that wait for pages go on when there are enough, and one for each text that is running."""
        for row in sorted((row for row in self._rows.values() if row.waiting), key=_age):
            assert self._paged is not None
            running = sum(not other.waiting for other in self._rows.values())
            wanted = pages_of(len(row.pending) + 1) + running
            if running and self._promised() + wanted > self._paged.pages.available:
                return
            row.waiting = False

    def _find(self, row: _Row) -> None:
        """A row that begins takes what other rows have read of its prompt, except its last token."""
        # A prompt with logits for every token uses other matrix products, whose bits differ.
        if self._paged is None or self._paged.held[row.slot] or row.every:
            return
        # torch's products differ by the number of tokens, so that only whole parts are the same.
        found = self._paged.find(row.slot, row.window[:-1], 1 if self._native is not None else PART)
        row.pending, row.passes = row.pending[found:], row.passes - found
        self.clock.shared_tokens += found

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[NewTokens]:
        if self._transformer.plan.on != "cpu":
            return self._turn()
        threads = getattr(self._transformer.plan, "threads", None) or processors()
        with torch_threads(1 if self._native is not None else threads):
            return self._turn()

    def _turn(self) -> list[NewTokens]:
        began = time.perf_counter()
        logits: dict[int, Array] = {}
        failed: list[NewTokens] = []
        self._resume()
        busy = [row for row in self._rows.values() if row.leader is None]
        few = sorted((row for row in busy if not row.waiting and not row.passes), key=_age)
        for row in few:
            if not row.waiting:
                drafted = MOST if row.pace is not None else 0
                end = len(row.text.request.ids) + row.text.options.max_new_tokens - row.start
                self._fit(row, min(end, self._cache.lengths[row.slot] + self._next(row) + drafted))
        budget = self._part
        for row in busy:
            if row.passes and not row.waiting and budget > 0:
                self._find(row)
                part = self._next(row)
                if self._fit(row, self._cache.lengths[row.slot] + part):
                    budget -= part
                    self._contained(row, failed, self._read, row, logits)
        read = time.perf_counter()
        few = [row for row in few if not row.waiting]
        if self._drafting is not None:
            few = [row for row in few if self._contained(row, failed, self._draft, row)]
        if self._native is not None:
            self._columns(self._native, sorted(few, key=lambda row: row.again > 0), logits)
        else:
            together = [row for row in few if self._together and len(row.pending) == 1]
            if len(together) > 1:
                self._batch(together, logits)
            for row in few:
                if row not in together or len(together) == 1:
                    self._contained(row, failed, self._read, row, logits)
        self._follow(logits)
        fresh = failed
        for slot, found in logits.items():
            row = self._rows[slot]
            self._contained(row, fresh, lambda row=row, found=found: fresh.append(self._choose(row, found)))
        if few and all(not row.text.tokens for row in few):
            read = time.perf_counter()  # short prompts, and nothing else
        self.clock.prefill_seconds += read - began
        self.clock.decode_seconds += time.perf_counter() - read
        return fresh

    def _contained(self, row: _Row, failed: list[NewTokens], work: Callable[..., object], *arguments: object) -> bool:
        """Whether the row's work was done; an error ends its text alone."""
        try:
            work(*arguments)
        except Exception as error:
            failed.append(NewTokens(row.slot, error=failure(error)))
            return False
        return True

    def _next(self, row: _Row) -> int:
        """Tokens that the row reads in this turn."""
        if row.passes:
            return min(self._part, row.passes)
        if row.again and self._native is not None:
            return min(row.again, self._native.columns_at_once)
        return len(row.pending)

    @property
    def _short(self) -> int:
        # A native column may give logits as well as another; the plan's own step is for single tokens.
        return min(SHORT_PROMPT, self._native.columns_at_once) if self._native is not None else 1

    def _read(self, row: _Row, logits: dict[int, Array]) -> None:
        part, alone = row.pending[: self._next(row)], self._cache.row(row.slot)
        # The same tokens go through the same products, so that no bit changes.
        kept = row.passes and not row.every and (self._native is not None or len(part) == PART)
        if row.every and row.passes:
            every = self._transformer.advance_all(part, alone)
            if not row.seen:
                self._add_logprobs(row, part, every)
            found = every[-1:]
        elif row.draft.tokens:
            found = self._transformer.advance_all(part, alone)
        elif row.passes and self._passes is not None:
            found = self._passes.read([Run(part, 0, alone.lengths[0])], alone)
        else:
            found = self._transformer.advance([part], alone)
        self._consumed(row, len(part))
        if self._paged is not None and kept:
            self._paged.keep(row.slot, row.window, self._cache.lengths[row.slot])
        if not row.pending:
            logits[row.slot] = found

    def _columns(self, native: Columns, rows: Sequence[_Row], logits: dict[int, Array]) -> None:
        while rows:
            selected: list[_Row] = []
            columns: list[Column] = []
            outputs: dict[int, tuple[int, int, int]] = {}  # slot -> its rows of the logits, its tokens
            count = 0
            for row in rows:
                room = native.columns_at_once - len(columns)
                read = min(row.again, room) if row.again else len(row.pending)
                if not 0 < read <= room:
                    break
                every, last = row.prompt_logprobs is not None and not row.seen, len(row.pending) - 1
                first = count
                for i, token in enumerate(row.pending[:read]):
                    needed = not row.again and (every or i == last or bool(row.draft.tokens))
                    columns.append(Column(token, row.slot, self._cache.lengths[row.slot] + i, count if needed else -1))
                    count += needed
                outputs[row.slot] = (first, count, read)
                selected.append(row)
            found = native.step(columns, self._cache, count)
            for row in selected:
                first, end, read = outputs[row.slot]
                if row.again:
                    self._consumed(row, read)
                    continue
                if row.prompt_logprobs is not None and not row.seen:
                    self._add_logprobs(row, row.pending, found[first:end])
                logits[row.slot] = found[end - 1 - len(row.draft.tokens) : end]
                self._consumed(row, read)
            rows = rows[len(selected) :]

    def _batch(self, rows: Sequence[_Row], logits: dict[int, Array]) -> None:
        # Slots between them take part with a dummy token, after their last one.
        before = list(self._cache.lengths)
        tokens = {row.slot: row.pending[0] for row in rows}
        used = max(tokens) + 1
        lengths = self._cache.lengths
        self._cache.lengths = [min(n, self._cache.capacity - 1) for n in lengths[:used]]
        found = self._transformer.advance([[tokens.get(slot, 0)] for slot in range(used)], self._cache)
        self._cache.lengths = before
        for row in rows:
            logits[row.slot] = found[row.slot : row.slot + 1]
            self._consumed(row, 1)

    def _consumed(self, row: _Row, count: int) -> None:
        """The row has read so many of its pending tokens."""
        if not row.text.tokens:
            self.clock.prompt_tokens += count
        self._cache.lengths[row.slot] += count
        row.pending = row.pending[count:]
        if row.passes:
            row.passes -= count
        elif row.again:
            row.again = max(0, row.again - count)

    def _follow(self, logits: dict[int, Array]) -> None:
        """Rows with the same prompt as another copy its keys and values."""
        for slot, found in logits.items():
            row = self._rows[slot]
            if not row.text.tokens:
                row.first = found
        for row in self._rows.values():
            leader = row.leader
            if leader is None or leader.first is None:
                continue
            if not self._cache.share(leader.slot, row.slot, len(row.window)):
                row.leader = None  # it reads the prompt itself
                continue
            if leader.prompt_logprobs is not None:
                row.prompt_logprobs = leader.prompt_logprobs
            row.pending, row.passes, row.leader, row.first = (), 0, None, leader.first
            logits[row.slot] = leader.first

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def _draft(self, row: _Row) -> None:
        """Append a draft to the text's last token, if a draft is worthwhile."""
        row.draft, text = Draft(), row.text
        if row.pace is None or not text.tokens or len(row.pending) != 1:
            return
        free = self._cache.capacity - self._cache.lengths[row.slot] - 1
        most = self._native.columns_at_once - 1 if self._native else MOST
        most = min(row.pace.length(), most, free, text.options.max_new_tokens - len(text.tokens) - 1)
        if most <= 0:
            return
        ids = [*text.request.ids, *text.tokens]
        if self._draft_model is None:
            row.draft = Draft(row.lookup.propose(ids, most))
        else:
            request, step = text.request, len(text.tokens)
            ids = ids[len(ids) - self._cache.lengths[row.slot] - 1 :]  # after a slide, the remaining ones
            row.draft = self._draft_model.propose(
                row.slot, ids, most, text.options.sampling,
                lambda i: numbers(request.seed, request.sample, step + i)(PROPOSING),
            )  # fmt: skip
        row.pending = (*row.pending, *row.draft.tokens)

    def _choose(self, row: _Row, logits: Array) -> NewTokens:
        """The next token, and those after the accepted part of a draft: one row of logits each."""
        options, draft = row.text.options, row.draft
        prompt = None
        if row.prompt_logprobs is not None and not row.seen:
            prompt, row.seen = tuple(row.prompt_logprobs), True
        if options.max_new_tokens == 0:
            return NewTokens(row.slot, prompt=prompt)
        fresh: list[int] = []
        details: list[Chosen] | None = [] if options.tells_logprobs else None
        length, proposed = self._cache.lengths[row.slot] - len(draft.tokens), [*draft.tokens, -1]
        for i, token in enumerate(self._tokens(row, logits)):
            fresh.append(token)
            if details is not None:
                details += chosen_tokens(logits[i : i + 1], [token], options.top_logprobs)
            if token in options.stop_tokens or (row.text.constraint and row.text.constraint.ended):
                break
        self._cache.lengths[row.slot] = length + len(fresh) - 1
        if draft.tokens and row.pace is not None:
            accepted = len(fresh) - (token != proposed[len(fresh) - 1])
            row.pace.saw(len(draft.tokens), accepted)
            self.clock.drafted, self.clock.accepted = self.clock.drafted + 1, self.clock.accepted + accepted
            self.clock.proposed += len(draft.tokens)
        full = self._cache.lengths[row.slot] == self._cache.capacity
        if full and options.slide:
            self._slide(row, fresh)
        else:
            row.pending = (token,)
        return NewTokens(row.slot, fresh, details, prompt, full and not options.slide)

    def _tokens(self, row: _Row, logits: Array) -> Iterator[int]:
        """The tokens after the rows of logits: the accepted part of the draft, and one more."""
        request, options, draft, step = row.text.request, row.text.options, row.draft, len(row.text.tokens)
        # With penalties or a schema each token changes the next one's scores; on a CPU only the needed rows are sorted
        # and drawn.
        changing = row.penalties is not None or row.text.constraint is not None
        on_gpu = not isinstance(logits, np.ndarray) and logits.is_cuda
        alone = changing or not (on_gpu or options.sampling.temperature == 0)
        for i in range(0, len(logits), 1 if alone else len(logits)):
            some = slice(i, i + 1 if alone else None)
            scores = logits[some]
            early = min(options.min_tokens - step - i, len(scores)) if options.stop_tokens else 0
            if changing or options.logit_bias or early > 0:
                scores = to_host(scores).copy()
            if row.penalties is not None:
                scores = row.penalties.apply(scores)
            for token, bias in options.logit_bias:
                scores[:, token] += bias
            if row.text.constraint is not None:
                scores = row.text.constraint.forbid(scores)
            if early > 0:
                scores[:early, list(options.stop_tokens)] = -np.inf
            us = [numbers(request.seed, request.sample, step + i + j) for j in range(len(scores))]
            found = follow(scores, options.sampling, draft.tokens[some], (draft.q or [])[some] or None, us)
            if row.penalties is not None:
                row.penalties.add(found[0])
            if row.text.constraint is not None:
                row.text.constraint.add(found[0])
            yield from found
            if found[-1:] != draft.tokens[some]:
                return

    def _slide(self, row: _Row, tokens: Sequence[int]) -> None:
        ids = (*row.text.request.ids, *row.text.tokens, *tokens)
        row.pending = row.window = ids[-max(1, self.context // 2) :]
        row.start, row.passes, row.again = len(ids) - len(row.window), self._by_passes(row.window), 0
        row.first, row.every, row.draft = None, False, Draft()
        self._cache.release(row.slot)

    def _add_logprobs(self, row: _Row, part: Sequence[int], logits: Array) -> None:
        """Log-probabilities of the tokens that follow those of `part`, each from its row of logits."""
        assert row.prompt_logprobs is not None
        ids, at = row.text.request.ids, len(row.prompt_logprobs)
        behind = ids[at : at + len(part)]
        row.prompt_logprobs += chosen_tokens(logits[: len(behind)], behind, row.text.options.prompt_logprobs or 0)


def chosen_tokens(logits: Array, tokens: Sequence[int], top: int) -> list[Chosen]:
    """The model's own (before penalties and temperature) log-probabilities of tokens, one row of logits each."""
    logits = torch.as_tensor(logits)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, integers(list(tokens), logits.device)[:, None])[:, 0].tolist()
    if not all(map(math.isfinite, chosen)):
        raise RungError(NOT_FINITE)
    best: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if top:
        values, ids = logprobs.topk(min(top, logprobs.shape[-1]))
        best = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    return list(map(Chosen, tokens, chosen, best))
