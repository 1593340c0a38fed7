"""`gpuless count`: what a program's kernels need and do. `gpuless diff A B`: the same of two programs, or of one
program compiled in two ways; limits on the growth end with exit code 1."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuless import timing
from gpuless.base.errors import UserError
from gpuless.counts import counters, counting
from gpuless.facts import gpus
from gpuless.program import building, execution

FIGURES = (
    "registers",
    "stack bytes",
    "shared bytes",
    "launches",
    "instructions",
    "sectors",
    "wavefronts",
    "microseconds",
)
Row = dict[str, float]
BY_LINE = ("instructions", "stack bytes", "sectors", "wavefronts")  # figures of which the lines are known
Lines = dict[counters.Place, Counter[str]]  # figures of a kernel by line; of the stack, a warp's reads and writes


@dataclass
class Measured:
    """A program's kernels: their figures, and what each line has of them."""

    rows: dict[str, Row]
    lines: dict[str, Lines]


def parser(verb: str, programs: Mapping[str, str]) -> argparse.ArgumentParser:
    """`programs`: the name of each program that it takes, with that of its option for nvcc."""
    made = argparse.ArgumentParser(
        prog=f"gpuless {verb}", usage=f"gpuless {verb} [OPTIONS] {' '.join(programs)} [ARGUMENT ...]",
        allow_abbrev=False, description="Microseconds are computed by the model of the GPU, not measured.",
    )  # fmt: skip
    made.add_argument("--gpu", default=gpus.USUAL, help=f"the GPU that programs see (default {gpus.USUAL})")
    made.add_argument("--json", action="store_true", help="one JSON document")
    for name, option in programs.items():
        made.add_argument(option, default="", metavar="OPTIONS", help=f"nvcc's options for {name}")
    made.add_argument("programs", nargs=len(programs), type=Path)
    made.add_argument("arguments", nargs=argparse.REMAINDER)
    return made


def count(words: Sequence[str]) -> int:
    options = parser("count", {"main.cu|COMMAND": "--nvcc"}).parse_args(words)
    gpu = gpus.find(options.gpu)
    how = building.Options(more=tuple(shlex.split(options.nvcc)), gpu=gpu.key)
    rows = figures_of(options.programs[0], how, options.arguments, gpu).rows
    if options.json:
        kernels = [{"kernel": name, "figures": row} for name, row in rows.items()]
        print(json.dumps({"schema": "gpuless/1", "verb": "count", "gpu": gpu.key, "kernels": kernels}, indent=1))
    for name, row in rows.items() if not options.json else ():
        print(name, *(f"  {label_of(figure, gpu.name):44}{row[figure]:>16,.6g}" for figure in FIGURES), sep="\n")
    return 0


def limits_of(words: Sequence[str]) -> dict[str, float]:
    found = {}
    for word in words:
        figure, _, percent = word.partition("=")
        try:
            found[figure] = float(percent.removesuffix("%"))
        except ValueError:
            raise UserError(f"--limit {word} is not FIGURE=PERCENT.") from None
        if figure not in FIGURES:
            raise UserError(f"--limit {word}: the figures are {', '.join(FIGURES)}.")
    return found


def run(words: Sequence[str]) -> int:
    made = parser("diff", {"A.cu": "--nvcc-a", "B.cu": "--nvcc-b"})
    made.add_argument(
        "--limit", action="append", default=[], metavar="FIGURE=PERCENT",
        help=f"how much more of a figure B may have, any kernel; figures: {', '.join(FIGURES)}",
    )  # fmt: skip
    options = made.parse_args(words)
    limits, gpu = limits_of(options.limit), gpus.find(options.gpu)
    both = [
        figures_of(path, building.Options(more=tuple(shlex.split(more)), gpu=gpu.key), options.arguments, gpu)
        for path, more in zip(options.programs, (options.nvcc_a, options.nvcc_b), strict=True)
    ]
    pairs = paired(*(one.rows for one in both))
    broken = beyond(pairs, limits)
    where = {name: changed(name, a, b, *both) for name, a, b in pairs}
    if options.json:
        rows = [{"kernel": name, "a": a, "b": b, "lines": where[name]} for name, a, b in pairs]
        print(
            json.dumps(
                {"schema": "gpuless/1", "verb": "diff", "gpu": gpu.key, "kernels": rows, "beyond": broken}, indent=1
            )
        )
    else:
        print(table(pairs, where, gpu.name))
        print(*(f"beyond its limit: {one}" for one in broken), sep="\n", end="\n" if broken else "")
    return 1 if broken else 0


