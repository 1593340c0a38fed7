"""Attention over CUDA streams and GPUs, GPT-2 split over GPUs, and many texts over GPUs, as rows of results.

`python reproduce/benchmarks/parallel.py [--output rows.jsonl] [pipeline] [ring] [split] [texts]`; `ring:4` means
four GPUs only. With one GPU ring and split report that they need more. A case that fails is a row with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rung.dtypes import dtype
from rung.errors import RungError
from rung.models.batching import blocks
from rung.models.batching.worker_pool import Setup
from rung.models.load import load
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung_reproduce.parallel import launch, pipeline

ROOT = Path(__file__).resolve().parent.parent
TENSOR_CORES = "attention/27_tensor_cores"
Keep = Callable[[Row], None]


def row(part: str, what: str, kind: str, options: Mapping[str, Any], figures: Mapping[str, float], **more: Any) -> Row:
    """A measurement of `part`; `more` are other fields of the row."""
    facts = {**machine.facts(), "gpus": torch.cuda.device_count()}
    return Row(kind="parallel", what=what, part=part, dtype=kind, options=dict(options), metrics=dict(figures),
               machine=facts, **more)  # fmt: skip


def pipelined(store_row: Keep, only: int | None) -> None:
    """Copies and kernels over streams: with similar times, and with much shorter computing."""
    plain = [("f32", pipeline.RUNG, T) for T in (1024, 2048)]
    for kind, rung, T in (*plain, *(("bf16", TENSOR_CORES, T) for T in (1024, 4096))):
        texts = {rung: identity.text(catalogue.find(rung))}
        for r in pipeline.measure(units=192, T=T, HS=64, dtype=dtype(kind), causal=True, rung=rung):
            figures = {
                "seconds": r.seconds,
                "copying_in_s": r.overlap.copying_in,
                "computing_s": r.overlap.computing,
                "copying_out_s": r.overlap.copying_out,
                "bound_s": r.overlap.bound,
                "of_overlap": r.overlap.reached,
            }
            workload = {"T": T, "heads": 192, "chunk": r.chunk, "streams": r.streams}
            store_row(row("pipeline", "attention", kind, workload, figures, texts=texts))


def ring(store_row: Keep, only: int | None) -> None:
    """N = 8192 ... 131072, with and without a mask, against one GPU."""
    sizes = ("8192", "16384", "32768", "65536", "131072")
    for gpus in _counts(only):
        for mask in ((), ("--causal",)):
            workload = {"gpus": gpus, "causal": bool(mask)}
            words = [*sizes, *mask]
            for r in _job(store_row, "ring", "attention", workload, "rung_reproduce.parallel.nccl", words, gpus):
                figures = {
                    "seconds": r["seconds"],
                    "passing_s": r["passing_seconds"],
                    "one_gpu_s": r["one_seconds"],
                    "vs_one_gpu": r["speed_up"],
                    "error_norm": r["error"],
                    "tflops": r["tflops"],
                    "step_bytes": r["bytes_a_step"],
                }
                more = {"n": r["n"], "heads": r["heads"], "d": r["d"], "backend": r["backend"]}
                store_row(row("ring", "attention", r["dtype"], {**workload, **more}, figures))


def split(store_row: Keep, only: int | None) -> None:
    """Random weights of GPT-2's sizes, prompts of 512 tokens."""
    for gpus in _counts(only):
        for model, kind, texts in (("gpt2", "float32", 1), ("gpt2-xl", "bfloat16", 1), ("gpt2-xl", "bfloat16", 8)):
            words = [f"random:{model}", "--dtype", kind, "--tokens", "512", "--rows", str(texts)]
            workload = {"gpus": gpus, "texts": texts, "prompt_tokens": 512}
            for r in _job(store_row, "split", model, workload, "rung_reproduce.parallel.tensor_parallel", words, gpus):
                figures = {
                    "prompt_s": r["split_prompt_seconds"],
                    "token_s": r["split_token_seconds"],
                    "one_gpu_prompt_s": r["alone_prompt_seconds"],
                    "one_gpu_token_s": r["alone_token_seconds"],
                    "vs_one_gpu_prompt": r["prompt_speed_up"],
                    "vs_one_gpu_token": r["token_speed_up"],
                    "error_norm": r["error"],
                }
                same = {"same_greedy_tokens": r["same_greedy_tokens"]}
                store_row(row("split", model, kind, workload, figures, detail=same, weights="random"))


