"""Differential fuzzing of the machine: random programs, executed as machine code and, compiled by g++, on the host.

    python gpuless/tools/fuzz.py --seconds 60 --seed 1

What differs is printed with the seed that makes it again; the exit code is 1 if anything did. The programs are those of
gpuless/tests/random_programs.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import random_programs
from gpuless.base.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long programs are made (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; each further one has the next")
    parser.add_argument("--programs", type=int, default=1 << 30, help="at most so many programs")
    parser.add_argument("--arch", default="sm_90a", help="that programs are compiled for")
    given = parser.parse_args()
    ends, statements, wrong, seed = time.monotonic() + given.seconds, 0, 0, given.seed
    while time.monotonic() < ends and seed < given.seed + given.programs:
        try:
            problem, count = random_programs.compare(seed, given.arch)
        except UserError as error:
            problem, count = f"does not compile: {error}", 0
        statements, wrong = statements + count, wrong + bool(problem)
        if problem:
            print(f"seed {seed}: {problem}", flush=True)
        seed += 1
    print(f"{seed - given.seed} programs with {statements} statements: {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
