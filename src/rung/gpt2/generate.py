"""Generation: prompts in, text out, piece by piece, any number of sequences at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

import torch

from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.model import Transformer
from rung.gpt2.sampling import Penalties, Sampling, choose, log_probability, uniform
from rung.gpt2.stops import StopFinder
from rung.gpt2.tokenizer import Detokenizer, Tokenizer

Reason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True)
class Options:
    """Everything that a run needs to know beside its prompts."""

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 200
    seed: int | None = None  # None: another one each time
    num_samples: int = 1
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    slide: bool = False
    echo: bool = False
    logprobs: bool = False
    batch_size: int = 8

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_samples", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise RungError(f"{name.replace('_', '-')} is {value!r}; it must be at least 1 and whole.")
        if self.seed is not None and not (isinstance(self.seed, Integral) and 0 <= self.seed < 1 << 64):
            raise RungError(f"seed is {self.seed!r}; it must be a whole number from 0 to 2^64 - 1.")


@dataclass
class Completion:
    """What came of one sample of one prompt."""

    prompt: str
    text: str  # with the prompt in front if echo was asked for
    tokens: list[int]  # those generated
    finish_reason: Reason
    sample: int
    seed: int
    prompt_tokens: int
    logprobs: list[float] | None = None


@dataclass
class Stats:
    """Where the time of a run went."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decoded: int = 0  # tokens that came out of decode steps: all but the first of each sequence

    @property
    def tokens_per_second(self) -> float | None:
        """Of decode steps, all sequences together."""
        return self.decoded / self.decode_seconds if self.decode_seconds else None


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as tokens."""

    text: str
    ids: tuple[int, ...]


class _Sequence:
    """One sample that is being written."""

    def __init__(self, prompt: Prompt, sample: int, options: Options, tokenizer: Tokenizer | None) -> None:
        self.prompt, self.sample, self.options = prompt, sample, options
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.reason: Reason | None = None
        self._text: list[str] = []
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._stops = StopFinder(options.stop)

    def accept(self, token: int) -> str:
        """Add a token; the text that it makes certain."""
        if token in self.options.stop_tokens:
            return self.finish("stop")
        self.tokens.append(token)
        piece = self._push(self._detokenizer.push(token)) if self._detokenizer else ""
        if self._stops.stopped:
            self.reason = "stop"
        elif len(self.tokens) == self.options.max_new_tokens:
            piece += self.finish("length")
        return piece

    def finish(self, reason: Reason) -> str:
        """End the sequence; the text that was held back."""
        rest = self._push(self._detokenizer.flush()) if self._detokenizer else ""
        if not self._stops.stopped:
            held = self._stops.flush()
            self._text.append(held)
            rest += held
        self.reason = "stop" if self._stops.stopped else reason
        return rest

    def _push(self, text: str) -> str:
        shown = self._stops.push(text)
        self._text.append(shown)
        return shown

    def completion(self, seed: int) -> Completion:
        text = "".join(self._text)
        return Completion(
            prompt=self.prompt.text,
            text=self.prompt.text + text if self.options.echo else text,
            tokens=self.tokens,
            finish_reason=self.reason or "interrupted",
            sample=self.sample,
            seed=seed,
            prompt_tokens=len(self.prompt.ids),
            logprobs=self.logprobs[: len(self.tokens)] if self.options.logprobs else None,
        )


class Run:
    """Prompts being continued. Iterating does the work and gives (index of the completion, piece of text).

    Completions are in the order of the prompts, the samples of a prompt side by side. Ctrl-C ends the
    iteration; what was written until then is in `completions`, and `interrupted` is set.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer | None,
        prompts: Sequence[Prompt],
        options: Options,
    ) -> None:
        self.options, self.stats, self.interrupted = options, Stats(), False
        self._taken = 0
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self._transformer = transformer
        for prompt in prompts:
            self._check(prompt)
        self._sequences = [
            _Sequence(prompt, sample, options, tokenizer)
            for prompt in prompts
            for sample in range(options.num_samples)
        ]

    def _check(self, prompt: Prompt) -> None:
        config = self._transformer.config
        if not prompt.ids:
            raise RungError("the prompt is empty; give at least one character to go on from.")
        if len(prompt.ids) > config.context and not self.options.slide:
            raise RungError(
                f"the prompt has {len(prompt.ids):,} tokens and the model's context {config.context:,}; "
                "shorten it, or add --slide to keep its end."
            )
        if max(prompt.ids) >= config.vocabulary or min(prompt.ids) < 0:
            raise RungError(
                f"the prompt has token {max(prompt.ids)} and the model only {config.vocabulary:,}; "
                "use the tokenizer that belongs to the model."
            )

    @property
    def completions(self) -> list[Completion]:
        """Those begun so far; complete once the iteration has ended."""
        return [sequence.completion(self.seed) for sequence in self._sequences]

    def take(self, unfinished: bool = False) -> Iterator[tuple[int, Completion]]:
        """Completions not taken before, with their index, in order: one at its end waits for those before it."""
        for index in range(self._taken, len(self._sequences)):
            sequence = self._sequences[index]
            if sequence.reason is None and not unfinished:
                return
            self._taken = index + 1
            yield index, sequence.completion(self.seed)

    @property
    def finished(self) -> int:
        """How many completions have come to their end."""
        return sum(sequence.reason is not None for sequence in self._sequences)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        size = self.options.batch_size
        try:
            for first in range(0, len(self._sequences), size):
                yield from self._batch(first, self._sequences[first : first + size])
        except KeyboardInterrupt:
            self.interrupted = True
            for index, sequence in enumerate(self._sequences):
                if sequence.reason is None:
                    yield index, sequence.finish("interrupted")

    def _batch(self, first: int, batch: list[_Sequence]) -> Iterator[tuple[int, str]]:
        starts = [self._window(sequence) for sequence in batch]
        self.stats.prompt_tokens += sum(map(len, starts))
        options = self.options
        writer = self._transformer.service.writer
        if writer is not None and not options.slide and not options.logprobs:
            room = self._transformer.config.context + 1
            limits = [min(options.max_new_tokens, room - len(start)) for start in starts]
            steps = writer.write(
                starts,
                limits,
                stop_tokens=options.stop_tokens,
                sampling=options.sampling,
                seed=self.seed,
                sequences=[sequence.sample for sequence in batch],
            )
            return self._follow(first, batch, limits, steps)
        return self._choose(first, batch, starts)

    def _follow(
        self, first: int, batch: list[_Sequence], limits: Sequence[int], steps: Iterator[list[int]]
    ) -> Iterator[tuple[int, str]]:
        # The plan chooses; here tokens become text, and a stop string may end a text early.
        began = time.perf_counter()
        for step, tokens in enumerate(steps):
            seconds = time.perf_counter() - began
            if step == 0:
                self.stats.prefill_seconds += seconds
            else:
                self.stats.decode_seconds += seconds
            for index, (sequence, token, limit) in enumerate(zip(batch, tokens, limits, strict=True), first):
                if sequence.reason is not None or token < 0:
                    continue
                piece = sequence.accept(token)
                if sequence.reason is None and len(sequence.tokens) == limit:
                    piece += sequence.finish("length")
                self.stats.new_tokens += 1
                self.stats.decoded += step > 0
                yield index, piece
            if all(sequence.reason is not None for sequence in batch):
                return
            began = time.perf_counter()

    def _choose(
        self, first: int, batch: list[_Sequence], starts: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, str]]:
        options, sampling = self.options, self.options.sampling
        cache = self._cache(starts)
        penalties = None
        if sampling.penalised:
            vocabulary = self._transformer.config.vocabulary
            penalties = Penalties(sampling, [sequence.prompt.ids for sequence in batch], vocabulary)
        began = time.perf_counter()
        logits = self._prefill(starts, cache)
        self.stats.prefill_seconds += time.perf_counter() - began
        began = time.perf_counter()
        active = list(enumerate(batch, first))
        while True:
            scores = penalties.apply(logits.to(penalties.counts.device)) if penalties else logits
            uniforms = (
                [uniform(self.seed, s.sample, len(s.tokens)) for _, s in active]
                if sampling.temperature
                else []
            )
            chosen = choose(scores, sampling, uniforms)
            if options.logprobs:
                for (_, sequence), value in zip(
                    active, log_probability(logits, chosen).tolist(), strict=True
                ):
                    sequence.logprobs.append(value)
            if penalties:
                penalties.add(chosen.to(penalties.counts.device))
            for row, ((index, sequence), token) in enumerate(zip(active, chosen.tolist(), strict=True)):
                piece = sequence.accept(token)
                self.stats.new_tokens += 1
                self.stats.decoded += len(sequence.tokens) > 1
                if sequence.reason is None and not options.slide and cache.lengths[row] == cache.capacity:
                    piece += sequence.finish("length")
                self.stats.decode_seconds += time.perf_counter() - began
                yield index, piece
                began = time.perf_counter()
            left = [row for row, (_, sequence) in enumerate(active) if sequence.reason is None]
            if not left:
                return
            if len(left) < len(active):
                active = [active[row] for row in left]
                cache.keep(left)
                if penalties:
                    penalties.keep(left)
            logits = self._decode([sequence for _, sequence in active], cache)

    def _window(self, sequence: _Sequence) -> tuple[int, ...]:
        # A prompt that fills the context leaves no room to slide in, so its newer half is kept.
        context = self._transformer.config.context
        ids = (*sequence.prompt.ids, *sequence.tokens)
        return ids if len(ids) <= context else ids[-max(1, context // 2) :]

    def _cache(self, starts: Sequence[Sequence[int]]) -> Cache:
        context = self._transformer.config.context
        needed = max(map(len, starts)) + self.options.max_new_tokens
        return self._transformer.new_cache(
            len(starts), context if self.options.slide else min(context, needed)
        )

    def _prefill(self, starts: Sequence[tuple[int, ...]], cache: Cache) -> torch.Tensor:
        different = list(dict.fromkeys(starts))
        origins = [different.index(start) for start in starts]
        cache.begin(len(different))
        logits = self._transformer.advance(different, cache)
        cache.spread(origins)
        return logits[torch.tensor(origins, device=logits.device)]

    def _decode(self, sequences: list[_Sequence], cache: Cache) -> torch.Tensor:
        full = [row for row, length in enumerate(cache.lengths) if length == cache.capacity]
        if not full:
            return self._transformer.advance([sequence.tokens[-1:] for sequence in sequences], cache)
        logits = []
        for row, sequence in enumerate(sequences):
            alone = cache.row(row)
            if row in full:
                alone.begin(1)
            ids = self._window(sequence) if row in full else sequence.tokens[-1:]
            logits.append(self._transformer.advance([ids], alone))
            cache.lengths[row] = alone.lengths[0]
        return torch.cat(logits)
