"""The first token of a new process, with an empty cache of compiled code and with a full one, and where its time goes.

    PYTHONPATH=src python benchmarks/first_token.py [--model inner] [--dtype bfloat16] [--device cuda]

`compile_s` is the sum over NVRTC's programs, `longest_s` the longest of them: with a core for each program the time
without caches could fall by their difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

PROMPT = "Once upon a time"


def child(model: str, device: str, dtype: str) -> None:
    """One process, from its imports to its first token."""
    began = time.perf_counter()
    import rung
    from rung.cuda import nvrtc

    programs: list[float] = []
    compile_fresh = nvrtc.compile_fresh

    def timed(*arguments: object) -> object:
        start = time.perf_counter()
        try:
            return compile_fresh(*arguments)  # type: ignore[arg-type]
        finally:
            programs.append(time.perf_counter() - start)

    nvrtc.compile_fresh = timed  # type: ignore[assignment]
    imported = time.perf_counter()
    loaded = rung.load(model, device=device, dtype=dtype)
    ready = time.perf_counter()
    next(loaded.stream(PROMPT, max_new_tokens=32, temperature=0, stop_tokens=()))
    first = time.perf_counter()
    print(json.dumps({
        "import_s": imported - began, "load_s": ready - imported, "text_s": first - ready, "whole_s": first - began,
        "programs": len(programs), "compile_s": sum(programs), "longest_s": max(programs, default=0.0),
    }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("model", "inner"), ("device", "cuda"), ("dtype", "bfloat16")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.model, given.device, given.dtype)
        return
    with tempfile.TemporaryDirectory() as cache:
        for name in ("empty", "full"):
            done = subprocess.run(
                [sys.executable, __file__, "--child", *sys.argv[1:]], capture_output=True, text=True, timeout=300,
                env={**os.environ, "RUNG_CACHE": cache, "CUDA_CACHE_PATH": f"{cache}/driver"},
            )  # fmt: skip
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            print(f"{name:5} cache: " + ", ".join(f"{key} {value:.3g}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
