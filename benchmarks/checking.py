"""How long a default check takes: every kernel of a folder by the command line, in CPU seconds and wall seconds.

python benchmarks/checking.py [FOLDER or FILES] [--rows FILE] [--seconds 300] [-- OPTIONS OF rung check]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tests" / "foreign"
# Where neither the file's name nor a kernel's says which operation it is.
OPERATIONS = {"flash_minimal": "attention", "triton_descriptors": "residual", "triton_block_pointers": "transpose"}
NAMES = [
    *("attention", "copy", "embedding", "gelu", "layernorm", "matmul"),
    *("reduce", "relu", "residual", "softmax", "transpose"),
]
STAGE = re.compile(r"  .*: (.*) \(([\d.]+) s\)")


def checked(path: Path, seconds: float, options: list[str]) -> dict[str, object]:
    """A row: verdict, seconds until each stage, and what the processes of the check used."""
    words = path.stem.split("_")
    named = OPERATIONS.get(path.stem) or next((w for w in (*words, "") if w in NAMES), "")
    command = [sys.executable, "-m", "rung", "check", *([named] if named else []), str(path), *options]
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid or time.monotonic() - began > seconds:
                break
            time.sleep(0.05)
        if not pid:
            os.killpg(process.pid, signal.SIGTERM)
            _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        output.seek(0)
        text = output.read()
    code = os.waitstatus_to_exitcode(status)
    verdict = "ok" if code == 0 else "too long" if not pid else "refused"
    stages = {m[1]: float(m[2]) for m in map(STAGE.match, text.splitlines()) if m}
    cpu = round(used.ru_utime + used.ru_stime, 1)
    told = "" if code == 0 else text[-1500:]
    return {"file": path.name, "verdict": verdict, "cpu": cpu, "wall": round(wall, 1), "stages": stages, "told": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, default=[FOLDER])
    parser.add_argument("--rows", type=Path, help="append a line of JSON for each file")
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments, options = parser.parse_known_args()
    options = [o for o in options if o != "--"]
    files = [f for given in arguments.files for f in (sorted(given.glob("*.[cp][uy]")) if given.is_dir() else [given])]
    rows = []
    for file in files:
        rows.append(row := checked(file, arguments.seconds, options))
        print(f"{row['cpu']:>7} s  {row['wall']:>7} s wall  {row['verdict']:9} {row['file']}", flush=True)
        if row["told"]:
            print(str(row["told"])[-700:], flush=True)
        if arguments.rows:
            with arguments.rows.open("a") as out:
                out.write(json.dumps(row) + "\n")
    spent = [float(str(row["cpu"])) for row in rows]
    right = sum(row["verdict"] == "ok" for row in rows)
    print(f"{right} of {len(rows)} pass; CPU seconds: median {statistics.median(spent):.1f}, most {max(spent):.1f}")


if __name__ == "__main__":
    main()
