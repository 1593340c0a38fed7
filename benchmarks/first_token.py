"""The first token of a new process, and where its time goes: with an empty cache of compiled code, with a full one, and
with an empty one beside a shared one that another machine has filled.

    PYTHONPATH=src python benchmarks/first_token.py [--model inner] [--dtype bfloat16] [--device cuda]

`compile_s` is the sum over NVRTC's programs, `longest_s` the longest of them: with a core for each program the time
without caches could fall by their difference. `last_s` is how long before the first token the last of them ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = list(range(11, 27))


def child(model: str, device: str, dtype: str) -> None:
    """One process, from its imports to its first token."""
    began = time.perf_counter()
    import rung
    from gpuless.compile import nvrtc

    programs: list[tuple[float, float, str]] = []
    compile_fresh = nvrtc.compile_fresh

    def timed(build: object, *arguments: object) -> object:
        start = time.perf_counter()
        try:
            return compile_fresh(build, *arguments)  # type: ignore[arg-type]
        finally:
            programs.append((start, time.perf_counter(), Path(build.origin).name))  # type: ignore[attr-defined]

    nvrtc.compile_fresh = timed  # type: ignore[assignment]
    imported = time.perf_counter()
    loaded = rung.load(model, device=device, dtype=dtype)
    ready = time.perf_counter()
    run = iter(loaded.run([PROMPT], max_new_tokens=32, temperature=0, stop_tokens=()))
    while not next(run)[1] and not loaded.engine.clock.prompt_tokens:
        pass
    first = time.perf_counter()
    for _ in run:
        pass
    whole = time.perf_counter()
    spans = [end - start for start, end, _ in programs]
    print(json.dumps({
        "import_s": imported - began, "load_s": ready - imported, "text_s": first - ready, "first_s": first - began,
        "text_of_32_s": whole - began, "programs": float(len(programs)), "compile_s": sum(spans),
        "longest_s": max(spans, default=0.0), "last_s": first - max((end for _, end, _ in programs), default=first),
        "each": [[name, round(end - start, 3)] for start, end, name in programs],
    }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("model", "inner"), ("device", "cuda"), ("dtype", "bfloat16")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--output", type=Path, help="rows of results (default: the store)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.model, given.device, given.dtype)
        return
    from rung.models.family import RANDOM
    from rung.results import machine, store
    from rung.results.row import Row

    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as new:
        for name in ("empty", "full", "shared"):
            own = new if name == "shared" else cache
            done = subprocess.run(
                [sys.executable, __file__, "--child", *sys.argv[1:]], capture_output=True, text=True, timeout=300,
                env={
                    **os.environ, "RUNG_CACHE": own, "CUDA_CACHE_PATH": f"{own}/driver",
                    "RUNG_SHARED_CACHE": cache if name == "shared" else "",
                },
            )  # fmt: skip
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            each = found.pop("each")
            print(f"{name:6} cache: " + ", ".join(f"{key} {value:.3g}" for key, value in found.items()), flush=True)
            print(*(f"  {seconds:7.3f} s  {program}" for program, seconds in each), sep="\n", flush=True)
            row = Row(
                kind="generate", what=given.model.removeprefix(RANDOM), part="first token", dtype=given.dtype,
                options={"device": given.device, "cache": name}, verdict="ok", machine=machine.facts(),
                weights="random" if given.model.startswith(RANDOM) else "", detail={"programs": each},
            )  # fmt: skip
            store.append(row.with_metrics(**found), given.output)


if __name__ == "__main__":
    main()
