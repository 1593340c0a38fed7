"""Wrong kernels by class, each with a right twin: how many of both are refused, by rung and by other ways of checking.

    python benchmarks/corpus.py [CLASS ...] [--output results/cpu/study.jsonl]

The kernels are those of tests/broken/classes.toml. A twin is the file before its mistake was made in it; for a file
that is wrong as a whole, the operation's first rung. Two other ways are written anew, and run on the emulator without
what it looks for (poison, bounds, races), as a GPU would run them:
KernelBench's (one shape of powers of two, five seeds, allclose at 1e-4) and that of GPU MODE's problems (sizes 127,
128, 129, 256 and 512, one seed each, allclose at 1e-3). With --by compute-sanitizer its tools judge them on a GPU at
the sizes of the latter; with --by triton-sanitizer that of triton-viz judges the Triton files, on tensors of the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sanitize
from judging import REFUSED, TESTS, copy_headers, run
from rung import adopt
from rung.arrays import dtype_of, to_torch
from rung.dtypes import dtype
from rung.errors import RungError
from rung.operation import Case
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Device

ROOT = TESTS.parent
USUAL = {"B": 2, "T": 64, "C": 128, "OC": 256, "NH": 4, "S": 128, "R": 128, "N": 1024, "V": 512}
SIZES = (127, 128, 129, 256, 512)
WAYS = {"KernelBench": 1e-4, "GPU MODE": 1e-3}
TOOLS = {
    "compute-sanitizer": ("memcheck", "racecheck", "initcheck", "synccheck"),
    "triton-sanitizer": ("symbolic bounds",),
}
BELOW = "from triton_viz.wrapper import apply_sanitizer; apply_sanitizer()"  # the script that the next words name
PAD = 1 << 20  # bytes around each tensor, which kernels may touch unseen, as on a GPU


def refused(operation: str, file: Path, kind: str, *, wrong: bool) -> dict[str, bool]:
    """Whether each way refuses the kernel; a kernel that does not end or ends with a fault is refused by all."""
    check = [operation, file, "--dtype", kind]
    found = {"rung": run(check, 300).code in REFUSED}
    if wrong:
        found["rung --thorough"] = found["rung"] or run([*check, "--thorough"], 1200).code in REFUSED
    if file.suffix == ".cu" and kind == "f32":
        command = [sys.executable, __file__, "--others", operation, str(file)]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        except subprocess.TimeoutExpired:
            told = ""
        found |= {way: f"right by {way}" not in told for way in WAYS}
    return found


class Kernel:
    """A file as the other ways call it: in float32, with the operands that it takes, at sizes of their choice."""

    def __init__(self, name: str, file: str, device: Device) -> None:
        from rung.check.report import CheckRequest, Report
        from rung.check.runner import LocalRunner
        from rung.check.trial import Trials

        self.operation, self.f32, self.device = catalogue.operation(name), dtype("f32"), device
        self.rung = adopt.rung_from_file(self.operation, Path(file))
        asked, report = CheckRequest(), Report("", "f32", "emulator")
        self.names = Trials(self.rung, self.f32, "emulator", report, LocalRunner("emulator"), asked).names()

    def calls(self, way: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Seeds, and the sizes and scalars of a call."""
        of = self.operation
        usual = {dim: USUAL.get(dim, 64) for dim in of.dims}
        sizes = [usual] * 5 if way == "KernelBench" else [{**usual, of.dims[-1]: size} for size in SIZES]
        for seed, dims in enumerate(sizes):
            values = self._completed(dims) or self._completed({**dims, **of.alone})
            if values is not None:
                yield seed, values

    def _completed(self, given: dict[str, Any]) -> dict[str, Any] | None:
        try:
            values = self.operation.complete(given)
        except RungError:
            return None
        return values if self.rung.refusal(values, self.f32, None, device=self.device) is None else None


def by_another_way(way: str, name: str, file: str) -> bool:
    """Whether a kernel is right by KernelBench's way, or by GPU MODE's."""
    import torch

    import gpuless
    from rung.check.operands import Operands

    def padded(_: str, shape: tuple[int, ...], kind: str) -> torch.Tensor:
        count, left = torch.Size(shape).numel(), PAD // dtype_of(kind, torch).itemsize
        return torch.zeros(count + 2 * left, dtype=dtype_of(kind, torch))[left : left + count].view(shape)

    kernel, tried = Kernel(name, file, "emulator"), 0
    for seed, values in kernel.calls(way):
        tried += 1
        case = Case(f"{way} {seed}", values)
        operands = Operands(
            kernel.operation, values, kernel.f32, kernel.names, seed, device="cpu", empty=padded, case=case
        )
        right = operands.reference()
        with gpuless.under(poison=False):
            kernel.rung.prepare(operands.tensors, values, kernel.f32, device="emulator", empty=padded).run()
        for output, expected in ((n, e) for n, e in right.items() if n in operands.tensors):
            made = operands.tensors[output].double()
            if not torch.allclose(made, to_torch(expected).double(), rtol=WAYS[way], atol=WAYS[way]):
                return False
    return tried > 0


def launch(name: str, file: str) -> None:
    """Under a sanitizer, at the sizes of GPU MODE's way, each tensor an allocation; Triton's works without a GPU."""
    import torch

    from rung.rungs import base, python

    triton = file.endswith(".py")
    kernel, place = Kernel(name, file, "emulator" if triton else "cuda"), "cpu" if triton else "cuda"
    if triton:  # its kernels are called as on a GPU
        facts = base.device_facts("emulator")
        for module in (base, python):
            setattr(module, "device_facts", lambda _: facts)  # noqa: B010
    for seed, values in kernel.calls("GPU MODE"):
        on_cpu = kernel.operation.inputs(
            values, kernel.f32, seed, names=kernel.names,
            empty=lambda _, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch)),
        )
        written = {o.name for o in kernel.operation.operands if o.role == "out"}
        tensors = {n: torch.empty_like(t, device=place) if n in written else t.to(place) for n, t in on_cpu.items()}
        kernel.rung.prepare(tensors, values, kernel.f32, device="cuda").run()
        if not triton:
            torch.cuda.synchronize()
        print("launched", flush=True)


