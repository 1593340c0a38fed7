"""Tokens per second of two checkouts of this repository, measured in turn on one GPU.

    python benchmarks/before_after.py BEFORE [--rounds 2] [--sections text]

BEFORE is another checkout, such as `git worktree add ../before COMMIT` makes. Each round runs benchmarks/generate.py in
one checkout, then in the other; the table has the median of the rounds and the ratio for each model, format and number
of texts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def measured(root: Path, sections: str, output: Path) -> dict[str, float]:
    """Tokens per second by model, format and part, as one run of the checkout's benchmark gives them."""
    command = [
        sys.executable,
        str(root / "benchmarks" / "generate.py"),
        "--sections",
        sections,
        "--output",
        str(output),
    ]
    subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")})
    found = {}
    for line in output.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rate = row.get("metrics", {}).get("tokens_per_s")
        if rate:
            values = " ".join(f"{n} {x}" for n, x in sorted(row.get("values", {}).items()))
            found[f"{row['what']} {row.get('part', '')} {row.get('dtype', '')} {values}"] = float(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sections", default="text")
    chosen = parser.parse_args()
    rates: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(chosen.rounds):
            for side, root in enumerate((chosen.before.resolve(), HERE)):
                for name, rate in measured(root, chosen.sections, Path(folder) / f"{i}-{side}.jsonl").items():
                    rates.setdefault(name, ([], []))[side].append(rate)
    for name, (before, after) in sorted(rates.items()):
        if before and after:
            old, new = statistics.median(before), statistics.median(after)
            print(f"{new / old:6.3f}  {old:10.1f} -> {new:10.1f} tokens/s  {name}")


if __name__ == "__main__":
    main()
