"""Attention beyond one stream and one process, on real GPUs, in sections that fail one by one.

`python benchmarks/gpu_beyond.py [SECTION ...]` writes JSON and charts under $OUT (or ./gpu_beyond). Sections: study
(sequential C++ to CUDA, N 256 ... 8192), pipeline (streams, f32 and bf16), ring (over 2 and 4 GPUs against one), split
(GPT-2 over 2 and 4 GPUs); `ring:4` means four alone. With one GPU the last two say that they need more. About two
minutes on one H200.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rung.dtypes import dtype
from rung.errors import RungError
from rung.parallel import launch, pipeline

OUT = Path(os.environ.get("OUT") or "gpu_beyond").resolve()
ROOT = Path(__file__).resolve().parent.parent


def study() -> Any:
    """The whole study, as a user would run it."""
    words = [
        "study",
        "attention",
        "--data",
        str(OUT / "data"),
        "--json",
        "--chart",
        str(OUT / "study-attention.svg"),
    ]
    environment = {**os.environ, "RUNG_RESULTS": str(OUT / "results.jsonl")}
    done = subprocess.run(
        [sys.executable, "-m", "rung", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    for file in (OUT / "data").glob("*.npz"):  # large, and to be had again from the seed
        file.unlink()
    if done.returncode:
        raise RungError(done.stderr.strip()[-600:])
    found = json.loads(done.stdout)
    print("\n".join("  ".join(map(str, row)) for row in found["rows"]))
    print(*(f"{name}: {part['finding']}" for name, part in found.get("more", {}).items()), sep="\n")
    return found


def pipelined() -> Any:
    """Where copies and compute are of like size, and where compute is far less."""
    found = {}
    for name, rung, T in (
        ("f32", pipeline.RUNG, 1024),
        ("f32", pipeline.RUNG, 2048),
        ("bf16", "attention/27_tensor_cores", 1024),
        ("bf16", "attention/27_tensor_cores", 4096),
    ):
        rows = pipeline.measure(units=192, T=T, HS=64, dtype=dtype(name), causal=True, rung=rung)
        serial, best = rows[0], min(rows[1:], key=lambda r: r.seconds)
        print(
            f"{name} T={T}: serial {serial.seconds * 1e3:.3f} ms, best {best.seconds * 1e3:.3f} ms "
            f"(chunks of {best.chunk}, {best.streams} streams), {serial.seconds / best.seconds:.2f}x; "
            f"in {serial.overlap.copying_in * 1e3:.3f}, compute {serial.overlap.computing * 1e3:.3f}, "
            f"out {serial.overlap.copying_out * 1e3:.3f} ms; overlap {best.overlap.reached:.0%}"
        )
        found[f"{name}-{T}"] = [{**asdict(r), "bound": r.overlap.bound, "reached": r.overlap.reached} for r in rows]
    return found


def _counts(only: int | None) -> list[int]:
    counts = [n for n in (2, 4) if n <= torch.cuda.device_count() and only in (n, None)]
    if not counts:
        raise RungError(f"{only or 'two'} GPUs are needed; of what is here, {torch.cuda.device_count()} can be seen.")
    return counts


def _job(module: str, words: list[str], processes: int, file: Path, limit: float) -> Any:
    launch.torchrun(module, [*words, "--output", str(file)], processes, limit=limit)
    return json.loads(file.read_text(encoding="utf-8"))


def ring(only: int | None = None) -> Any:
    """N = 8192 ... 131072, with and without a mask, against one GPU."""
    found: dict[str, Any] = {}
    for count in _counts(only):
        for mask in ([], ["--causal"]):
            name = f"ring-{count}-{'causal' if mask else 'full'}"
            sizes = ["8192", "16384", "32768", "65536", "131072"]
            try:
                rows = _job("rung.parallel.nccl", [*sizes, *mask], count, OUT / f"{name}.json", 200)
            except RungError as error:
                found[name] = {"failed": str(error)}
                print(f"{name}: {error}")
                continue
            found[name] = rows
            for r in rows:
                print(
                    f"{name} N={r['n']}: {r['seconds'] * 1e3:.3f} ms, one GPU {r['one_seconds'] * 1e3:.3f} ms, "
                    f"{r['speed_up']:.2f}x, passing alone {r['passing_seconds'] * 1e3:.3f} ms, error {r['error']:.1e}"
                )
    return found


def split(only: int | None = None) -> Any:
    """Random weights of GPT-2's sizes, prompts of 512 tokens."""
    found: dict[str, Any] = {}
    for count in _counts(only):
        for model, kind, rows in (
            ("gpt2", "float32", 1),
            ("gpt2-xl", "bfloat16", 1),
            ("gpt2-xl", "bfloat16", 8),
        ):
            name = f"split-{count}-{model}-{kind}-{rows}"
            words = [f"random:{model}", "--dtype", kind, "--tokens", "512", "--rows", str(rows)]
            try:
                r = _job("rung.parallel.tensor_parallel", words, count, OUT / f"{name}.json", 150)
            except RungError as error:
                found[name] = {"failed": str(error)}
                print(f"{name}: {error}")
                continue
            found[name] = r
            print(
                f"{name}: error {r['error']:.1e}, prompt {r['prompt_speed_up']:.2f}x, "
                f"token {r['token_speed_up']:.2f}x, same greedy tokens: {r['same_greedy_tokens']}"
            )
    return found


SECTIONS: dict[str, Callable[[int | None], Any]] = {
    "study": lambda _: study(),
    "pipeline": lambda _: pipelined(),
    "ring": ring,
    "split": split,
}


def main() -> int:
    wanted = sys.argv[1:] or list(SECTIONS)
    unknown = [name for name in wanted if name.partition(":")[0] not in SECTIONS]
    if unknown:
        print(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    failed = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        try:
            section, _, count = name.partition(":")
            found = SECTIONS[section](int(count) if count else None)
            (OUT / f"{name.replace(':', '-')}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        except Exception as error:  # the other sections go on
            failed += 1
            print(f"{name} failed: {str(error) or error!r}")
        print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
