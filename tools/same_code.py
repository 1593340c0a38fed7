"""Which rungs compile to the same instructions here and in another checkout, although their texts differ.

    python tools/same_code.py CHECKOUT

Reorganised headers change the order of constants in a cubin's data, and so the digest of `rung.rungs.identity`. This
tool compiles every measured build in both checkouts and compares instructions, kernel parameters and launches. Data is
left out where the code does not use it: the instructions then stay the same if a variable
is put before all others.
Texts found equal are written into results/codes.json, so that figures follow them. NVRTC is needed, a GPU is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ATTEMPTS = 4  # the compiler now and then gives a large kernel other registers
PROBE = '__device__ int a_variable_before_all_others = 1;\n#line 1 "{}"\n'


def instructions(rung: Any, values: Any, dtype: str, tuning: Any, *, probe: bool, again: bool) -> str:
    """The digest of a build's instructions, parameters and launches, in this process's checkout."""
    from rung.rungs import identity

    whole = identity.machine_code
    build = type(rung).build
    try:
        kept = (".text", ".nv.constant0")
        identity.machine_code = lambda elf: {n: c for n, c in whole(elf).items() if n.startswith(kept)}
        if probe:

            def probed(self: Any, *given: Any) -> Any:
                built = build(self, *given)
                return replace(built, source=PROBE.format(Path(built.origin).name) + built.source)

            type(rung).build = probed
        return identity.code(rung, values, dtype, tuning, "sm_90", again=again)
    finally:
        identity.machine_code, type(rung).build = whole, build


def of_python(rung: Any, values: Any, dtype: str, tuning: Any) -> str:
    """The digest of a Python rung's text, without the numbers of its neighbours, and of the kernels that it builds."""
    from gpuless.compile import nvrtc
    from rung.rungs import identity

    text = re.sub(r"\b\d\d_(?=\w+\.py)", "", identity._python(rung.source))
    parts = [text]
    module = rung.load("cuda")
    if hasattr(module, "build") and hasattr(module, "_defines"):
        names = {**rung.operation.complete(values), **rung.tuned(tuning), "dtype": dtype, "sm": 90, "sms": 132}
        built = nvrtc.compile_cubin(module.build(module._defines(names)), "sm_90")
        code = identity.machine_code(built.path.read_bytes())
        parts += [f"{n} {hashlib.sha256(c).hexdigest()}" for n, c in sorted(code.items()) if n.startswith(".text")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def work() -> None:
    """Answers a line of JSON for each line on standard input, with the checkout that PYTHONPATH names."""
    from rung.errors import RungError
    from rung.rungs import catalogue, identity

    for line in sys.stdin:
        job = json.loads(line)
        try:
            rung = catalogue.find(job["rung"])
            if job["what"] == "text":
                answer = identity.text(rung)
            elif rung.kind != "cuda":
                answer = of_python(rung, job["values"], job["dtype"], job["tuning"])
            else:
                given = (rung, job["values"], job["dtype"], job["tuning"])
                answer = instructions(*given, probe=job["what"] == "probe", again=job["again"])
        except (RungError, OSError) as error:
            answer = f"error: {error}"
        print(json.dumps(answer), flush=True)


class Checkout:
    """A process that answers for one checkout."""

    def __init__(self, root: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        command = [sys.executable, str(Path(__file__).resolve()), "--work"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
        )

    def ask(self, what: str, rung: str, row: Any = None, *, again: bool = False) -> str:
        own = {"values": row.values, "dtype": row.dtype, "tuning": row.tuning} if row is not None else {}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"what": what, "rung": rung, "again": again, **own}) + "\n")
        self.process.stdin.flush()
        answer: str = json.loads(self.process.stdout.readline())
        return answer


def same(before: Checkout, here: Checkout, name: str, rows: list[Any]) -> bool:
    """Whether all builds of these rows are the same code in both."""
    for row in rows:
        then = before.ask("code", name, row)
        if then.startswith("error"):
            return False
        now = (here.ask("code", name, row, again=i > 0) for i in range(ATTEMPTS))
        if not any(then == one for one in now):
            return False
        if row.code and not any(then == before.ask("probe", name, row, again=i > 0) for i in range(ATTEMPTS)):
            return False  # its data counts, and may differ
    return True


def main(other: Path) -> int:
    from rung.results import codes, store

    before, here = Checkout(other), Checkout(ROOT)
    index = {name: dict(known) for name, known in codes.known().items()}
    measured: dict[str, list[Any]] = {}
    for row in store.published():
        if row.kind == "bench" and row.verdict == "ok":
            measured.setdefault(row.what, []).append(row)
    different = 0
    for name, rows in sorted(measured.items()):
        now, then = here.ask("text", name), before.ask("text", name)
        if now == then or now.startswith("error") or then.startswith("error"):
            continue
        known = index.get(name, {})
        current = [r for r in rows if codes.same(name, r.texts[name], then, {name: known})]
        if not current:
            continue
        if known.get(now) is not None and known.get(now) == known.get(then):
            continue
        if same(before, here, name, current):
            newest = max(current, key=lambda r: r.time).texts[name]
            digest = known.get(newest) or codes.digest([r.code or now for r in sorted(current, key=lambda r: r.key)])
            index[name] = dict(sorted({**known, newest: digest, then: digest, now: digest}.items()))
            print(f"{name}: the same code")
        else:
            different += 1
            print(f"{name}: other code")
    store.write_whole(codes.FILE, json.dumps(index, indent=1, sort_keys=True) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main(Path(sys.argv[1]).resolve()))
