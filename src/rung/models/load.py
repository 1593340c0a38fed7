"""The public interface: `rung.load(...)` chooses a plan and returns a model that continues text."""

from __future__ import annotations

import asyncio
import difflib
import json
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, TypedDict, Unpack, overload

from gpuless.base.processors import processors
from rung.errors import RungError
from rung.lazy import torch
from rung.models.activations import capture
from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Piece, Request, Transcript
from rung.models.batching.worker_pool import Setup, WorkerPool
from rung.models.cpu.plan import NativeRater
from rung.models.drafts import NGRAM, drafting
from rung.models.family import read_config, requested, shortened
from rung.models.folders import find
from rung.models.generate import Run
from rung.models.options import Completion, Options, Prompt
from rung.models.plans import make_plan
from rung.models.sampling import Sampling
from rung.models.score import Score, Text, scores, spans
from rung.models.tensors import floats, plain_torch
from rung.models.tokenizer import Tokenizer, read_tokenizer
from rung.models.transformer import PlanScorer, Transformer
from rung.models.weights import weights_of


class Keywords(TypedDict, total=False):
    """The keywords of `generate` and `stream`: the fields of Sampling and Options."""

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_new_tokens: int
    max_tokens: int  # the same, as OpenAI's clients call it
    seed: int | None
    num_samples: int
    stop: str | Sequence[str]
    stop_tokens: int | Sequence[int] | None  # None: the end of text as the model's config names it
    ignore_eos: bool  # and then no token ends a text
    slide: bool
    echo: bool
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: int | None
    min_tokens: int
    priority: int
    batch_size: int | None
    logit_bias: Mapping[int, float]
    schema: Mapping[str, Any] | str


class ScoreKeywords(TypedDict, total=False):
    """What `score` takes."""

    context: int | None  # tokens of a window: the model's whole context
    stride: int | None  # tokens from window to window: half the context
    per_token: bool
    predict_first: bool  # score the first token as well, after an end-of-text token


