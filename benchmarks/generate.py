"""Text generation on one GPU: rung against transformers (eager, and static cache + compile), in one run.

    PYTHONPATH=src python benchmarks/generate.py [--output rows.jsonl] [--sections text,prompt,...] [--missing]

Weights are random (drawn as transformers draws them), the same for both sides. Every figure is a row of the results
store; one that fails is a row with its reason, and the others continue. Sections: text (one text and batches), context
(a step at 50 and at 1000 tokens), sampling (the cost of choosing a token), prompt, llama (texts, steps and scores of
models with Llama's layer, beside transformers), peers (transformers on the texts of text), score (log-probabilities of
given texts, even and uneven, by rung and by transformers eager and compiled).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import rung
from generation_tables import COMPILED, LLAMA, STATIC
from rung.models import weights as model_weights
from rung.models.family import RANDOM, Config, config_of
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
from rung_reproduce.direct import write_texts

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


def transformers_config(name: str) -> dict[str, Any]:
    """The config.json of a known size with Llama's layer."""
    c: Any = config_of(name)
    s = c.rope
    assert s is not None
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": s.base}
    if s.kind != "default":
        rope |= {"rope_type": s.kind, "factor": s.factor, "low_freq_factor": s.low, "high_freq_factor": s.high,
                 "original_max_position_embeddings": int(s.original)}  # fmt: skip
    return {
        "model_type": "qwen3" if c.qk_norm else "qwen2" if c.qkv_bias else "llama", "hidden_size": c.C,
        "intermediate_size": c.F, "num_hidden_layers": c.layers, "num_attention_heads": c.NH,
        "num_key_value_heads": c.NKV, "head_dim": c.HS, "vocab_size": c.vocabulary, "max_position_embeddings": 2048,
        "rms_norm_eps": c.eps, "tie_word_embeddings": c.tied, "rope_parameters": rope, "eos_token_id": None,
        "bos_token_id": None,
    }  # fmt: skip


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
            weights="random",
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

                    torch._dynamo.reset()
                    logprobs = functools.partial(_logprobs, model)
                    forward = torch.compile(logprobs) if by == COMPILED else logprobs
                    theirs = functools.partial(_score_eight_at_a_time, forward, even)
                    found.metrics |= self._rate(theirs, texts * SCORED, before)

    def llama(self) -> None:
        """Texts of 128 tokens after 128 (one of 256), a step at 192, and scores of 8 texts, beside transformers."""
        for name in LLAMA:
            model: Any = rung.load(RANDOM + name, device="cuda", dtype="bfloat16")
            engine, scored = model.plan.engine, self.prompts(8, SCORED)
            for rows in (1, 8, 64, 256):
                options: dict[str, Any] = {"texts": rows, "prompt_tokens": BATCH, "new_tokens": _new(rows)}
                with self.row("text", name, "bfloat16", by="rung", **options) as found:
                    if found.selected:
                        rate, _ = self.generated(name, "bfloat16", rows, BATCH, _new(rows))
                        found.metrics["tokens_per_s"] = rate
                if rows in (1, 64):
                    with self.row("step", name, "bfloat16", by="rung", texts=rows) as found:
                        if found.selected:
                            step = self.step_time(engine, rows, 192, 512)
                            read = sum({t.data_ptr(): t.nbytes for t in engine.operands.values()}.values())
                            decode = engine.open(rows, 512).decode
                            launches = len(getattr(decode, "_steps", (decode,))) + 1
                            found.metrics |= {"step_us": step * 1e6, "launches": launches, "bytes_us": read / 4.3e6}
            with self.row("score", name, "bfloat16", by="rung", texts=8, tokens=SCORED) as found:
                if found.selected:
                    run = functools.partial(model.score, scored, context=SCORED, stride=SCORED)
                    found.metrics |= self._rate(run, 8 * SCORED, allocated())
            del model, engine
            self._llama_of_transformers(name, scored)

    def _llama_of_transformers(self, name: str, scored: list[list[int]]) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(**transformers_config(name))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().eval()
        for rows in (1, 64):
            options: dict[str, Any] = {"texts": rows, "prompt_tokens": BATCH, "new_tokens": _new(rows)}
            with self.row("text", name, "bfloat16", by="transformers", **options) as found:
                if found.selected:
                    more = {"cache_implementation": "static"}
                    found.metrics["tokens_per_s"] = self._peer(model, rows, BATCH, _new(rows), more)
        with self.row("score", name, "bfloat16", by="transformers", texts=8, tokens=SCORED) as found:
            if found.selected:
                run = functools.partial(_score_eight_at_a_time, functools.partial(_logprobs, model), scored)
                found.metrics |= self._rate(run, 8 * SCORED, allocated())

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _score(self, rater: GpuScorer, texts: list[list[int]]) -> None:
        for _ in scores(rater, map(Text, texts), context=SCORED, stride=SCORED // 2):
            pass

    def _rate(self, run: Callable[[], object], tokens: int, before: int, times: int = 5) -> dict[str, float | None]:
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

    def step_time(self, engine: GpuSteps, rows: int, length: int, reach: int = 0) -> float:
        """Seconds per step, from graphs of eight; lengths are reset, so that all have about the same context."""
        session = engine.open(rows, reach)
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

    def prompts(self, rows: int, length: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(7)
        prompts: list[list[int]] = torch.randint(0, 49152, (rows, length), generator=generator).tolist()
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


def _new(rows: int) -> int:
    return 2 * BATCH if rows == 1 else BATCH


def _logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids, use_cache=False).logits[:, :-1].float()
    found: torch.Tensor = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return found


def _score_eight_at_a_time(forward: Callable[[torch.Tensor], torch.Tensor], texts: list[list[int]]) -> None:
    with torch.inference_mode():
        sums = [forward(torch.tensor(texts[i : i + 8], device="cuda")).sum(1) for i in range(0, len(texts), 8)]
    torch.cat(sums).tolist()


class Found:
    """A measurement's result; `selected` is whether it is to be measured at all."""

    def __init__(self, *, selected: bool) -> None:
        self.selected = selected
        self.metrics: dict[str, float | None] = {}


SECTIONS = ("text", "context", "prompt", "sampling", "llama", "peers", "score")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--output", type=Path, help="the file of rows (default: your store of results)")
    parser.add_argument("--limit", type=float, default=1e9, help="start nothing new after this many seconds")
    parser.add_argument("--missing", action="store_true", help="only what has no row of the present code")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
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
