"""Text generation on one GPU: rung against transformers (eager, and static cache + compile), in one run.

    PYTHONPATH=src python benchmarks/generate.py [--output rows.jsonl] [--sections text,prompt,...] [--missing]

Weights are random (drawn as transformers draws them), the same for both sides. Every figure is a row of the results
store; one that fails is a row with its reason, and the others continue. Sections: text (one text and batches), context
(a step at 50 and at 1000 tokens), cache (64 texts of the model of the package, or `--large`, with keys and values in 8
bits: divergence from those in 16, and perplexities; speed at 64 and 256 texts of gpt2), few (two to eight texts by the
step of few rows, and by the alternative rungs), drafts (the model of the package, or `--large`, with and without them),
sampling (the cost of choosing a token), prompt, agreement (logits and greedy text against transformers in float32),
peers (transformers on the same texts), score (log-probabilities of given texts, even and uneven, by rung and by
transformers eager and compiled).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import rung
from generation_tables import COMPILED, STATIC
from rung.errors import RungError
from rung.models import weights as model_weights
from rung.models.drafts import NGRAM
from rung.models.family import RANDOM, Config, config_of
from rung.models.gpt2.rungs import few_rows_rung
from rung.models.gpu.batched_prefill import Prefill
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.scoring import GpuScorer
from rung.models.gpu.session import dims
from rung.models.gpu.slots import GpuBackend
from rung.models.sampling import Sampling
from rung.models.score import Text, scores
from rung.models.weights import Weights
from rung.results import codes, machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.show.row_text import headline
from rung_reproduce.direct import logits_after, write_texts

PROMPT, NEW = 8, 512
BATCH = 128  # tokens of prompt and of text where there are several
LENGTHS = (64, 512, 1024)
SCORED = 1024  # tokens of a text that is scored
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SINGLE = (("gpt2", "bfloat16"), ("gpt2", "float32"), ("gpt2", "int8"), ("gpt2-xl", "bfloat16"), ("gpt2-xl", "int8"))
BETWEEN = (("gpt2-medium", "bfloat16"), ("gpt2-large", "bfloat16"))
TEXTS = (*((name, dtype, 1) for name, dtype in SINGLE + BETWEEN), *(("gpt2", "bfloat16", n) for n in (8, 64, 256)))
PEERS = (("gpt2", "bfloat16", 1), ("gpt2", "bfloat16", 64), ("gpt2", "bfloat16", 256), ("gpt2", "float32", 1),
         ("gpt2-xl", "bfloat16", 1))  # fmt: skip
SAMPLING = {
    "greedy": Sampling(temperature=0),
    "temperature": Sampling(temperature=0.8, top_p=1.0),
    "top-k 50": Sampling(temperature=0.8, top_k=50, top_p=1.0),
    "top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "all": Sampling(0.8, 50, 0.95, 0.01, 1.1, 0.1, 0.1),
}
HELD_OUT = Path(__file__).parents[1] / "tests" / "data" / "held_out_stories.txt"


def drafted_prompts() -> dict[str, list[str]]:
    passages = HELD_OUT.read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    repeated = "The wolf said: little pig, little pig, let me come in. " * 6
    return {"repeats": [repeated], "does not": [passage[:250] for passage in passages]}


def allocated() -> int:
    """Bytes of the GPU that live tensors hold; those of models that are gone only wait for the collector."""
    gc.collect()
    return torch.cuda.memory_allocated()


def transformers_model(config: Config, weights: Weights, dtype: torch.dtype) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=config.layers, n_embd=config.C, n_head=config.NH, bos_token_id=0, eos_token_id=None)
    )
    state: dict[str, Any] = {"transformer.wte.weight": weights.wte.weight, "transformer.wpe.weight": weights.wpe}
    state |= {"transformer.ln_f.weight": weights.ln_f.weight, "transformer.ln_f.bias": weights.ln_f.bias}
    state["lm_head.weight"] = weights.wte.weight
    for i, layer in enumerate(weights.layers):
        for name, norm in (("ln_1", layer.ln_1), ("ln_2", layer.ln_2)):
            state[f"transformer.h.{i}.{name}.weight"] = norm.weight
            state[f"transformer.h.{i}.{name}.bias"] = norm.bias
        for name, linear in (
            ("attn.c_attn", layer.qkv),
            ("attn.c_proj", layer.attn_proj),
            ("mlp.c_fc", layer.fc),
            ("mlp.c_proj", layer.mlp_proj),
        ):
            state[f"transformer.h.{i}.{name}.weight"] = linear.weight.t()
            state[f"transformer.h.{i}.{name}.bias"] = linear.bias
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    return model.to("cuda", dtype).eval()


# Prompts through torch's and its libraries' calls, by the same ladders.
LIBRARIES = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "gelu", "residual"), ("torch",)),
    "attention": ("sdpa_flash", "sdpa_efficient"),
}


@functools.cache
def weights_of(name: str) -> Weights:
    return model_weights.weights_of(config_of(name), "cuda")


class Bench:
    """Measures, and keeps each figure as a row."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.began = arguments, time.perf_counter()
        self.measured = {r.key: r for r in store.gather() if r.kind == "generate" and r.verdict == "ok"}
        self.bandwidth = 0.0

    @contextlib.contextmanager
    def row(self, part: str, what: str, dtype: str, rungs: tuple[str, ...] = (), **options: Any) -> Iterator[Found]:
        """The figures that the block fills in become a row; so does the reason why it has none."""
        texts = {name: identity.text(catalogue.find(name)) for name in rungs}
        blank = Row(
            kind="generate",
            what=what,
            part=part,
            dtype=dtype,
            options=options,
            texts=texts,
            weights="trained" if part in ("drafts", "cache") else "random",
            detail={"rung": rungs[0].partition("/")[2]} if len(rungs) == 1 else {},
            machine=machine.facts(),
        )
        known = self.measured.get(blank.key)
        found = Found(selected=not (self.late() or (self.arguments.missing and known and codes.current(known))))
        reason = ""
        try:
            yield found
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0][:300]
        gc.collect()
        torch.cuda.empty_cache()
        if found.selected and (found.metrics or reason):
            verdict = "failed" if reason else "ok"
            row = Row(**{**vars(blank), "verdict": verdict, "reason": reason, "state": machine.state()})
            row = store.append(row.with_metrics(**found.metrics), self.arguments.output)
            described = " ".join(str(v) for v in options.values())
            spent, figure = time.perf_counter() - self.began, headline(row) or row.reason
            print(f"[{spent:6.1f} s] {part} {what} {dtype} {described}: {figure}", flush=True)

    def late(self) -> bool:
        return bool(time.perf_counter() - self.began > self.arguments.limit)

    def engine(self, name: str, dtype: str) -> GpuSteps:
        return GpuSteps(config_of(name), weights_of(name), dtype)

    def served(self, engine: GpuSteps, rows: int, length: int = 512) -> tuple[str, ...]:
        """The decode rung used for this many texts."""
        rung = engine.rung(dims(engine.config, rows, length))
        return () if rung is None else (rung.full_name,)

    # ---- sections -----------------------------------------------------------------------------------------------

    def text(self) -> None:
        """One text of 512 tokens after 8, and batches of 128 after 128."""
        for name, dtype, rows in TEXTS:
            engine = self.engine(name, dtype)
            length, new = (PROMPT, NEW) if rows == 1 else (BATCH, BATCH)
            served = self.served(engine, rows)
            options = {"by": "rung", "texts": rows, "prompt_tokens": length, "new_tokens": new}
            with self.row("text", name, dtype, served, **options) as found:
                if found.selected:
                    rate, first = self.write(engine, rows, length, new)
                    if rows > 1:  # as a caller has it: with the engine's thread and all that the host does for a text
                        rate, found.metrics["spread"] = self.generated(name, dtype, rows, length, new)
                    step = self.step_time(engine, rows, 200 if rows == 1 else 192)
                    found.metrics |= {"tokens_per_s": rate, "first_ms": first * 1e3, "step_us": step * 1e6}
                    if rows == 1:
                        found.metrics["of_bandwidth"] = self.floor(name, dtype) / step

    def context(self) -> None:
        """A step early and late in the context."""
        for name, dtype in SINGLE[:4]:
            engine = self.engine(name, dtype)
            with self.row("context", name, dtype, self.served(engine, 1, engine.config.context), by="rung") as found:
                if found.selected:
                    short, late = (self.step_time(engine, 1, n) for n in (50, 976))
                    found.metrics |= {"short_us": short * 1e6, "long_us": late * 1e6}

    def few(self) -> None:
        """Two, four and eight texts of 128 after 128: the step of few rows, and the rungs used without it."""
        for name, dtype in SINGLE:
            for few in (few_rows_rung(dtype), None):
                engine = GpuSteps(config_of(name), weights_of(name), dtype, rung=few)
                for rows in (2, 4, 8):
                    try:
                        served = self.served(engine, rows)
                    except RungError:
                        continue
                    options = {"by": "rung", "texts": rows, "few_rows": few is not None}
                    with self.row("few", name, dtype, served, **options) as found:
                        if found.selected:
                            rate, _ = self.write(engine, rows, BATCH, BATCH)
                            step = self.step_time(engine, rows, 192)
                            found.metrics |= {"tokens_per_s": rate, "step_us": step * 1e6}

    def drafts(self) -> None:
        """Texts that repeat themselves and texts that do not, greedy and sampled, undrafted and drafted."""
        large, device = self.arguments.large, "cuda" if torch.cuda.is_available() else "cpu"
        what, path = ("gpt2, stories", large) if large else ("inner", "inner")
        for dtype in ("bfloat16", "float32"):
            plain: dict[tuple[str, float], float] = {}
            for draft in (None, NGRAM, *([self.arguments.draft] if large else [])):
                model = rung.load(path, device=device, dtype=dtype, draft=draft)
                name = "small model" if draft not in (None, NGRAM) else draft or "none"
                rungs = (catalogue.find(f"decode/{few_rows_rung(dtype)}").full_name,) if draft else ()
                for text, prompts in drafted_prompts().items():
                    for temperature in (0.0, 0.8):
                        options = {"draft": name, "text": text, "temperature": temperature}
                        with self.row("drafts", what, dtype, rungs, **options) as found:
                            if found.selected:
                                measured = self._drafted(model, prompts, temperature)
                                found.metrics |= measured
                                rate = measured["tokens_per_s"]
                                if draft is None:
                                    plain[text, temperature] = rate
                                elif (text, temperature) in plain:
                                    found.metrics["vs_undrafted"] = rate / plain[text, temperature]

    def _drafted(self, model: rung.Model, prompts: list[str], temperature: float) -> dict[str, float]:
        """One text after the other; the first run of each prepares."""
        tokens, seconds, proposed, accepted, drafted = 0, 0.0, 0, 0, 0
        for prompt in prompts:
            for last in (False, True):
                run = model.run(
                    [prompt], temperature=temperature, seed=1, stop_tokens=(), max_tokens=self.arguments.tokens
                )
                began = time.perf_counter()
                list(run)
                if last:
                    seconds += time.perf_counter() - began
                    tokens += len(run.completions[0].tokens)
                    stats = run.stats
                    proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
                    drafted += stats.drafted
        found = {"tokens_per_s": tokens / seconds}
        if proposed:
            found |= {"accepted": accepted / proposed, "tokens_per_step": 1 + accepted / drafted}
        return found

    def cache(self) -> None:
        """64 texts read token by token, keys and values in 16 bits and in 8: how far the next tokens' probabilities
        differ."""
        large = self.arguments.large
        what, path = ("gpt2, stories", large) if large else ("inner", "inner")
        truth: torch.Tensor | None = None
        for cache in (None, "int8"):
            model = rung.load(path, device="cuda", dtype="bfloat16", cache=cache)
            engine = model.transformer.service.engine
            assert isinstance(engine, GpuSteps)
            held_out = HELD_OUT.read_text(encoding="utf-8").replace("<|endoftext|>", "")
            ids = list(model.tokenizer.encode(held_out))
            texts = [[*ids, *ids][len(ids) * row // 64 :][:BATCH] for row in range(64)]
            served = self.served(engine, len(texts), BATCH)
            options: dict[str, Any] = {"cache": cache or "bfloat16", "texts": len(texts)}
            with self.row("cache", what, "bfloat16", served, **options) as found:
                logprobs = self._along(engine, texts)
                right = torch.tensor([text[PROMPT + 1 :] for text in texts], device="cuda").T[..., None]
                perplexity = logprobs[:-1].gather(2, right).mean().neg().exp()
                found.metrics["perplexity"] = float(perplexity)
                if truth is None:
                    truth = logprobs
                else:
                    found.metrics["kl_nats"] = float((truth.exp() * (truth - logprobs)).sum(-1).mean())
                    found.metrics["same_likeliest"] = float((truth.argmax(-1) == logprobs.argmax(-1)).float().mean())
            del model, engine
        for rows, cache in itertools.product((64, 256), (None, "int8")):
            engine = GpuSteps(config_of("gpt2"), weights_of("gpt2"), "bfloat16", cache=cache)
            options = {"cache": cache or "bfloat16", "texts": rows}
            with self.row("cache speed", "gpt2", "bfloat16", self.served(engine, rows), **options) as found:
                if found.selected:
                    rate, _ = self.write(engine, rows, BATCH, BATCH)
                    found.metrics |= {"tokens_per_s": rate, "step_us": self.step_time(engine, rows, 192) * 1e6}
            del engine

    def _along(self, engine: GpuSteps, texts: list[list[int]]) -> torch.Tensor:
        """Log-probabilities (tokens, texts, V) after each token that follows the prompt, for given texts."""
        after = logits_after(engine, [t[:PROMPT] for t in texts], [t[PROMPT:] for t in texts])
        return after.log_softmax(-1).transpose(0, 1)

    def sampling(self) -> None:
        """The cost of choosing a token."""
        engine = self.engine("gpt2", "bfloat16")
        for label, how in SAMPLING.items():
            with self.row("sampling", "gpt2", "bfloat16", self.served(engine, 1), how=label) as found:
                if found.selected:
                    found.metrics["tokens_per_s"], _ = self.write(engine, 1, PROMPT, NEW, sampling=how, seed=1)

    def prompt(self) -> None:
        """Prompts of 64, 512 and 1024 tokens: by the ladders, by torch, and by transformers compiled."""
        for dtype in ("bfloat16", "float32"):
            engine = self.engine("gpt2", dtype)
            session = engine.open(1)
            for length in LENGTHS:
                for by, rungs in (("best", None), ("torch", LIBRARIES)):
                    reader = Prefill(engine.config, session.tensors, 1, session.capacity, rungs=rungs)
                    reader.run(self.prompts(1, length))
                    used = tuple(dict.fromkeys(getattr(reader.passes[length], "rungs_in_use", {}).values()))
                    with self.row("prompt", "gpt2", dtype, used, by=by, prompt_tokens=length) as found:
                        if found.selected:
                            replay = functools.partial(reader.replay, length)
                            found.metrics["prompt_ms"] = self._call_time(replay) * 1e3
            del engine, session
            self._compiled_prompt(dtype)

    def _compiled_prompt(self, dtype: str) -> None:
        """transformers' forward over a prompt, compiled into a CUDA graph: keys and values, and the last logits."""
        model: Any = None
        for length in LENGTHS:
            with self.row("prompt", "gpt2", dtype, by=COMPILED, prompt_tokens=length) as found:
                if not found.selected:
                    continue
                model = model or transformers_model(config_of("gpt2"), weights_of("gpt2"), TORCH[dtype])
                ids = torch.tensor(self.prompts(1, length), device="cuda")

                def forward(ids: torch.Tensor = ids, model: Any = model) -> Any:
                    out = model(ids, use_cache=True, logits_to_keep=1)
                    return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]

                torch._dynamo.reset()
                compiled = torch.compile(forward, mode="reduce-overhead")
                with torch.inference_mode():
                    found.metrics["prompt_ms"] = self._call_time(compiled) * 1e3

    def agreement(self) -> None:
        """Greedy text and logits against transformers float32 (64 tokens after an 8-token prompt)."""
        model = transformers_model(config_of("gpt2"), weights_of("gpt2"), torch.float32)
        prompt = self.prompts(1, PROMPT)[0]
        with torch.inference_mode():
            ids = torch.tensor([prompt], device="cuda")
            text = model.generate(ids, max_new_tokens=64, do_sample=False, use_cache=True)[0].tolist()
            truth = model(torch.tensor([text], device="cuda")).logits[0].double().log_softmax(-1)
        for dtype in ("float32", "bfloat16", "int8"):
            engine = self.engine("gpt2", dtype)
            served = self.served(engine, 1)
            with self.row("agreement", "gpt2", dtype, served, **{"with": "transformers float32"}) as found:
                if found.selected:
                    ours = [step[0] for step in write_texts(GpuBackend(None, engine, 1, exact=True), [prompt], [64])]
                    same = next((i for i, (a, b) in enumerate(zip(ours, text[PROMPT:], strict=True)) if a != b), 64)
                    kl, likeliest = self._forced(engine, text, truth)
                    found.metrics |= {"same_tokens": same, "kl_nats": kl, "same_likeliest": likeliest}

    def peers(self) -> None:
        """transformers on the same texts."""
        for name, dtype, rows in PEERS:
            model: Any = None
            length, new = (PROMPT, NEW) if rows == 1 else (BATCH, BATCH)
            for by, more in ((STATIC, {"cache_implementation": "static"}), ("transformers, eager", {})):
                with self.row("text", name, dtype, by=by, texts=rows, prompt_tokens=length, new_tokens=new) as found:
                    if found.selected:
                        model = model or transformers_model(config_of(name), weights_of(name), TORCH[dtype])
                        found.metrics["tokens_per_s"] = self._peer(model, rows, length, new, more)

    def score(self) -> None:
        """Log-probabilities of texts of 1024 tokens, and of 10,000 uneven ones; transformers reads eight at a time."""
        for name, texts in (("gpt2", 32), ("gpt2-xl", 8)):
            engine, even = self.engine(name, "bfloat16"), self.prompts(texts, SCORED)
            before = allocated()
            rater = GpuScorer(engine.config, engine.operands, ready=engine.arrive)
            self._score(rater, even[:1])
            used = tuple(dict.fromkeys(rater.passes[SCORED].rungs_in_use.values()))
            options: dict[str, Any] = {"texts": texts, "tokens": f"{SCORED}"}
            with self.row("score", name, "bfloat16", used, by="rung", **options) as found:
                if found.selected:
                    run = functools.partial(self._score, rater, even)
                    found.metrics |= self._rate(run, texts * SCORED, before)
            if name == "gpt2":
                rng = random.Random(1)
                uneven = [ids[: rng.randint(5, 1000)] for ids in self.prompts(10_000, 1000)]
                with self.row("score", name, "bfloat16", used, by="rung", texts=10_000, tokens="5 to 1000") as found:
                    if found.selected:
                        run = functools.partial(self._score, rater, uneven)
                        found.metrics |= self._rate(run, sum(map(len, uneven)), before, times=1)
            del engine, rater
            model: Any = None
            for by in ("transformers, eager", COMPILED):
                with self.row("score", name, "bfloat16", by=by, **options) as found:
                    if not found.selected:
                        continue
                    model = model or transformers_model(config_of(name), weights_of(name), torch.bfloat16)
                    before = allocated()

                    def logprobs(ids: torch.Tensor, model: Any = model) -> torch.Tensor:
                        logits = model(ids, use_cache=False).logits[:, :-1].float()
                        found: torch.Tensor = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
                        return found

                    torch._dynamo.reset()
                    forward = torch.compile(logprobs) if by == COMPILED else logprobs

                    def theirs(forward: Any = forward, even: list[list[int]] = even) -> None:
                        with torch.inference_mode():
                            sums = [forward(torch.tensor(even[i : i + 8], device="cuda")).sum(1)
                                    for i in range(0, len(even), 8)]  # fmt: skip
                        torch.cat(sums).tolist()

                    found.metrics |= self._rate(theirs, texts * SCORED, before)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _score(self, rater: GpuScorer, texts: list[list[int]]) -> None:
        for _ in scores(rater, map(Text, texts), context=SCORED, stride=SCORED // 2):
            pass

    def _rate(self, run: Callable[[], None], tokens: int, before: int, times: int = 5) -> dict[str, float | None]:
        """Tokens per second of a run after a warm-up run, and the peak of additional memory."""
        run()
        torch.cuda.reset_peak_memory_stats()
        spent = []
        for _ in range(times):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run()
            spent.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() - before
        return {"tokens_per_s": tokens / statistics.median(spent), "peak_mb": peak / 1e6}

    def step_time(self, engine: GpuSteps, rows: int, length: int) -> float:
        """Seconds per step, from graphs of eight; lengths are reset, so that all have about the same context."""
        session = engine.open(rows)
        session.choice.greedy = True
        lengths = session.tensors["lengths"]
        session.tensors["limits"].fill_(1 << 30)
        lengths.fill_(length)
        graph = session.graph(8)
        times = []
        for trial in range(7):
            lengths.fill_(length)
            session.tensors["done"].zero_()
            session.tensors["steps"].zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(3):
                graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                times.append(begin.elapsed_time(end) / 24e3)
        return float(statistics.median(times))

    def _replay_time(self, graph: torch.cuda.CUDAGraph, times: int = 9) -> float:
        found = []
        for trial in range(times + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if trial > 1:
                found.append(begin.elapsed_time(end) / 1e3)
        return float(statistics.median(found))

    def _forced(self, engine: GpuSteps, text: list[int], truth: torch.Tensor) -> tuple[float, float]:
        """KL divergence per token and share of equal likeliest tokens, both models reading the same text."""
        kls, hits = [], []
        after = logits_after(engine, [text[:PROMPT]], [text[PROMPT:]])[0].double().log_softmax(-1)
        for at, p in enumerate(after, PROMPT):
            kls.append(float((truth[at].exp() * (truth[at] - p)).sum()))
            hits.append(int(p.argmax()) == int(truth[at].argmax()))
        return statistics.mean(kls), statistics.mean(hits)

    def prompts(self, rows: int, length: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(7)
        prompts: list[list[int]] = torch.randint(0, 50000, (rows, length), generator=generator).tolist()
        return prompts

    def write(self, engine: GpuSteps, rows: int, length: int, new: int, **how: Any) -> tuple[float, float]:
        """(tokens per second in total, seconds to the first) of the median of three runs after one to warm up."""
        found, prompts = [], self.prompts(rows, length)
        slots = GpuBackend(None, engine, rows, exact=engine.real.size == 4)  # as the engine of texts has it
        for trial in range(4):
            torch.cuda.synchronize()
            began, first, count = time.perf_counter(), 0.0, 0
            for step in write_texts(slots, prompts, [new] * rows, **how):
                count += len(step)
                first = first or time.perf_counter() - began
            if trial:
                found.append((count / (time.perf_counter() - began), first))
        return sorted(found)[1]

    def generated(self, name: str, dtype: str, rows: int, length: int, new: int) -> tuple[float, float]:
        """(tokens per second, largest less smallest over the median) of five calls of `generate` after two."""
        model, prompts = rung.load(RANDOM + name, device="cuda", dtype=dtype), self.prompts(rows, length)
        took = []
        for _ in range(7):
            began = time.perf_counter()
            model.generate(prompts, max_new_tokens=new, temperature=0, stop_tokens=[])
            took.append(time.perf_counter() - began)
        median = statistics.median(took[2:])
        return rows * new / median, (max(took[2:]) - min(took[2:])) / median

    def _call_time(self, call: Callable[[], Any], times: int = 25) -> float:
        """Seconds on the GPU, with queued launches, so that the host's time is not included."""
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end) / 1e3 / times)

    def _peer(self, model: Any, rows: int, length: int, new: int, more: dict[str, str]) -> float:
        ids = torch.tensor(self.prompts(rows, length), device="cuda")
        mask = torch.ones_like(ids)
        found = []
        with torch.inference_mode():
            for trial in range(3 if more else 2):
                torch.cuda.synchronize()
                began = time.perf_counter()
                out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0,
                                     **more)  # fmt: skip
                torch.cuda.synchronize()
                if trial:
                    found.append((out.shape[1] - length) * rows / (time.perf_counter() - began))
        return float(max(found))

    def floor(self, name: str, dtype: str) -> float:
        """Seconds to read the weights once at the speed of a copy here."""
        if not self.bandwidth:
            from rung.bench import race

            self.bandwidth = race.measure_ceilings().bytes
        layers, C = config_of(name).layers, config_of(name).C
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
        return float(size * (layers * 12 * C * C + 50257 * C) / self.bandwidth)


class Found:
    """A measurement's result; `selected` is whether it is to be measured at all."""

    def __init__(self, *, selected: bool) -> None:
        self.selected = selected
        self.metrics: dict[str, float | None] = {}


SECTIONS = ("text", "few", "cache", "drafts", "context", "prompt", "sampling", "agreement", "peers", "score")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--output", type=Path, help="the file of rows (default: your store of results)")
    parser.add_argument("--limit", type=float, default=1e9, help="start nothing new after this many seconds")
    parser.add_argument("--missing", action="store_true", help="only what has no row of the present code")
    parser.add_argument("--large", type=Path, help="drafts: a model of gpt2's size that was trained on stories")
    parser.add_argument("--draft", default="inner", help="drafts: the small model with the same vocabulary")
    parser.add_argument("--tokens", type=int, default=400, help="drafts: of a text")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and arguments.sections != "drafts":
        print("no CUDA device was found; the benchmark needs one.", file=sys.stderr)
        return 2
    chosen: list[str] = arguments.sections.split(",")
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    bench, failed = Bench(arguments), 0
    for name in chosen:
        run: Callable[[], None] = getattr(bench, name)
        try:
            run()
        except Exception as error:  # the other sections continue
            failed += 1
            print(f"{name} failed: {(str(error) or repr(error)).splitlines()[0]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