class Model:
    """A loaded model."""

    def __init__(self, transformer: Transformer, folder: Path, name: str, load_seconds: float) -> None:
        self.transformer, self.folder, self.name = transformer, folder, name
        self.config, self.plan = transformer.config, transformer.plan
        self.load_seconds = load_seconds
        self._tokenizer: Tokenizer | None = None
        self._engine: BatchEngine | None = None
        self._pool: WorkerPool | None = None
        self._lock = threading.Lock()
        self.rater = transformer.service.rater or PlanScorer(transformer)

    def __repr__(self) -> str:
        c, plan = self.config, self.plan
        by = "" if plan.name == plan.on else f", plan {plan.name}"
        return f"<rung.Model {self.name}: {c.layers} layers of {c.C} channels, {plan.dtype} on {plan.on}{by}>"

    def __str__(self) -> str:
        c = self.config
        heads = f"{c.NH} heads, context {c.context:,}, vocabulary {c.vocabulary:,}"
        return f"{self!r}\n{heads}; from {self.folder}, loaded in {self.load_seconds:.1f} s"

    def __reduce__(self) -> NoReturn:
        raise RungError("a model is neither copied nor pickled; load it where it is needed, by rung.load.")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the weights' folder."""
        if self._tokenizer is None:
            if requested(self.name):
                raise RungError(f"{self.name} has random weights and no tokenizer; give it tokens, or name a model.")
            self._tokenizer = read_tokenizer(self.folder)
        return self._tokenizer

    @property
    def engine(self) -> BatchEngine:
        """The engine that all texts of this model go through, from any thread."""
        with self._lock:
            if self._engine is None:
                try:
                    tokenizer = self.tokenizer
                except RungError:
                    tokenizer = None  # tokens can be continued without one
                self._engine = BatchEngine(partial(backend_of, self.transformer), tokenizer)
            return self._engine

    def spread(self, setups: Sequence[Setup]) -> None:
        """Distribute runs' texts over this process and a worker for each of `setups`; returns when all are ready."""
        pool = WorkerPool(setups, self.engine, restart=False)
        pool.start()
        weakref.finalize(self, pool.close)
        self._pool = pool

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, **options: Unpack[Keywords]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], **options: Unpack[Keywords]
    ) -> list[Completion]: ...
    def generate(self, prompt: Any, **options: Unpack[Keywords]) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list; several samples of one prompt are a list too."""
        run = self.run([prompt] if isinstance(prompt, str) else prompt, **options)
        for _ in run:
            pass
        if run.interrupted:
            raise KeyboardInterrupt
        single = isinstance(prompt, str) and run.options.num_samples == 1
        return run.completions[0] if single else run.completions

    def stream(self, prompt: str, **options: Unpack[Keywords]) -> Generator[str, None, Completion]:
        """Continue a prompt, yielding pieces of text as soon as they are final."""
        run = self.run([prompt], **options)
        if run.options.num_samples != 1:
            raise RungError("stream gives one text; leave num_samples at 1, or use generate.")
        if run.options.echo:
            yield prompt
        for _, piece in run:
            if piece:
                yield piece
        if run.interrupted:
            raise KeyboardInterrupt
        return run.completions[0]

    def submit(self, prompt: str | Sequence[int], **options: Unpack[Keywords]) -> Future[Completion]:
        """Continue a prompt in the background; the future holds the completion, and can be cancelled."""
        request = self._request(prompt, options, "submit gives one text")
        future: Future[Completion] = Future()
        transcript = Transcript(request)

        def on_piece(piece: Piece) -> None:
            if future.cancelled():
                ticket.cancel()
            elif not piece.last:
                transcript.add(piece)
            elif future.set_running_or_notify_cancel():
                try:
                    transcript.add(piece)
                    future.set_result(transcript.completion())
                except RungError as error:
                    future.set_exception(error)

        ticket = self.engine.submit(request, on_piece)
        future.add_done_callback(lambda done: ticket.cancel() if done.cancelled() else None)
        return future

    async def astream(self, prompt: str | Sequence[int], **options: Unpack[Keywords]) -> AsyncGenerator[str, None]:
        """Continue a prompt: `async for piece in model.astream(...)`; leaving the loop ends the text."""
        request = self._request(prompt, options, "astream gives one text")
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Piece] = asyncio.Queue()

        def on_piece(piece: Piece) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        ticket = self.engine.submit(request, on_piece)
        transcript = Transcript(request)
        try:
            if request.options.echo:
                yield request.prompt.text
            while transcript.reason is None:
                piece = await pieces.get()
                transcript.add(piece)
                if piece.text:
                    yield piece.text
        finally:
            ticket.cancel()

    def _request(self, prompt: str | Sequence[int], options: Keywords, what: str) -> Request:
        if options.get("num_samples", 1) != 1:
            raise RungError(f"{what}; leave num_samples at 1, or use generate.")
        return replace(self.run([prompt], **options).requests[0], rows=None, reach=0)  # it may have company

    def logits(self, ids: Sequence[int] | Sequence[Sequence[int]] | torch.Tensor) -> torch.Tensor:
        """Logits in float32 for tokens (T) or (B, T): (T, V) or (B, T, V)."""
        tokens = self._tokens(ids, "logits")
        with plain_torch(self.plan.device):
            logits = self.transformer.logits(tokens.view(-1, tokens.shape[-1]))
        return logits[0] if tokens.ndim == 1 else logits

    def inside(
        self,
        text: str | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor,
        names: str | Sequence[str] = "blocks.*.hook_resid_post",
        *,
        out: str | Path | None = None,
    ) -> dict[str, torch.Tensor]:
        """Activations of one forward pass by TransformerLens' names, * for any part of one, each (B, T, ...).

        They are copied to the CPU as they are computed. With `out` they are also written to that file, as safetensors.
        """
        tokens = self._tokens(self.tokenizer.encode(text, begin=True) if isinstance(text, str) else text, "inside")
        found: dict[str, torch.Tensor] = {}

        def store(name: str, tensor: torch.Tensor) -> None:
            found[name] = tensor.to("cpu", copy=True).contiguous()

        patterns = [names] if isinstance(names, str) else list(names)
        with plain_torch(self.plan.device):
            capture(self.transformer, tokens.view(-1, tokens.shape[-1]), patterns, store)
        if out is not None:
            from safetensors import SafetensorError
            from safetensors.torch import save_file

            try:
                save_file(found, out)
            except (OSError, SafetensorError) as error:
                raise RungError(f"{out} cannot be written ({error}); name another file.") from None
        return found

    def hidden_states(
        self, text: str | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor, layers: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """The residual stream, (B, T, C) each: 0 is the embeddings, i the output of block i, the last one normalised.

        `layers` chooses among them; negative numbers count from the end.
        """
        last = self.config.layers
        chosen = list(range(last + 1)) if layers is None else [n + last + 1 if n < 0 else n for n in layers]
        wrong = next((n for n in chosen if not 0 <= n <= last), None)
        if wrong is not None:
            raise RungError(f"there is no layer {wrong}; the model has 0 to {last}.")
        names = ["ln_final.hook_normalized" if n == last else f"blocks.{n}.hook_resid_pre" for n in chosen]
        found = self.inside(text, list(dict.fromkeys(names)))
        return [found[name] for name in names]

    def embed(self, texts: str | Sequence[str], *, layer: int = -1, pooling: str = "mean") -> torch.Tensor:
        """A vector for a text (C), or for each of several (n, C): its tokens' mean at a layer, or its last token's."""
        if pooling not in ("mean", "last"):
            raise RungError(f"pooling is {pooling!r}; it must be 'mean' or 'last'.")
        if not isinstance(texts, str) and not len(texts := list(texts)):
            raise RungError("embed takes a text, or a list of at least one.")
        given = [texts] if isinstance(texts, str) else texts
        if pooling == "mean" and layer in (-1, self.config.layers):
            vectors = [floats(mean) for mean in self.means(given) if mean is not None]
        else:
            states = (self.hidden_states(text, [layer])[0][0].float() for text in given)  # (T, C)
            vectors = [one.mean(0) if pooling == "mean" else one[-1] for one in states]
        return vectors[0] if isinstance(texts, str) else torch.stack(vectors)

    def means(self, texts: Sequence[str | Sequence[int]]) -> Iterator[list[float] | None]:
        """The mean of each text's last hidden states, as soon as it is known, and None while a long one is read."""
        given, context = [self._text(text).ids for text in texts], self.config.context
        for ids in given:
            if not 1 <= len(ids) <= context:
                raise RungError(f"embeddings are of texts of 1 to {context:,} tokens; got {len(ids):,}.")
        if isinstance(self.rater, NativeRater):
            yield from (None if mean is None else mean.tolist() for mean in self.rater.means(given))
        else:
            for ids in given:
                yield self.hidden_states(ids, [-1])[0][0].float().mean(0).tolist()

    def _tokens(self, ids: Any, who: str) -> torch.Tensor:
        """Tokens (T) or (B, T), checked."""
        try:
            tokens = torch.as_tensor(ids, device="cpu") if not isinstance(ids, torch.Tensor) else ids
        except (TypeError, ValueError):
            raise RungError(f"{who} takes tokens, in one row or in rows of the same length.") from None
        if tokens.ndim not in (1, 2) or (tokens.numel() and tokens.is_floating_point()):
            raise RungError(f"{who} takes tokens, in one row or in rows of the same length.")
        tokens = tokens.to(torch.int64)
        if tokens.numel() == 0 or tokens.shape[-1] > self.config.context:
            raise RungError(f"{who} takes 1 to {self.config.context:,} tokens per row; got {tokens.shape[-1]:,}.")
        if int(tokens.max()) >= self.config.vocabulary or int(tokens.min()) < 0:
            raise RungError(f"a token is outside the model's vocabulary of {self.config.vocabulary:,}.")
        return tokens

    @overload
    def score(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[ScoreKeywords]
    ) -> Score: ...
    @overload
    def score(
        self, texts: Iterable[str] | Iterable[Sequence[int]], **options: Unpack[ScoreKeywords]
    ) -> list[Score]: ...
    def score(self, texts: Any, **options: Unpack[ScoreKeywords]) -> Score | list[Score]:
        """The likelihood of a text, or of each of several. With `per_token` also the figures of each token."""
        found = list(self.scores([texts] if isinstance(texts, str) else texts, **options))
        return found[0] if isinstance(texts, str) else found

    def scores(
        self, texts: Iterable[str] | Iterable[Sequence[int]], **options: Unpack[ScoreKeywords]
    ) -> Iterator[Score]:
        """The same for a stream of texts, each score as soon as it is known."""
        unknown = set(options) - ScoreKeywords.__annotations__.keys()
        if unknown:
            raise RungError(f"score has no option {min(unknown)!r}; it has {', '.join(ScoreKeywords.__annotations__)}.")
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise RungError(f"score takes a text, or a list of texts or of lists of tokens; got {texts!r}.")
        for name in ("context", "stride"):
            value: Any = options.get(name)
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise RungError(f"{name} is {value!r}; it must be a whole number.")
        context, stride = spans(options.get("context"), options.get("stride"), self.config.context)
        first = None
        if options.get("predict_first", False):
            if not self.config.eos:
                raise RungError("the model's config names no end-of-text token to put before the first token.")
            first = self.config.eos[0]
        per_token = options.get("per_token", False)
        return scores(
            self.rater, map(self._text, texts), context=context, stride=stride, per_token=per_token, first=first
        )

    def _text(self, text: str | Sequence[int]) -> Text:
        prompt = self._prompt(text)
        vocabulary = self.config.vocabulary
        if prompt.ids and (min(prompt.ids) < 0 or max(prompt.ids) >= vocabulary):
            wrong = next(i for i in prompt.ids if not 0 <= i < vocabulary)
            raise RungError(f"token {wrong} is outside the model's vocabulary of {vocabulary:,}.")
        known = isinstance(text, str) or self._tokenizer is not None
        return Text(prompt.ids, len(prompt.text.encode()) if known else None)

    def run(self, prompts: Sequence[str | Sequence[int]], **options: Unpack[Keywords]) -> Run:
        """A run over prompts that has not begun; iterate over it. Prompts are texts or token lists."""
        prompts = _plain(prompts)
        if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
            raise RungError("prompts are a list, of texts or of lists of tokens.")
        given: dict[str, Any] = dict(options)
        if "max_tokens" in given:
            if "max_new_tokens" in given:
                raise RungError("max_tokens and max_new_tokens mean the same; give one of them.")
            given["max_new_tokens"] = given.pop("max_tokens")
        stop, stop_tokens = given.get("stop", ()), given.get("stop_tokens")
        ignoring = given.pop("ignore_eos", False)
        if stop_tokens is None:
            stop_tokens = () if ignoring else self.config.eos
        given["stop"] = _list("stop", (stop,) if isinstance(stop, str) else stop)
        given["stop_tokens"] = _list("stop_tokens", (stop_tokens,) if isinstance(stop_tokens, int) else stop_tokens)
        if isinstance(given.get("schema"), Mapping):
            given["schema"] = json.dumps(given["schema"])
        if "logit_bias" in given:
            bias = given["logit_bias"]
            given["logit_bias"] = _list("logit_bias", bias.items() if isinstance(bias, Mapping) else bias)
        how = {name: given.pop(name) for name in Sampling.__dataclass_fields__ if name in given}
        unknown = next((name for name in given if name not in Options.__dataclass_fields__), None)
        if unknown is not None:
            raise RungError(f"generate has no option {unknown!r}; {_suggestion(unknown)}.")
        settings = Options(sampling=Sampling(**how), **given)
        tokenizer = self._tokenizer_if_any(prompts)
        if settings.schema is not None:
            from rung.models.batching.constraint import compiled

            compiled(settings.schema, self.tokenizer)
        engine = self._pool or self.engine
        return Run(self.transformer, tokenizer, [self._prompt(p) for p in prompts], settings, engine)

    def _prompt(self, prompt: str | Sequence[int]) -> Prompt:
        if isinstance(prompt, str):
            return Prompt(prompt, tuple(self.tokenizer.encode(prompt, begin=True)))
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise RungError(
                f"a prompt is a text or a list of tokens, not {prompt!r}; "
                "generate takes one text, or a list of prompts: [[1, 2, 3]] is one prompt of three tokens."
            )
        given = _plain(prompt)
        numbers = list(given) if isinstance(given, Iterable) else [given]
        kinds = set(map(type, numbers))  # not number by number: scores of short texts would wait for it
        if not all(issubclass(kind, Integral) and not issubclass(kind, bool) for kind in kinds):
            raise RungError(f"a prompt of tokens holds whole numbers; got {str(numbers)[:60]}.")
        ids = tuple(numbers if kinds == {int} else map(int, numbers))
        return Prompt(self._tokenizer.decode(ids) if self._tokenizer else "", ids)

    def _tokenizer_if_any(self, prompts: Sequence[str | Sequence[int]]) -> Tokenizer | None:
        # Tokens can be continued without a tokenizer; text cannot.
        try:
            return self.tokenizer
        except RungError:
            if any(isinstance(p, str) for p in prompts):
                raise
            return None


