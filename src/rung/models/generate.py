"""Generation: prompts in, text out, piece by piece, any number of sequences at once."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine, Engine, Stream
from rung.models.batching.text import Clock, Piece, Request, Transcript, check
from rung.models.options import Completion, Options, Prompt
from rung.models.tokenizer import Tokenizer
from rung.models.transformer import Transformer

SEED_BITS = 53  # so that a seed is exact in JSON, wherever it is read
FIXED_BATCH = 8  # up to this many texts may have kernels for their number, unless another number was given


@dataclass
class Stats:
    """How a run spent its time."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    decoded: int = 0  # tokens in that time, without a first step's and those computed during the wait for it
    proposed: int = 0  # tokens of drafts, how many of them were accepted, and in how many steps
    accepted: int = 0
    drafted: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """Of decode steps, over all sequences."""
        return self.decoded / self.decode_seconds if self.decode_seconds else None


class Run:
    """Prompts being continued. Iterating does the work and yields (index of the completion, piece of text).

    Completions are in the order of the prompts, the samples of a prompt next to each other. Ctrl-C ends the
    iteration; what was written until then is in `completions`, and `interrupted` is set.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer | None,
        prompts: Sequence[Prompt],
        options: Options,
        engine: Engine | None = None,
    ) -> None:
        self.options, self._stats, self.interrupted = options, Stats(), False
        self._clock: Clock | None = None  # as it was when the iteration began, while it runs
        self._begun = 0  # texts that have a token
        self._delivered = 0
        # Without a seed prompts have different ones, so that their texts are independent. With one they share their
        # random numbers, and each text is what it is alone.
        drawn = random.Random(secrets.randbits(256))  # a draw of the system for each would cost a microsecond
        seeds = [drawn.getrandbits(SEED_BITS) if options.seed is None else options.seed for _ in prompts]
        self._transformer, self._tokenizer = transformer, tokenizer
        self._engine: Engine = engine or BatchEngine(lambda: backend_of(transformer, 1), tokenizer)
        call = f"run-{secrets.token_hex(6)}"
        for prompt in prompts:
            check(prompt, options, transformer.config)
        suited = options.within(transformer.config.vocabulary)
        texts = len(prompts) * options.num_samples
        rows = texts if texts <= (options.batch_size or FIXED_BATCH) else None
        longest = max((len(prompt.ids) for prompt in prompts), default=0)  # none where a resumed output is complete
        reach = 0 if options.slide else longest + options.max_new_tokens
        self._texts = [
            Transcript(Request(prompt, suited, seed, sample, call, rows, reach))
            for prompt, seed in zip(prompts, seeds, strict=True)
            for sample in range(options.num_samples)
        ]

    @property
    def requests(self) -> list[Request]:
        """One for each completion."""
        return [text.request for text in self._texts]

    @property
    def completions(self) -> list[Completion]:
        """Those begun so far; complete once the iteration has ended."""
        return [text.completion() for text in self._texts]

    def take(self, unfinished: bool = False) -> Iterator[tuple[int, Completion]]:
        """Finished completions not returned before, with their index, in order: each waits for those before it."""
        for index in range(self._delivered, len(self._texts)):
            text = self._texts[index]
            if text.reason is None and not unfinished:
                return
            self._delivered = index + 1
            yield index, text.completion()

    @property
    def finished(self) -> int:
        """How many completions have ended."""
        return sum(text.reason is not None for text in self._texts)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        stream = Stream(self._engine)
        self._clock, stats = replace(self._engine.clock), self._stats
        try:
            for index, piece in self._pieces(stream):
                text = self._texts[index]
                self._begun += not text.tokens and bool(piece.tokens)
                text.add(piece)
                stats.new_tokens += len(piece.tokens)
                yield index, piece.text
        except KeyboardInterrupt:
            self.interrupted = True
            stream.cancel()
            for index, piece in stream:
                self._texts[index].add(piece)
                yield index, piece.text
        finally:
            self._count()
            self._clock = None
            stream.cancel()

    def _pieces(self, stream: Stream) -> Iterator[tuple[int, Piece]]:
        waiting = list(enumerate(self.requests))[::-1]
        at_once = min(len(waiting), self.options.batch_size or len(waiting))
        with self._engine.together():
            for _ in range(at_once):
                stream.submit(*waiting.pop())
        for index, piece in stream:
            if piece.last and waiting:
                stream.submit(*waiting.pop())
            yield index, piece

    @property
    def stats(self) -> Stats:
        """How the time was spent so far."""
        self._count()
        return self._stats

    def _count(self) -> None:
        # The engine's clock, which includes other runs' texts.
        before = self._clock
        if before is None:
            return
        now, stats = self._engine.clock, self._stats
        stats.prompt_tokens = now.prompt_tokens - before.prompt_tokens
        stats.prefill_seconds = now.prefill_seconds - before.prefill_seconds
        stats.decode_seconds = now.decode_seconds - before.decode_seconds
        stats.proposed = now.proposed - before.proposed
        stats.accepted = now.accepted - before.accepted
        stats.drafted = now.drafted - before.drafted
        stats.decoded = stats.new_tokens - self._begun
