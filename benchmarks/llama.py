"""Models with Llama's layer on a GPU, random weights: correctness against transformers, then speed beside it.

    PYTHONPATH=src python benchmarks/llama.py --budget 200 [--models smollm2-135m ...] [--one] [--tunables]

Rows of the results store go to $OUT/llama.jsonl, a table is printed last. A part that fails is named, and the rest
runs. transformers comes last, while the budget lasts: it compiles each model for half a minute. With --tunables a step
is also timed with other launch parameters of the products for few rows.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import rung
from rung.models import family
from rung.models.weights import in_file, weights_of
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs.cuda import CudaRung

MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b")
NEW = 256  # tokens of one text


def theirs(name: str) -> dict[str, Any]:
    """The config.json of a known size."""
    c: Any = family.config_of(name)
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


def write(name: str, folder: Path) -> Path:
    """A folder with random weights."""
    fields = theirs(name)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    config = family.parse_config(fields, name)
    prefix = config.family.prefix
    tensors = in_file(weights_of(config, "cuda", seed=1))
    named = {
        name if name.startswith("lm_head") else prefix + name: t.to("cpu", torch.bfloat16)
        for name, t in tensors.items()
    }
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    return folder


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The shortest of a few calls, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


class Bench:
    """Runs parts, and keeps what they find as rows."""

    def __init__(self, budget: float) -> None:
        self.budget, self.began, self.failed = budget, time.monotonic(), 0
        self.rows: list[Row] = []
        self.output = Path(os.environ["OUT"]) / "llama.jsonl" if "OUT" in os.environ else None

    def part(self, what: str, part: str, by: str, work: Callable[[], dict[str, float]], **options: Any) -> None:
        if time.monotonic() - self.began > self.budget:
            print(f"{what} {part} {by}: left out, the time is over", flush=True)
            return
        try:
            found = work()
        except Exception as error:
            self.failed += 1
            traceback.print_exc()
            print(f"{what} {part} {by} {options}: {type(error).__name__} {error}", flush=True)
            return
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        wrong = found.get("right") == 0
        self.failed += wrong
        dtype = options.pop("dtype", "bfloat16")
        row = Row(
            kind="generate", what=what, part=part, dtype=dtype, options={"by": by, **options}, weights="random",
            verdict="failed" if wrong else "ok", machine=machine.facts(), state=machine.state(),
        ).with_metrics(**{n: v for n, v in found.items() if n != "right"})  # fmt: skip
        self.rows.append(store.append(row, self.output) if self.output else row)
        spent = time.monotonic() - self.began
        print(f"[{spent:5.0f} s] {what} {part} {by} {dtype} {options} {row.verdict}: {found}", flush=True)


def agreement(folder: Path, one: list[int], dtype: str, bound: float) -> dict[str, float]:
    """Logits, greedy tokens and scores against transformers' logits in float32."""
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    ours = rung.load(folder, device="cuda", dtype=dtype)
    tokens = ours.generate([one], max_new_tokens=24, temperature=0)[0].tokens
    logits = _logits_of(peer, [*one, *tokens])
    off = float((ours.logits([*one, *tokens]).to(logits.device) - logits).norm() / logits.norm())
    own = logits[: len(one) - 1].log_softmax(-1).gather(1, torch.tensor(one[1:], device="cuda")[:, None])
    score = ours.score([one])[0].logprob
    alike = ours.score([one[:40], one, one[3:]])[1].logprob == score
    many = ours.generate([one, one[:50], *[one[: 9 + i] for i in range(14)]], max_new_tokens=24, temperature=0)
    same = sum(a == b for a, b in zip(many[0].tokens, tokens, strict=True)) / len(tokens)
    # In 16 bits the number of texts chooses the kernels, and of two tokens about as likely either may be written.
    lost = max(_lost(_logits_of(peer, [*one, *text])[len(one) - 1 :], text) for text in (tokens, many[0].tokens))
    of_score = abs(score / float(own.sum()) - 1)
    right = off < bound and lost < 4 * bound * float(logits.std()) and of_score < bound and alike
    right = right and (same == 1 or dtype != "float32")
    return {"error": off, "lost": lost, "score_error": of_score, "same_in_a_batch": same, "right": float(right)}