def sanitized(by: str, tool: str, operation: str, file: Path) -> bool | None:
    """Whether the tool reports an error, or the kernel ends otherwise than by returning; None if it never ran."""
    command = [sys.executable]
    if by == "triton-sanitizer":
        command += ["-c", BELOW]
    else:
        command[:0] = [sanitize.find(), "--tool", tool, "--error-exitcode", "99", "--report-api-errors", "no"]
    command += [__file__, "--launch", operation, str(file)]
    alone = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    alone["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), alone.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=alone)
    except subprocess.TimeoutExpired:
        return True
    reported = done.returncode == 99 or "ILLEGAL MEMORY ACCESS" in done.stdout
    if done.returncode and not reported and "launched" not in done.stdout:
        print(f"{file.stem}, {tool}: {(done.stdout + done.stderr).strip().splitlines()[-3:]}", flush=True)
    return bool(done.returncode) if reported or "launched" in done.stdout else None


def kernels(classes: list[str]) -> Iterator[tuple[str, dict[str, str], str, Path]]:
    """Class, entry, the wrong text, the right twin."""
    table = tomllib.loads((TESTS / "broken" / "classes.toml").read_text())["class"]
    for name, entries in table.items():
        for entry in entries if not classes or name in classes else ():
            path = (TESTS / entry["file"]).resolve()
            text = path.read_text(encoding="utf-8")
            ladder = ROOT / "src/rung/ladders" / entry.get("operation", "residual")
            twin = path if "before" in entry else min(ladder.glob("*.cu"))
            yield name, entry, text.replace(entry["before"], entry["after"], 1) if "before" in entry else text, twin


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="CLASS")
    parser.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--by", choices=TOOLS, help="judged by this tool instead")
    parser.add_argument("--kept", type=Path, help="judged before, one JSON line each; what is judged is appended")
    parser.add_argument("--known", action="store_true", help="only what was judged before")
    parser.add_argument("--jobs", type=int, default=2, help="kernels judged at a time")
    parser.add_argument("--output", type=Path, help="append the table as a row")
    asked = parser.parse_args()
    if asked.others:
        for way in WAYS:
            try:
                print(f"{'right' if by_another_way(way, *asked.words) else 'wrong'} by {way}", flush=True)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", flush=True)
        return
    if asked.launch:
        return launch(*asked.words)
    kept = asked.kept.read_text().splitlines() if asked.kept and asked.kept.exists() else []
    known: dict[str, dict[str, bool]] = {one["hash"]: one["refused"] for one in map(json.loads, kept)}

    lock = threading.Lock()

    def judge(operation: str, kind: str, path: Path, text: str, wrong: bool) -> None:
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / path.name
            file.write_text(text, encoding="utf-8")
            copy_headers(path, file.parent)
            if not asked.by:
                found = refused(operation, file, kind, wrong=wrong)
            elif kind == "f32" and (path.suffix == ".cu" if asked.by == "compute-sanitizer" else "@triton" in text):
                told = {tool: sanitized(asked.by, tool, operation, file) for tool in TOOLS[asked.by]}
                found = {tool: answer for tool, answer in told.items() if answer is not None}
            else:
                found = {}
        with lock:
            known[digest(text)] = found
            print(f"{path.stem}: {found}", flush=True)
            if asked.kept:
                with asked.kept.open("a") as lines:
                    print(json.dumps({"hash": digest(text), "refused": found}), file=lines)

    every = [(*one, one[-1].read_text(encoding="utf-8")) for one in kernels(asked.words)]
    if not asked.known:
        both = [(entry, twin, text, False) for _, entry, _, twin, text in every]
        both += [(entry, TESTS / entry["file"], text, True) for _, entry, text, _, _ in every]
        unknown = {
            digest(text): (entry.get("operation", "residual"), entry.get("dtype", "f32"), path, text, wrong)
            for entry, path, text, wrong in both
        }
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda one: judge(*one), [one for key, one in unknown.items() if key not in known]))
    rows, detail = list[list[Any]](), dict[str, Any]()
    for name, entry, text, twin, right in every:
        key, other = digest(text), digest(right)
        if not {key, other} <= {*known}:
            continue
        file = Path("tests", entry["file"]).as_posix() if not entry["file"].startswith("..") else entry["file"][3:]
        change = entry.get("after", "") and f"{entry['before']} -> {entry['after']}"
        rows.append([name, file, change, key, known[key], twin.relative_to(ROOT).as_posix(), other, known[other]])
        print(*rows[-1], flush=True)
    if asked.output and asked.by:
        tools = TOOLS[asked.by]
        detail = {"title": "Hash, and which tool reports an error", "columns": ["hash", *tools]}
        detail["rows"] = [[key, *map(found.get, tools)] for key, found in known.items() if found]
        row = Row(kind="study", what="corpus", part=asked.by, machine=machine.facts(), detail=detail)
        store.append(row, asked.output)
    elif asked.output:
        columns = ["class", "file", "change", "hash", "refused", "twin", "hash of the twin", "twin refused"]
        detail = {"title": "The corpus", "columns": columns, "rows": rows}
        row = Row(kind="study", what="corpus", part="kernels", machine=machine.facts(), detail=detail)
        store.append(row, asked.output)


if __name__ == "__main__":
    main()
