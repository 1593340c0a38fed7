"""The backend that samples on the host: any plan's logits, and the CPU's native step for all texts at once. A text's
bits do not depend on the batch. On a CPU each column of the native step is computed independently of the others, and a
longer prompt is read alone, in parts whose boundaries do not depend on other texts. Parts that another slot's cache
holds are copied.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from rung.errors import RungError
from rung.models.batching.text import Backend, NewTokens, Request, Text, failure
from rung.models.cache import SHORT_PROMPT, Column
from rung.models.drafts import MOST, PROPOSING, Columns, Draft, DraftModel, Lookup, Pace, follow, numbers
from rung.models.options import Chosen
from rung.models.sampling import NOT_FINITE, Penalties
from rung.models.tensors import integers
from rung.models.transformer import Drafting, Transformer
from rung.precision import torch_threads
from rung.processors import processors

PART = 128  # tokens of a prompt that are read per turn, while the other texts wait


@dataclass(eq=False)
class _Row:
    """A slot's text. `pending` are the tokens to read before the next token can be chosen."""

    text: Text
    window: tuple[int, ...]  # the tokens from its cache's first position on, as they were when it began
    pending: tuple[int, ...]
    penalties: Penalties | None
    first: torch.Tensor | None = None  # (V), logits after the prompt, while the cache still holds it
    leader: _Row | None = None  # another row that reads the same prompt
    prompt_logprobs: list[Chosen | None] | None = None  # log-probabilities of the prompt so far
    slot: int = 0
    seen: bool = field(default=False)  # the prompt's log-probabilities were delivered
    draft: Draft = field(default_factory=Draft)  # the tokens of `pending` after the text's last token
    pace: Pace | None = None
    lookup: Lookup = field(default_factory=Lookup)


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
        self.slots, self._room = slots, room
        self._transformer, self._native = transformer, native
        config, plan = transformer.config, transformer.plan
        self.context, self._vocabulary = config.context, config.vocabulary
        self._cache = (native and native.cache) or transformer.new_cache(slots, config.context)
        self._cache.begin(slots)
        self._rows: dict[int, _Row] = {}  # in the order of admission
        self._prefixes: dict[int, tuple[int, ...]] = {}  # by slot: its cache's first tokens, read in whole parts
        self._drafting = drafting
        self._draft_model = DraftModel(drafting.source, slots, proposing) if drafting and drafting.source else None
        on_cpu = plan.on == "cpu"
        self._part = PART if on_cpu else config.context
        self._keeps = on_cpu  # elsewhere free slots take part in steps, with dummy tokens
        # A step of the rungs serves all rows at once; the CPU's plain operations round differently per batch size.
        self._together = native is None and not on_cpu and not plan.tokens_alone

    # ---- slots ------------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._rows)

    def takes(self, request: Request) -> bool:
        """A text waits until `room` has the tokens that it may grow to, beside those of the texts that are here."""
        wanted = self._most(request)
        promised = sum(self._most(row.text.request) for row in self._rows.values())
        return self.free_slots > 0 and (not self._rows or self._room is None or promised + wanted <= self._room)

    def _most(self, request: Request) -> int:
        return min(len(request.ids) + request.options.max_new_tokens, self.context)

    def begin(self, slot: int, text: Text) -> None:
        options, ids = text.options, text.window(self.context)
        penalties = None
        if options.sampling.penalised:
            penalties = Penalties(options.sampling, [text.request.ids], self._vocabulary)
            for token in text.tokens:
                penalties.add(integers([token]))
        row = _Row(text, ids, ids, penalties, slot=slot, pace=Pace(self._drafting.cost) if self._drafting else None)
        if options.prompt_logprobs is not None and not text.tokens:
            row.prompt_logprobs = [None]
        row.leader = next((r for r in self._rows.values() if self._leads(r, row)), None)
        if row.leader is None and row.prompt_logprobs is None:
            self._reuse(row)
        else:
            self._forget(slot)
            self._cache.lengths[slot], self._prefixes[slot] = 0, ()
        self._rows[slot] = row
        if self._draft_model is not None:
            self._draft_model.forget(slot)

    def _leads(self, row: _Row, follower: _Row) -> bool:
        # A prompt with logits for every token uses other matrix products, whose bits differ.
        reading = row.leader is None and not row.text.tokens
        asked = [None if r.prompt_logprobs is None else r.text.options.prompt_logprobs for r in (row, follower)]
        same = row.text.request.ids == follower.window and asked[0] == asked[1]
        return same and (row.first is not None or reading)

    def _reuse(self, row: _Row) -> None:
        """Copy the longest beginning that another slot's cache holds, also one whose text has ended.

        Only whole parts of prompts count: the same tokens go through the same products, so that no bit changes.
        """
        best, source = 0, row.slot
        for slot, kept in self._prefixes.items():
            n, most = 0, min(len(kept), len(row.window) - 1)
            while n + PART <= most and kept[n : n + PART] == row.window[n : n + PART]:
                n += PART
            if n > best:
                best, source = n, slot
        if best and source != row.slot:
            self._copy(source, row.slot, best)
        self._forget(row.slot, best)
        self._cache.lengths[row.slot], self._prefixes[row.slot] = best, row.window[:best]
        row.pending = row.window[best:]

    def _forget(self, slot: int, kept: int = 0) -> None:
        """Give back the memory of what the slot's last text left beyond so many tokens."""
        left = len(self._prefixes.get(slot, ()))
        if left > kept:
            self._cache.give_back(slot, kept, left)

    def _copy(self, source: int, to: int, tokens: int) -> None:
        for tensor in (self._cache.k, self._cache.v):
            tensor[:, to, :, :tokens] = tensor[:, source, :, :tokens]

    def end(self, slot: int) -> None:
        row = self._rows.pop(slot)
        for other in self._rows.values():
            if other.leader is row:
                other.leader = None  # it reads the prompt itself, unless the next row does
        self._cache.give_back(slot, len(self._prefixes.get(slot, ())), self._cache.lengths[slot])
        self._cache.lengths[slot] = 0

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> list[NewTokens]:
        if self._transformer.plan.on != "cpu":
            return self._turn()
        threads = getattr(self._transformer.plan, "threads", None) or processors()
        with torch_threads(1 if self._native is not None else threads):
            return self._turn()

    def _turn(self) -> list[NewTokens]:
        began = time.perf_counter()
        logits: dict[int, torch.Tensor] = {}
        failed: list[NewTokens] = []
        busy = [row for row in self._rows.values() if row.leader is None]
        if self._drafting is not None:
            busy = [row for row in busy if self._contained(row, failed, self._draft, row)]
        budget = self._part
        for row in list(busy):
            if len(row.pending) > self._short and budget > 0:
                budget -= min(self._part, len(row.pending))
                if not self._contained(row, failed, self._read, row, logits):
                    busy.remove(row)
        read = time.perf_counter()
        few = [row for row in busy if row.slot not in logits and 0 < len(row.pending) <= self._short]
        if self._native is not None:
            self._columns(self._native, few, logits)
        elif self._together and len(few) > 1:
            self._batch(few, logits)
        else:
            for row in few:
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

    @property
    def _short(self) -> int:
        # A native column may give logits as well as another; the plan's own step is for single tokens.
        return min(SHORT_PROMPT, self._native.columns_at_once) if self._native is not None else 1

    def _read(self, row: _Row, logits: dict[int, torch.Tensor]) -> None:
        part, alone = row.pending[: self._part], self._cache.row(row.slot)
        begin = alone.lengths[0]
        if row.prompt_logprobs is not None and not row.seen:
            every = self._transformer.advance_all(part, alone)
            self._add_logprobs(row, part, every)
            found = every[-1:]
        elif row.draft.tokens:
            found = self._transformer.advance_all(part, alone)
        else:
            found = self._transformer.advance([part], alone)
            if self._keeps and len(part) == PART and begin == len(self._prefixes[row.slot]):
                self._prefixes[row.slot] = row.window[: begin + PART]
        self._consumed(row, part, alone.lengths[0])
        if not row.pending:
            logits[row.slot] = found

    def _columns(self, native: Columns, rows: Sequence[_Row], logits: dict[int, torch.Tensor]) -> None:
        while rows:
            selected: list[_Row] = []
            columns: list[Column] = []
            outputs: dict[int, tuple[int, int]] = {}  # slot -> its rows of the logits
            count = 0
            for row in rows:
                if len(columns) + len(row.pending) > native.columns_at_once:
                    break
                every, last = row.prompt_logprobs is not None and not row.seen, len(row.pending) - 1
                first = count
                for i, token in enumerate(row.pending):
                    needed = every or i == last or bool(row.draft.tokens)
                    columns.append(Column(token, row.slot, self._cache.lengths[row.slot] + i, count if needed else -1))
                    count += needed
                outputs[row.slot] = (first, count)
                selected.append(row)
            found = native.step(columns, self._cache, count)
            for row in selected:
                first, end = outputs[row.slot]
                if row.prompt_logprobs is not None and not row.seen:
                    self._add_logprobs(row, row.pending, found[first:end])
                logits[row.slot] = found[end - 1 - len(row.draft.tokens) : end]
                self._consumed(row, row.pending, self._cache.lengths[row.slot] + len(row.pending))
            rows = rows[len(selected) :]

    def _batch(self, rows: Sequence[_Row], logits: dict[int, torch.Tensor]) -> None:
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
            self._consumed(row, row.pending, before[row.slot] + 1)

    def _consumed(self, row: _Row, part: Sequence[int], length: int) -> None:
        if not row.text.tokens:
            self.clock.prompt_tokens += len(part)
        self._cache.lengths[row.slot] = length
        row.pending = row.pending[len(part) :]

    def _follow(self, logits: dict[int, torch.Tensor]) -> None:
        """Rows with the same prompt as another copy its keys and values."""
        for slot, found in logits.items():
            row = self._rows[slot]
            if not row.text.tokens:
                row.first = found
        for row in self._rows.values():
            leader = row.leader
            if leader is None or leader.first is None:
                continue
            used = len(leader.text.request.ids)
            self._copy(leader.slot, row.slot, used)
            self._cache.lengths[row.slot], self._prefixes[row.slot] = used, self._prefixes[leader.slot]
            if leader.prompt_logprobs is not None:
                row.prompt_logprobs = leader.prompt_logprobs
            row.pending, row.leader, row.first = (), None, leader.first
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

    def _choose(self, row: _Row, logits: torch.Tensor) -> NewTokens:
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

    def _tokens(self, row: _Row, logits: torch.Tensor) -> Iterator[int]:
        """The tokens after the rows of logits: the accepted part of the draft, and one more."""
        request, options, draft, step = row.text.request, row.text.options, row.draft, len(row.text.tokens)
        # With penalties or a schema each token changes the next one's scores; on a CPU only the needed rows are sorted
        # and drawn.
        changing = row.penalties is not None or row.text.constraint is not None
        alone = changing or not (logits.is_cuda or options.sampling.temperature == 0)
        for i in range(0, len(logits), 1 if alone else len(logits)):
            some = slice(i, i + 1 if alone else None)
            scores = logits[some]
            if row.penalties is not None:
                scores = row.penalties.apply(scores.to(row.penalties.counts.device))
            if options.logit_bias:
                scores = scores.clone()
                for token, bias in options.logit_bias:
                    scores[:, token] += bias
            if row.text.constraint is not None:
                scores = row.text.constraint.forbid(scores)
            early = min(options.min_tokens - step - i, len(scores)) if options.stop_tokens else 0
            if early > 0:
                scores = scores.clone()
                scores[:early, list(options.stop_tokens)] = -torch.inf
            us = [numbers(request.seed, request.sample, step + i + j) for j in range(len(scores))]
            found = follow(scores, options.sampling, draft.tokens[some], (draft.q or [])[some] or None, us)
            if row.penalties is not None:
                row.penalties.add(integers(found))
            if row.text.constraint is not None:
                row.text.constraint.add(found[0])
            yield from found
            if found[-1:] != draft.tokens[some]:
                return

    def _slide(self, row: _Row, tokens: Sequence[int]) -> None:
        ids = (*row.text.request.ids, *row.text.tokens, *tokens)
        row.pending = row.window = ids[-max(1, self.context // 2) :]
        self._prefixes[row.slot] = ()
        row.first = None
        self._cache.lengths[row.slot] = 0

    def _add_logprobs(self, row: _Row, part: Sequence[int], logits: torch.Tensor) -> None:
        """Log-probabilities of the tokens that follow those of `part`, each from its row of logits."""
        assert row.prompt_logprobs is not None
        ids, at = row.text.request.ids, len(row.prompt_logprobs)
        behind = ids[at : at + len(part)]
        row.prompt_logprobs += chosen_tokens(logits[: len(behind)], behind, row.text.options.prompt_logprobs or 0)


def chosen_tokens(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Chosen]:
    """The model's own (before penalties and temperature) log-probabilities of tokens, one row of logits each."""
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, integers(list(tokens), logits.device)[:, None])[:, 0].tolist()
    if not all(map(math.isfinite, chosen)):
        raise RungError(NOT_FINITE)
    best: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if top:
        values, ids = logprobs.topk(min(top, logprobs.shape[-1]))
        best = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    return list(map(Chosen, tokens, chosen, best))
