"""Tokens per second of two versions of rung in one run, alternating: one text, many texts, and scores.

    git archive COMMIT src | tar -x -C before
    python benchmarks/two_versions.py --before before/src

Each measurement is a process of its own that sees one version. Models have random weights, written once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"gpt2": (12, 768, 12), "gpt2-xl": (48, 1600, 25)}
CASES = [  # model, dtype, texts; 0: scores
    ("gpt2", "bfloat16", 1), ("gpt2", "int8", 1), ("gpt2", "float32", 1), ("gpt2-xl", "bfloat16", 1),
    ("gpt2", "bfloat16", 64), ("gpt2", "bfloat16", 256), ("gpt2", "bfloat16", 0), ("gpt2", "float32", 0),
]  # fmt: skip


def write(folder: Path, name: str) -> None:
    """A model's folder with random weights in bfloat16."""
    import torch
    from safetensors.torch import save_file

    layers, C, heads = SIZES[name]
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, std: float = 0.02) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * std).bfloat16()

    tensors = {"wte.weight": draw(50257, C, std=0.05), "wpe.weight": draw(1024, C)}
    for i in range(layers):
        for norm in ("ln_1", "ln_2"):
            tensors[f"h.{i}.{norm}.weight"], tensors[f"h.{i}.{norm}.bias"] = 1 + draw(C), draw(C)
        for part, inputs, outputs in (
            ("attn.c_attn", C, 3 * C), ("attn.c_proj", C, C), ("mlp.c_fc", C, 4 * C), ("mlp.c_proj", 4 * C, C),
        ):  # fmt: skip
            tensors[f"h.{i}.{part}.weight"], tensors[f"h.{i}.{part}.bias"] = draw(inputs, outputs), draw(outputs)
    tensors["ln_f.weight"], tensors["ln_f.bias"] = 1 + draw(C), draw(C)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    shape = {"n_layer": layers, "n_embd": C, "n_head": heads, "vocab_size": 50257, "n_positions": 1024}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **shape}))


def measure(folder: str, dtype: str, texts: int, trials: int) -> list[float]:
    """Tokens per second of each trial, after two that compile and capture; 0 texts: scored tokens per second."""
    import torch

    import rung

    model = rung.load(folder, device="cuda", dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    length, new = (8, 512) if texts == 1 else (128, 128)
    prompts = torch.randint(0, 50000, (texts or 128, length if texts else 512), generator=generator).tolist()
    found = []
    for trial in range(trials + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        if not texts:
            model.score(prompts)
            rate = sum(map(len, prompts)) / (time.perf_counter() - began)
        else:
            run = model.run(prompts, max_new_tokens=new, temperature=0.0, stop_tokens=[])
            first, count = 0.0, 0
            for _ in run:
                if texts == 1:  # after the first token, so that the prompt is left out
                    first = first or time.perf_counter()
                    count += 1
            tokens = sum(len(one.tokens) for one in run.completions)
            assert tokens == new * texts, f"{tokens} tokens"
            start = first if texts == 1 else began
            rate = (tokens - (1 if texts == 1 else 0)) / (time.perf_counter() - start)
        if trial > 1:
            found.append(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="the src folder of the other version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="cases, as gpt2:bfloat16:64; 0 texts are scores")
    parser.add_argument("--child", nargs=3)
    chosen = parser.parse_args()
    if chosen.child:
        folder, dtype, texts = chosen.child
        print(json.dumps(measure(folder, dtype, int(texts), chosen.trials)))
        return
    versions = {"before": chosen.before.resolve(), "after": Path(__file__).resolve().parents[1] / "src"}
    with tempfile.TemporaryDirectory() as home:
        cases = [case for case in CASES if not chosen.only or ":".join(map(str, case)) in chosen.only]
        for name in {name for name, _, _ in cases}:
            write(Path(home) / name, name)
        for name, dtype, texts in cases:
            rates: dict[str, list[float]] = {version: [] for version in versions}
            for _ in range(chosen.rounds):
                for version, source in versions.items():
                    command = [sys.executable, __file__, "--trials", str(chosen.trials)]
                    command += ["--child", str(Path(home) / name), dtype, str(texts)]
                    done = subprocess.run(
                        command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True
                    )
                    if done.returncode:
                        print(f"{version}: {done.stderr[-800:]}", flush=True)
                        continue
                    rates[version] += json.loads(done.stdout.splitlines()[-1])
            medians = {version: statistics.median(found or [float("nan")]) for version, found in rates.items()}
            what = f"{texts} texts" if texts else "scores"
            ratio = medians["after"] / medians["before"]
            shown = ", ".join(f"{v} {m:,.0f}" for v, m in medians.items())
            print(f"{name} {dtype} {what}: {shown} tokens/s, after / before {ratio:.4f}", flush=True)


if __name__ == "__main__":
    main()