@torch.no_grad()
def _logits_of(peer: Any, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = peer(torch.tensor([ids], device="cuda")).logits[0].float()
    return found


def _lost(logits: torch.Tensor, tokens: Sequence[int]) -> float:
    """By how much a token's logit is below the largest at most."""
    return max(float(row.max() - row[token]) for row, token in zip(logits[:-1], tokens, strict=True))


def step(ours: Any, rows: int) -> dict[str, float]:
    """One step's time by its graph of eight, its launches, and the time of its bytes at the rate of a copy."""
    engine: Any = ours.plan.engine
    session = engine.open(rows, 512)
    session.tensors["lengths"].fill_(192)
    graph = session.graph(8)
    took = seconds(lambda: [graph.replay() for _ in range(20)]) / 160
    launches = len(session.decode._steps) + 1
    read = sum({t.data_ptr(): t.nbytes for t in engine.operands.values()}.values())
    return {"step_us": took * 1e6, "launches": launches, "bytes_us": read / 4.3e6}


def kernels(ours: Any, rows: int) -> None:
    """The first launches of a step, one layer and a little more, and the sums by name."""
    from torch.profiler import ProfilerActivity, profile

    session = ours.plan.engine.open(rows, 512)
    session.tensors["lengths"].fill_(192)
    graph = session.graph(1)
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    events = sorted((e for e in seen.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start)
    sums: dict[str, list[float]] = {}
    for event in events:
        sums.setdefault(event.name[:40], []).append(event.time_range.elapsed_us())
    for event, after in itertools.pairwise(events[:15]):
        gap = after.time_range.start - event.time_range.start
        print(f"    {event.name[:40]:40} {event.time_range.elapsed_us():7.2f} us, next after {gap:6.2f}")
    for name, times in sums.items():
        print(f"    {name:40} {len(times):4} x {sum(times) / len(times):7.2f} us")


OTHERS = ({"WARPS": 4}, {"WARPS": 16}, {"AT_ONCE": 1}, {"AT_ONCE": 2}, {"WARPS": 4, "AT_ONCE": 1})


def tunables(folder: Path, name: str) -> None:
    """A step's time with other launch parameters of the products for few rows."""
    usual: Any = CudaRung.prepare
    for values in ({}, *OTHERS):

        def prepare(self: Any, *given: Any, values: dict[str, int] = values, **more: Any) -> Any:
            if "AT_ONCE" in self.tune and self.refusal(given[1], given[2], values, None, "cuda") is None:
                more["tuning"] = values
            return usual(self, *given, **more)

        CudaRung.prepare = prepare  # type: ignore[method-assign, assignment]
        try:
            took = step(rung.load(folder, device="cuda", dtype="bfloat16"), 1)["step_us"]
            print(f"    {name} {values}: {took:.1f} us", flush=True)
        except Exception as error:
            print(f"    {name} {values}: {type(error).__name__} {error}", flush=True)
        finally:
            CudaRung.prepare = usual  # type: ignore[method-assign]


def main() -> int:
    """The exit code: 1 where a part failed or was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=200.0, help="seconds after which no further part begins")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--tunables", action="store_true")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--theirs", action="store_true", help="only transformers' rows")
    given = parser.parse_args()
    bench = Bench(given.budget)
    with tempfile.TemporaryDirectory() as home:
        folders = {name: write(name, Path(home) / name) for name in given.models}
        texts = {
            name: torch.randint(
                family.config_of(name).vocabulary, (64, 1024), generator=torch.Generator().manual_seed(0)
            )
            for name in folders
        }
        for name, folder in folders.items() if not given.theirs else ():
            ours_of(bench, name, folder, texts[name], one=given.one)
        if given.tunables:
            for name, folder in folders.items():
                if time.monotonic() - bench.began < given.budget:
                    tunables(folder, name)
        for name, folder in folders.items() if not given.one else ():
            theirs_of(bench, name, folder, texts[name])
    print(f"\n{'model':14} {'part':10} {'by':13} {'dtype':9} result")
    for row in bench.rows:
        speed = row.metrics.get("tokens_per_s")
        shown = f"{speed:,.0f} tokens/s" if speed else row.verdict if row.part == "agreement" else ""
        shown = shown or ", ".join(f"{name} {value:,.1f}" for name, value in row.metrics.items())
        print(
            f"{row.what:14} {row.part:10} {row.options['by']:13} {row.dtype:9} {row.options.get('texts', '')} {shown}"
        )
    return min(bench.failed, 1)


def ours_of(bench: Bench, name: str, folder: Path, ids: torch.Tensor, *, one: bool) -> None:
    text = ids[0, :128].tolist()
    for dtype, bound in (("float32", 1e-4), ("bfloat16", 4e-2))[one:]:
        bench.part(name, "agreement", "rung", functools.partial(agreement, folder, text, dtype, bound), dtype=dtype)
    ours = rung.load(folder, device="cuda", dtype="bfloat16")

    def alone() -> dict[str, float]:
        took = seconds(lambda: ours.generate([text], max_new_tokens=NEW + 1, temperature=0, stop_tokens=[]))
        short = seconds(lambda: ours.generate([text], max_new_tokens=1, temperature=0, stop_tokens=[]))
        return {"tokens_per_s": NEW / (took - short), "first_ms": 1e3 * short}

    def many() -> dict[str, float]:
        texts = ids[:, :128].tolist()
        took = seconds(lambda: ours.generate(texts, max_new_tokens=128, temperature=0, stop_tokens=[]), 2)
        return {"tokens_per_s": 64 * 128 / took}

    def score() -> dict[str, float]:
        texts = ids[:8].tolist()
        ours.score(texts, context=1024, stride=1024)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        took = seconds(lambda: ours.score(texts, context=1024, stride=1024))
        more = torch.cuda.max_memory_allocated() - before
        return {"tokens_per_s": 8 * 1024 / took, "more_bytes": more}

    bench.part(name, "text", "rung", alone, texts=1, prompt_tokens=128, new_tokens=NEW)
    bench.part(name, "step", "rung", lambda: step(ours, 1), texts=1)
    if one:
        return _profiled(ours, 1)
    bench.part(name, "text", "rung", many, texts=64, prompt_tokens=128, new_tokens=128)
    bench.part(name, "step", "rung", lambda: step(ours, 64), texts=64)
    bench.part(name, "score", "rung", score, texts=8, tokens=1024)
    for rows in (1, 64):
        _profiled(ours, rows)


def _profiled(ours: Any, rows: int) -> None:
    try:
        kernels(ours, rows)
    except Exception as error:
        print(f"    no profile: {type(error).__name__} {error}")


def theirs_of(bench: Bench, name: str, folder: Path, ids: torch.Tensor) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    model.generation_config.cache_implementation = "static"

    def written(rows: int, new: int) -> Callable[[], object]:
        prompt = ids[:rows, :128].cuda()
        return lambda: model.generate(
            prompt, do_sample=False, attention_mask=torch.ones_like(prompt), pad_token_id=0, max_new_tokens=new
        )

    def alone() -> dict[str, float]:
        took, short = (seconds(written(1, n), 2) for n in (NEW + 1, 1))
        return {"tokens_per_s": NEW / (took - short), "first_ms": 1e3 * short}

    @torch.no_grad()
    def score() -> dict[str, float]:
        given = ids[:8].cuda()

        def run() -> object:
            logits = model(given, use_cache=False).logits[:, :-1].float()
            return logits.log_softmax(-1).gather(2, given[:, 1:, None])

        return {"tokens_per_s": 8 * 1024 / seconds(run, 2)}

    bench.part(name, "score", "transformers", score, texts=8, tokens=1024)
    bench.part(name, "text", "transformers", alone, texts=1, prompt_tokens=128, new_tokens=NEW)
    bench.part(
        name, "text", "transformers", lambda: {"tokens_per_s": 64 * 128 / seconds(written(64, 128), 1)},
        texts=64, prompt_tokens=128, new_tokens=128,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