def figures_of(path: Path, options: building.Options, arguments: Sequence[str], gpu: gpus.Gpu) -> Measured:
    """Of each kernel of a program, or of another command: it runs once to count, and once to be simulated."""
    of_source = path.suffix in building.SOURCES
    command = [str(building.program([path], options) if of_source else path), *arguments]
    rows: dict[str, Row] = {}
    lines: dict[str, Lines] = defaultdict(lambda: defaultdict(Counter))
    how = execution.Execution(gpu=gpu.key)
    with execution.counted(command, how, keep=True) as (ended, counts):
        if ended.code:
            raise UserError(f"{path} ends with {ended.code}: gpuless run {path} says why.")
        for (program, _, _), launched in zip(counting.executions(counts), counting.counted(counts), strict=True):
            row = rows.setdefault(program.kernel, dict.fromkeys(FIGURES, 0.0))
            needs = program.resources
            row["registers"] = max(row["registers"], needs.registers)
            row["stack bytes"] = max(row["stack bytes"], needs.stack)
            row["shared bytes"] = max(row["shared bytes"], needs.static_shared + launched.config.shared)
            add_counts(row, lines[program.kernel], launched)
    how = replace(how, constants=timing.basis(gpu).constants.row())
    with execution.counted(command, how, keep=True) as (_, counts):
        for one in counting.simulated(counts, gpu):
            rows[one.program.kernel]["microseconds"] += one.launches * timing.microseconds(gpu, one)
    return Measured(rows, lines)


def add_counts(row: Row, lines: Lines, launched: counters.Launched) -> None:
    row["launches"] += launched.launches
    for place, executed in launched.executed.items():
        row["instructions"] += sum(executed.values())
        stack = sum(count for name, count in executed.items() if name.startswith(("STL", "LDL")))
        lines[place].update({"instructions": sum(executed.values()), "stack bytes": stack})
    for access, counts in launched.accesses.items():
        row["sectors"] += counts.sectors
        row["wavefronts"] += counts.wavefronts
        lines[access.file, access.line].update({"sectors": counts.sectors, "wavefronts": counts.wavefronts})


def changed(name: str, a: Row, b: Row, of_a: Measured, of_b: Measured) -> dict[str, dict[str, str]]:
    """Where the figures that differ are made: the line whose own differs most, if both have the same file, else the
    line of each program that has most."""
    first, _, other = name.partition(" -> ")
    left, right = of_a.lines.get(first, {}), of_b.lines.get(other or first, {})
    same = {file for file, _ in left} == {file for file, _ in right}
    found = {}
    for figure in (one for one in BY_LINE if a[one] != b[one]):
        amounts = [{at: counts[figure] for at, counts in lines.items()} for lines in (left, right)]
        apart = {at: abs(amounts[1].get(at, 0) - amounts[0].get(at, 0)) for at in {**left, **right}}
        at = [max(apart if same else one, key=(apart if same else one).__getitem__, default=None) for one in amounts]
        found[figure] = {
            side: f"{file_line[0]}:{file_line[1]}" for side, file_line in zip("ab", at, strict=True) if file_line
        }
    return found


def paired(a: Mapping[str, Row], b: Mapping[str, Row]) -> list[tuple[str, Row, Row]]:
    """Kernels of the same name; one that has changed its name stands beside the other that is left."""
    pairs = [(name, a[name], b[name]) for name in a if name in b]
    left, right = [name for name in a if name not in b], [name for name in b if name not in a]
    if len(left) != len(right):
        raise UserError(
            f"the programs launch different kernels: {', '.join(left) or 'none'} and {', '.join(right) or 'none'}."
        )
    names = [one if one == other else f"{one} -> {other}" for one, other in zip(left, right, strict=True)]
    return pairs + [(name, a[one], b[other]) for name, one, other in zip(names, left, right, strict=True)]


def beyond(pairs: Sequence[tuple[str, Row, Row]], limits: Mapping[str, float]) -> list[str]:
    return [
        f"{name}: {figure} {a[figure]:,.6g} -> {b[figure]:,.6g} (at most {percent:+g} %)"
        for name, a, b in pairs
        for figure, percent in limits.items()
        if b[figure] > a[figure] * (1 + percent / 100)
    ]


def table(
    pairs: Sequence[tuple[str, Row, Row]], where: Mapping[str, Mapping[str, Mapping[str, str]]], gpu: str
) -> str:
    lines = []
    for name, a, b in pairs:
        lines.append(name)
        for figure in FIGURES:
            grown = f"{100 * (b[figure] / a[figure] - 1):+.1f} %" if a[figure] and a[figure] != b[figure] else ""
            lines.append(f"  {label_of(figure, gpu):44}{a[figure]:>16,.6g}{b[figure]:>16,.6g}{grown:>10}")
            if at := dict.fromkeys(Path(one).name for one in where[name].get(figure, {}).values()):
                lines.append(f"    mostly at {', '.join(at)}")
    return "\n".join(lines)


def label_of(figure: str, gpu: str) -> str:
    return figure if figure != "microseconds" else f"microseconds ({gpu}, by the model)"
