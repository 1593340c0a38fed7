"""Generation: prompts in, text out, piece by piece, any number of sequences at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rung.models.batching.backend import Clock
from rung.models.batching.engine import BatchEngine, Engine, Stream
from rung.models.batching.select_backend import backend_of
from rung.models.batching.text import Piece, Request, Text, Transcript, check
from rung.models.gpt2.model import Transformer
from rung.models.options import Completion, Options, Prompt
from rung.models.tokenizer import Tokenizer

SEED_BITS = 53  # so that a seed is exact in JSON, wherever it is read
FIXED_BATCH = 8  # up to this many texts, a plan that writes whole batches is used, unless another number was given


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
        self.options, self.stats, self.interrupted = options, Stats(), False
        self._delivered = 0
        # Without a seed prompts have different ones, so that their texts are independent. With one they share their
        # random numbers, and each text is what it is alone.
        seeds = [secrets.randbits(SEED_BITS) if options.seed is None else options.seed for _ in prompts]
        self._transformer, self._tokenizer = transformer, tokenizer
        self._engine: Engine = engine or BatchEngine(lambda: backend_of(transformer, 1), tokenizer)
        call = f"run-{secrets.token_hex(6)}"
        self._texts = [
            Transcript(Request(prompt, suited, seed, sample, call))
            for prompt, seed in zip(prompts, seeds, strict=True)
            for suited in (check(prompt, options, transformer.config),)
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
        few = len(self._texts) <= (self.options.batch_size or FIXED_BATCH)
        return self._stream() if not few or self._steps(self._texts[:1]) is None else self._batch()

    # ---- through the engine -----------------------------------------------------------------------------------------

    def _stream(self) -> Iterator[tuple[int, str]]:
        stream = Stream(self._engine)
        clock = replace(self._engine.clock)
        try:
            for index, piece in self._pieces(stream):
                self._texts[index].add(piece)
                self.stats.new_tokens += len(piece.tokens)
                self._count(clock)
                yield index, piece.text
        except KeyboardInterrupt:
            self.interrupted = True
            stream.cancel()
            for index, piece in stream:
                self._texts[index].add(piece)
                yield index, piece.text
        finally:
            stream.cancel()

    def _pieces(self, stream: Stream) -> Iterator[tuple[int, Piece]]:
        waiting = list(enumerate(self.requests))[::-1]
        for _ in range(min(len(waiting), self.options.batch_size or len(waiting))):
            stream.submit(*waiting.pop())
        for index, piece in stream:
            if piece.last and waiting:
                stream.submit(*waiting.pop())
            yield index, piece

    def _count(self, before: Clock) -> None:
        # The engine's clock, which includes other runs' texts.
        now, stats = self._engine.clock, self.stats
        stats.prompt_tokens = now.prompt_tokens - before.prompt_tokens
        stats.prefill_seconds = now.prefill_seconds - before.prefill_seconds
        stats.decode_seconds = now.decode_seconds - before.decode_seconds
        stats.proposed = now.proposed - before.proposed
        stats.accepted = now.accepted - before.accepted
        stats.drafted = now.drafted - before.drafted
        stats.decoded = stats.new_tokens - sum(bool(text.tokens) for text in self._texts)

    # ---- by a plan that writes a whole batch ------------------------------------------------------------------------

    def _steps(self, texts: Sequence[Transcript]) -> tuple[list[int], Iterator[list[int]]] | None:
        """Each text's limit, and its tokens step by step; None when the engine is to write."""
        options = self.options
        writer = self._transformer.service.writer
        seeds = {text.request.seed for text in self._texts}
        if writer is None or len(seeds) > 1 or self._transformer.drafting or options.slide or options.needs_logits:
            return None
        limit = self._transformer.config.context + 1
        limits = [min(options.max_new_tokens, limit - len(text.request.ids)) for text in texts]
        steps = writer.write(
            [text.request.ids for text in texts],
            limits,
            stop_tokens=texts[0].request.options.stop_tokens,
            sampling=options.sampling,
            seed=texts[0].request.seed,
            sequences=[text.request.sample for text in texts],
        )
        return limits, steps

    def _batch(self) -> Iterator[tuple[int, str]]:
        if not self._engine.alone.acquire(blocking=False):
            yield from self._stream()  # another run is using this path
            return
        texts = [Text(request, self._tokenizer) for request in self.requests]
        try:
            steps = self._steps(self._texts)
            assert steps is not None
            yield from self._follow(texts, *steps)
        except KeyboardInterrupt:
            self.interrupted = True
            for index, text in enumerate(texts):
                if text.reason is None:
                    piece = text.finish("interrupted")
                    self._texts[index].add(Piece(piece, reason=text.reason))
                    yield index, piece
        finally:
            self._engine.alone.release()

    def _follow(
        self, texts: Sequence[Text], limits: Sequence[int], steps: Iterator[list[int]]
    ) -> Iterator[tuple[int, str]]:
        # The plan chooses; here tokens become text, and a stop string may end a text early.
        self.stats.prompt_tokens += sum(len(text.request.ids) for text in texts)
        began = last = time.perf_counter()
        writer, ahead = self._transformer.service.writer, 0
        for step, tokens in enumerate(steps):
            now = time.perf_counter()
            if step == 0:
                self.stats.prefill_seconds += now - began
                # Steps computed during the wait for the first one are not part of the speed.
                last, ahead = now, max(1, writer.made if writer else 0)
            elif step >= ahead:
                self.stats.decode_seconds += now - last
                last = now
            for index, (text, token, limit) in enumerate(zip(texts, tokens, limits, strict=True)):
                if text.reason is not None or token < 0:
                    continue
                before = len(text.tokens)
                piece = text.accept((token,))
                if text.reason is None and len(text.tokens) == limit:
                    piece += text.finish("context")
                self.stats.new_tokens += 1
                self.stats.decoded += step >= ahead
                self._texts[index].add(Piece(piece, text.tokens[before:], None, text.reason))
                yield index, piece
            if all(text.reason is not None for text in texts):
                return