def _plain(tokens: Any) -> Any:
    """Lists of what torch or numpy holds."""
    return tokens.tolist() if hasattr(tokens, "tolist") else tokens


def _list(name: str, values: Any) -> tuple[Any, ...]:
    if values is None or isinstance(values, bytes) or not isinstance(values, Iterable):
        raise RungError(f"{name} is {values!r}; give a list, or leave it out.")
    return tuple(values)


def _suggestion(word: str) -> str:
    """The name that rung uses for a keyword that `generate` does not have."""
    names = list(Keywords.__annotations__)
    called = {"max_length": "max_new_tokens", "n": "num_samples"}.get(word)
    close = [called] if called else difflib.get_close_matches(word, names, n=1)
    return f"it is called {close[0]}" if close else f"it has {', '.join(names)}"


def load(
    model: str | Path = "inner",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    offline: bool = False,
    threads: int | None = None,
    plan: str | None = None,
    kernels: Mapping[str, str] | None = None,
    window: int | None = None,
    global_tokens: int = 0,
    draft: str | Path | None = None,
    cache: str | None = None,
    context: int | None = None,
) -> Model:
    """Load a model: a GPT-2, one with Llama's layer, a Gemma 3 or a StarCoder2.

    `model` is "inner" (the small one in this package), a folder in Hugging Face's layout, a GGUF file, a checkpoint of
    nanoGPT (ckpt.pt) or llm.c (.bin), the folder of a LoRA adapter that peft saved (its base model is found by the name
    there), an id of the hub such as "gpt2", or of a GGUF file there: "owner/name:Q8_0"; "random:gpt2" has random
    weights of that size, and no tokenizer.
    `device` is auto (a GPU where there is one), cpu, cuda or emulator: the CUDA kernels without a GPU. `dtype` is a
    name such as "bfloat16", or torch's own. `plan` names
    the rungs for the operations, and `kernels` replaces single rungs ({"attention": "5"}); the CPU runs no rungs. With
    a `window` a token attends to the last `window` tokens, including itself, and to the text's first `global_tokens`.
    `draft` proposes tokens, of which the model reads several at a time: a smaller model with the same vocabulary, or
    "ngram", the text so far. With the `cache` "int8" a GPU keeps the keys and values of more than 32 texts in 8 bits.
    With a `context` texts have at most so many tokens, and less memory is set aside.
    """
    began = time.perf_counter()
    if threads is not None and threads < 1:
        raise RungError(f"threads is {threads}; it must be at least 1.")
    if threads is not None and threads > (most := 4 * processors()):
        raise RungError(f"threads is {threads}; this process has {processors()} processors, so give at most {most}.")
    chosen = make_plan(device, dtype, plan, kernels or {}, threads, window, global_tokens, cache)
    sized = requested(str(model))
    folder = Path(model) if sized else find(str(model), revision=revision, offline=offline)
    config = shortened(sized or read_config(folder / "config.json"), context)
    chosen.admit(config)
    weights = chosen.read(folder, config) if sized is None else weights_of(
        config, chosen.device.type, matrix=chosen.matrix, vector=chosen.vector
    )  # fmt: skip
    transformer = Transformer(config, weights, chosen)
    if draft is not None:
        smaller = None if draft == NGRAM else load(
            draft, device=device, dtype=dtype, revision=revision, offline=offline, threads=threads, plan=plan,
            kernels=kernels, window=window, global_tokens=global_tokens,
        )  # fmt: skip
        transformer.drafting = drafting(smaller.transformer if smaller else None, transformer)
    return Model(transformer, folder, str(model), time.perf_counter() - began)
