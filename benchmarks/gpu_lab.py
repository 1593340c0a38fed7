"""The lab on a real GPU, in sections that fail one by one: sweep, profile, studies, agreement.

`python benchmarks/gpu_lab.py [SECTION ...]` writes what each said, its JSON and its seconds under $OUT (or
./gpu_lab). Without arguments all sections run, about 100 seconds on an H200.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT") or "gpu_lab")
ROOT = Path(__file__).resolve().parent.parent
RUNG = [sys.executable, "-m", "rung"]
SWEEP = ["sweep", "layernorm/09_split", "--dtype", "f32", "--shape", "b8t1024", "--seconds", "0.05", "--json"]
PAIR = ["profile", "attention/13", "--vs", "attention/14", "--shape", "B=1,T=256,C=768,NH=12", "--json"]


def environment() -> dict[str, str]:
    own = {
        "PYTHONPATH": str(ROOT / "src"),
        "OUT": str(OUT.resolve()),
        "RUNG_RESULTS": str(OUT.resolve() / "results.jsonl"),
        "RUNG_TUNINGS": str(OUT.resolve() / "tunings.jsonl"),
    }
    return {**os.environ, **own}


def call(name: str, words: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Run a command; its output goes to files, and what it says last to the screen."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=limit, env=environment(), cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired as slow:
        out, err = (x.decode() if isinstance(x, bytes) else x or "" for x in (slow.stdout, slow.stderr))
        done = subprocess.CompletedProcess(words, 124, out, err + f"\nstopped after {limit:.0f} s")
    (OUT / f"{name}.out").write_text(done.stdout)
    (OUT / f"{name}.err").write_text(done.stderr)
    if done.returncode:
        print(f"  {name}: exit {done.returncode}: {_end(done.stderr or done.stdout)}")
    return done


def _end(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing said"


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def sweep() -> dict[str, Any]:
    """Killed half way, resumed, and compared with what had been written before."""
    store = OUT / "sweep.jsonl"
    process = subprocess.Popen(
        [*RUNG, *SWEEP, "-o", str(store)],
        env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    begun = time.monotonic()
    while lines(store) < 5 and process.poll() is None and time.monotonic() - begun < 40:
        time.sleep(0.05)
    killed = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = store.read_bytes() if store.exists() else b""
    done = call("sweep", [*RUNG, *SWEEP, "-o", str(store), "--plot", str(OUT / "sweep.svg")], 60)
    answer = json.loads(done.stdout)
    again = call("sweep_again", [*RUNG, *SWEEP, "-o", str(store)], 40)
    same = json.loads(again.stdout)
    table = [[(r["tuning"], r["verdict"], r.get("cold_us")) for r in a["rows"]] for a in (answer, same)]
    return {
        "killed": killed,
        "rows_when_killed": len(before.splitlines()),
        "kept": store.read_bytes().startswith(before),
        "resumed": answer["resumed"],
        "all_resumed_afterwards": table[0] == table[1],
        "best": answer["best"],
        "findings": [f["sentence"] for f in answer["findings"]],
        "verdicts": [(r["tuning"], r["verdict"], r["reason"], r.get("cold_us")) for r in answer["rows"]],
    }


def course() -> dict[str, Any]:
    words = [*RUNG, "sweep", "--course", "--seconds", "0.03", "-o", str(OUT / "course.jsonl"), "--json"]
    answer = json.loads(call("course", words, 120).stdout)
    return {"findings": [f["sentence"] for f in answer["findings"]], "rows": len(answer["rows"])}


def profile() -> dict[str, Any]:
    """The bank conflicts of K, with and without padding."""
    done = call("profile", [*RUNG, *PAIR], 90)
    if done.returncode:
        return {"failed": _end(done.stderr)}
    reports = json.loads(done.stdout)
    return {
        r["rung"]: [
            {
                "kernel": k["kernel"],
                **{n: k["figures"].get(n) for n in ("seconds", "conflicts_load", "ways_load", "l1_hit")},
                "stalls": [s["name"] for s in k["stalls"]],
                "counted": len(k["figures"]),
            }
            for k in r["kernels"]
        ]
        for r in reports
    }


def generate() -> dict[str, Any]:
    words = [*RUNG, "profile", "generate", "-n", "16", "--trace", str(OUT / "trace.json"), "--json"]
    done = call("generate", words, 60)
    answer = json.loads(done.stdout)
    (OUT / "trace.json").unlink(missing_ok=True)  # megabytes that nobody asked for
    return {n: answer[n] for n in ("device", "seconds", "gap")} | {"top": answer["shares"][:5]}


def studies() -> dict[str, Any]:
    """All in one process, each on its own."""
    program = (
        "import json, sys, time\n"
        "from pathlib import Path\n"
        "from rung import study\n"
        "from rung.results import machine\n"
        "from rung.study.common import Gpu\n"
        "from rung.show.sweep_chart import write_svg\n"
        "out = Path(sys.argv[1])\n"
        "for name in sys.argv[3:]:\n"
        "    start = time.monotonic()\n"
        "    try:\n"
        "        found = study.run(name, Gpu(quick=sys.argv[2] == 'quick'))\n"
        "        study.keep(name, found, machine.facts())\n"
        "        row = study.as_result(name, found, machine.facts())\n"
        "        (out / f'study-{name}.json').write_text(json.dumps(row))\n"
        "        if found.drawable:\n"
        "            write_svg(found.svg(), out / f'study-{name}.svg')\n"
        "        said = found.finding\n"
        "    except Exception as error:\n"
        "        said = f'failed: {type(error).__name__}: {error}'[:300]\n"
        "    print(json.dumps([name, round(time.monotonic() - start, 1), said]), flush=True)\n"
    )
    names = ["memory-latency", "vocab", "softmax", "waves", "precision", "fusion", "attention-scaling"]
    pace = os.environ.get("PACE", "quick")
    done = call("studies", [sys.executable, "-c", program, str(OUT), pace, *names], 240)
    return {one[0]: one[1:] for one in map(json.loads, done.stdout.splitlines())}


def agreement() -> dict[str, Any]:
    """With triton.testing.do_bench, within 3 %."""
    (OUT / "agreement.jsonl").unlink(missing_ok=True)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "tests/test_bench_agreement.py",
        "-p",
        "no:cacheprovider",
    ]
    done = call("agreement", words, 90)
    path = OUT / "agreement.jsonl"
    seen = [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
    ratios = {f"{s['call']} {s['dtype']} {s['values']}": round(s["ratio"], 4) for s in seen}
    clocks = [s["under_load"].get("sm_mhz") for s in seen]
    return {"exit": done.returncode, "ratios": ratios, "sm_mhz_under_load": clocks, "seen": seen}


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "sweep": sweep,
    "profile": profile,
    "agreement": agreement,
    "studies": studies,
    "generate": generate,
    "course": course,
}
USUAL = ("sweep", "profile", "agreement", "studies")


def main(wanted: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    answers: dict[str, Any] = {}
    for name in wanted or USUAL:
        start = time.monotonic()
        try:
            answers[name] = SECTIONS[name]()
        except Exception as error:
            answers[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        answers[name]["section_seconds"] = round(time.monotonic() - start, 1)
        print(json.dumps({name: answers[name]}, indent=1)[:3500], flush=True)
        (OUT / "gpu_lab.json").write_text(json.dumps(answers, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
