"""How fast programs run on the emulator: thread instructions per second of one core, with and without the race check.

    python benchmarks/emulated_speed.py [--output results/cpu/study.jsonl]

The program has a million threads whose code is straight, so that the instructions that NVRTC makes of it are those that
each thread executes. Rates are per second of CPU time of the whole program, its host's part and the system's included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from gpuless.compile import nvrtc, sass
from gpuless.launch import Build
from gpuless.program import building, execution
from rung.results import machine, store
from rung.results.row import Row

PROGRAM = Path(__file__).parent.parent / "gpuless/tests/programs/right/million_threads.cu"


def instructions() -> int:
    """Of one thread."""
    text = PROGRAM.read_text()
    kernel = text[text.index("__global__") : text.index("int main")]
    cubin = nvrtc.compile_cubin(Build(kernel, PROGRAM.name, ("saxpy",), ()), "sm_90")
    mix = next(iter(sass.instruction_mix(cubin).values()))
    return mix["total"] - mix.get("nop", 0)


def cpu_seconds() -> float:
    """Of all processes so far that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(program: Path, races: str) -> dict[str, float]:
    """The best of three: seconds of the launch on the clock, and CPU seconds of the whole program."""
    found: list[dict[str, float]] = []
    for _ in range(3):
        before = cpu_seconds()
        how = execution.Execution(races="yes" if races == "yes" else "no", quiet=True)
        ended = execution.run([program], how, keep=True)
        assert ended.output == "OK\n", ended.errors
        cpu = cpu_seconds() - before
        found.append({"launch_s": ended.kernels[0]["seconds"], "cpu_s": cpu})
    return min(found, key=lambda one: one["cpu_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    each, threads = instructions(), 1 << 20
    metrics: dict[str, float] = {"instructions": each, "threads": threads}
    program = building.program([PROGRAM], building.Options())
    for races in ("no", "yes"):
        one = measured(program, races)
        metrics |= {f"races_{races}_1_{key}": value for key, value in one.items()}
        metrics[f"races_{races}_1_per_s"] = each * threads / one["cpu_s"]
    whole = ["--no-races", "--races"]
    for word in whole:
        before = cpu_seconds()
        subprocess.run([sys.executable, "-m", "rung", "run", str(PROGRAM), word], check=True, capture_output=True)
        metrics[f"command{word.replace('-', '_')}_cpu_s"] = cpu_seconds() - before
    facts = {**machine.facts(), "gpu": ""}
    row = Row(kind="study", what="programs/speed", verdict="ok", metrics=metrics, machine=facts)
    print(json.dumps(metrics, indent=1))
    if given.output:
        store.append(row, given.output)


if __name__ == "__main__":
    main()