TEXT, NEW = 512, 128  # tokens of a text that is scored, and of a prompt's continuation
SCORED, WRITTEN = 8192, 256  # texts for each GPU


def texts(store_row: Keep, only: int | None) -> None:
    """gpt2 with random weights: texts scored, and prompts continued, by a model on each GPU."""
    from transformers import GPT2Config, GPT2LMHeadModel  # the other sections do not need it

    counts = [n for n in (1, 2, 4) if n <= torch.cuda.device_count() and only in (n, None)]
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
        how = {"model": folder, "device": "cuda", "dtype": "bfloat16"}
        for verb, measure, count in (("score", _scored, SCORED), ("generate", _written, WRITTEN)):
            first: list[Any] = []
            for gpus in counts:
                rng = random.Random(0)
                some = [[rng.randrange(50257) for _ in range(TEXT)] for _ in range(count * gpus)]
                workload = {"verb": verb, "gpus": gpus, "texts": len(some), "tokens": TEXT}
                try:
                    found, rate = measure(how, some, gpus)
                except RungError as error:
                    store_row(row("texts", "gpt2", "bfloat16", workload, {}, verdict="failed", reason=str(error)))
                    continue
                first = first or found
                same = sum(a == b for a, b in zip(found, first, strict=False)) / len(first)
                figures = {"tokens_per_s": rate, "complete": len(found) / len(some), "same": same}
                store_row(row("texts", "gpt2", "bfloat16", workload, figures, weights="random"))


def _scored(how: dict[str, Any], some: list[Any], gpus: int) -> tuple[list[float], float]:
    """Each text's log-probability, and tokens per second while all GPUs are at work."""
    found, times = [], []
    for (record,) in blocks.over_gpus(blocks.Job(how, "score", {}), some, gpus):
        found.append(record["logprob"])
        times.append(time.perf_counter())
    begin, end = len(some) * 3 // 10, len(some) * 9 // 10
    return found, (end - begin) * TEXT / (times[end] - times[begin])


def _written(how: dict[str, Any], some: list[Any], gpus: int) -> tuple[list[list[int]], float]:
    """Each prompt's continuation, and new tokens per second of a run after a warm-up run."""
    model = load(**how)
    model.spread([Setup(how, gpu=gpu) for gpu in range(1, gpus)])
    prompts = [ids[: TEXT // 4] for ids in some]
    for _ in range(2):
        began = time.perf_counter()
        done = model.generate(prompts, max_new_tokens=NEW, temperature=0.0, stop_tokens=())
        seconds = time.perf_counter() - began
    return [one.tokens for one in done], sum(len(one.tokens) for one in done) / seconds


def _counts(only: int | None) -> list[int]:
    counts = [n for n in (2, 4) if n <= torch.cuda.device_count() and only in (n, None)]
    if not counts:
        raise RungError(f"{only or 'two'} GPUs are needed; {torch.cuda.device_count()} are visible here.")
    return counts


def _job(
    store_row: Keep, part: str, what: str, workload: dict[str, Any], module: str, words: list[str], gpus: int
) -> list[Any]:
    """The results of a job's processes; if it fails, a row with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        try:
            launch.torchrun(module, [*words, "--output", str(file)], gpus, limit=200)
            found = json.loads(file.read_text(encoding="utf-8"))
        except RungError as error:
            store_row(row(part, what, "", workload, {}, verdict="failed", reason=str(error).splitlines()[0]))
            return []
    return found if isinstance(found, list) else [found]


SECTIONS: dict[str, Callable[[Keep, int | None], None]] = {
    "pipeline": pipelined, "ring": ring, "split": split, "texts": texts,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--output", type=Path, help="the file of rows (default: your store of results)")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.sections if name.partition(":")[0] not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))

    def store_row(made: Row) -> None:
        store.append(made, chosen.output)
        print(f"{made.part} {made.dtype} {made.options}: {made.metrics or made.reason}", flush=True)

    failed = 0
    for name in chosen.sections:
        section, _, count = name.partition(":")
        try:
            SECTIONS[section](store_row, int(count) if count else None)
        except (RungError, RuntimeError) as error:  # the other sections continue
            failed += 1
            print(f"{name} failed: {str(error).splitlines()[0]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
