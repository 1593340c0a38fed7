"""Models with Llama's layer on a GPU, random weights: correctness against transformers, then speed beside it.

    python benchmarks/llama.py --budget 400

Rows go to $OUT/llama.jsonl, a table is printed last. A part that fails is named, and the rest runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import rung
from rung.models import family
from rung.models.weights import in_file, weights_of

MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b")
NEW = 128


def theirs(name: str) -> dict[str, Any]:
    """The config.json of a known size."""
    c: Any = family.config_of(name)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": c.base}
    if c.scaling is not None:
        s = c.scaling
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


def main() -> int:
    """The exit code: 1 where a part failed or was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=400.0, help="seconds after which no further part begins")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    given = parser.parse_args()
    began, failed, rows = time.monotonic(), 0, list[dict[str, Any]]()
    card = torch.cuda.get_device_name()

    def part(model: str, what: str, work: Callable[[], dict[str, Any]]) -> None:
        nonlocal failed
        if time.monotonic() - began > given.budget:
            return
        try:
            rows.append({"model": model, "what": what, "card": card, **work()})
            print(json.dumps(rows[-1]), flush=True)
        except Exception as error:  # a part that fails is named, and the others run
            failed += 1
            traceback.print_exc()
            print(f"{model}, {what}: {type(error).__name__} {error}", flush=True)

    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as home:
        for name in given.models:
            folder = write(name, Path(home) / name)
            V = family.config_of(name).vocabulary
            ids = torch.randint(V, (64, 1024), generator=torch.Generator().manual_seed(0))
            one = ids[0, :128].tolist()

            def right(dtype: str, bound: float, folder: Path = folder, one: list[int] = one) -> dict[str, Any]:
                nonlocal failed
                peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
                ours = rung.load(folder, device="cuda", dtype=dtype)
                tokens = ours.generate([one], max_new_tokens=24, temperature=0)[0].tokens
                with torch.no_grad():
                    logits = peer(torch.tensor([[*one, *tokens]], device="cuda")).logits[0].float()
                found = ours.logits([*one, *tokens]).to(logits.device)
                off = float((found - logits).norm() / logits.norm())
                # Each greedy token's logit against the largest, by transformers' logits in float32.
                lost = max(
                    float(logits[len(one) - 1 + i].max() - logits[len(one) - 1 + i, t]) for i, t in enumerate(tokens)
                )
                own = logits[: len(one) - 1].log_softmax(-1).gather(1, torch.tensor(one[1:], device="cuda")[:, None])
                score = ours.score([one])[0].logprob
                alike = ours.score([one[:40], one, one[3:]])[1].logprob == score
                lot = abs(score / float(own.sum()) - 1)
                good = off < bound and lost < 4 * bound * float(logits.std()) and lot < bound and alike
                failed += not good
                return {
                    "dtype": dtype,
                    "error": off,
                    "lost": lost,
                    "score_error": lot,
                    "in_company": alike,
                    "right": good,
                }

            part(name, "correct float32", lambda: right("float32", 1e-4))
            part(name, "correct bfloat16", lambda: right("bfloat16", 4e-2))
            torch.cuda.empty_cache()
            try:
                ours = rung.load(folder, device="cuda", dtype="bfloat16")
            except Exception as error:
                failed += 1
                print(f"{name}: {error}", flush=True)
                continue

            def alone(ours: rung.Model = ours, one: list[int] = one) -> dict[str, Any]:
                took = seconds(lambda: ours.generate([one], max_new_tokens=NEW + 1, temperature=0, stop_tokens=[]))
                short = seconds(lambda: ours.generate([one], max_new_tokens=1, temperature=0, stop_tokens=[]))
                return {"engine": "rung", "tokens_per_second": NEW / (took - short), "first_ms": 1e3 * short}

            def many(ours: rung.Model = ours, ids: torch.Tensor = ids) -> dict[str, Any]:
                texts = ids[:, :128].tolist()
                took = seconds(lambda: ours.generate(texts, max_new_tokens=NEW, temperature=0, stop_tokens=[]), 2)
                return {"engine": "rung", "tokens_per_second": 64 * NEW / took}

            def score(ours: rung.Model = ours, ids: torch.Tensor = ids) -> dict[str, Any]:
                texts = ids[:8].tolist()
                ours.score(texts, context=1024, stride=1024)
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                took = seconds(lambda: ours.score(texts, context=1024, stride=1024))
                more = torch.cuda.max_memory_allocated() - before
                return {"engine": "rung", "tokens_per_second": 8 * 1024 / took, "more_bytes": more}

            part(name, "one text", alone)
            part(name, "64 texts of 128 + 128", many)
            part(name, "score 8 x 1024", score)
            del ours, alone, many, score
            torch.cuda.empty_cache()

            def peer(folder: Path = folder, one: list[int] = one) -> dict[str, Any]:
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
                model.generation_config.cache_implementation = "static"
                prompt = torch.tensor([one], device="cuda")
                how: dict[str, Any] = {"do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
                took = seconds(lambda: model.generate(prompt, max_new_tokens=NEW + 1, **how), 2)
                short = seconds(lambda: model.generate(prompt, max_new_tokens=1, **how), 2)
                return {"engine": "transformers", "tokens_per_second": NEW / (took - short)}

            part(name, "one text", peer)
            torch.cuda.empty_cache()
    out = os.environ.get("OUT")
    if out:
        (Path(out) / "llama.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"\n{'model':14} {'what':22} {'engine':13} result")
    for row in rows:
        speed = f"{row['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in row else f"right: {row['right']}"
        print(f"{row['model']:14} {row['what']:22} {row.get('engine', ''):13} {speed}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
