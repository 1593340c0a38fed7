"""Nsight Compute: finding it, running it on a program, and reading its table."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rung.errors import RungError

PLACES = (
    "/usr/local/cuda/bin/ncu",
    "/usr/local/cuda*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
    "/usr/local/cuda*/nsight-compute*/ncu",
)
INSTALL = (
    "Nsight Compute (ncu) was not found: install NVIDIA's package nsight-compute or the CUDA toolkit, or name "
    "it in RUNG_NCU."
)
PERMISSION = (
    "the driver denies performance counters to ordinary users: ask the administrator to load nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add=SYS_ADMIN)."
)
FIXED = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
)  # fmt: skip
UNITS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0,
         "second": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One profiled kernel: metrics by name, in base units (seconds, bytes, per cent as ncu gives them).

    `parts` holds a metric that ncu splits, such as instructions by opcode.
    """

    kernel: str
    block: str
    grid: str
    metrics: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def find() -> str:
    """The path of ncu."""
    named = os.environ.get("RUNG_NCU")
    if named:
        if not os.access(named, os.X_OK):
            raise RungError(f"RUNG_NCU names {named}, which cannot be run.")
        return named
    found = shutil.which("ncu")
    if found:
        return found
    for place in PLACES:
        matches = sorted(Path("/").glob(place.lstrip("/")))
        for match in reversed(matches):
            if os.access(match, os.X_OK):
                return str(match)
    raise RungError(INSTALL)


def run(command: Sequence[str], metrics: Sequence[str], *, timeout: float = 300) -> list[Launch]:
    """Profile what `command` launches between cudaProfilerStart and Stop."""
    ncu, requested = find(), [m for m in metrics if m not in _UNKNOWN]
    text, stderr, code = _once(ncu, command, ["--metrics", ",".join(requested)], timeout)
    while unknown := unknown_metrics(stderr, requested):
        _UNKNOWN.update(unknown)
        requested = [m for m in requested if m not in unknown]
        text, stderr, code = _once(ncu, command, ["--metrics", ",".join(requested)], timeout)
    launches = parse(text)
    if not launches and "metric" in stderr and not _own_words(stderr) and "ERR_NVGPUCTRPERM" not in stderr:
        # Another ncu version has other names; its own full set contains most of these metrics.
        text, stderr, code = _once(ncu, command, ["--set", "full"], timeout)
        launches = parse(text)
    if launches:
        return launches
    raise RungError(_complaint(stderr, code))


_UNKNOWN: set[str] = set()  # metrics that the ncu of this machine does not know on this GPU


def unknown_metrics(stderr: str, metrics: Sequence[str]) -> set[str]:
    """The metrics that ncu does not find; it reports the first one, as a name or as a pattern."""
    lines = [line.replace("\\", "") for line in stderr.splitlines() if "Failed to find metric" in line]
    return {m for m in metrics if any(re.search(rf"\b{re.escape(m.partition('.')[0])}\b", line) for line in lines)}


def _own_words(stderr: str) -> list[str]:
    """The profiled program's own error."""
    return [line.removeprefix("rung: ") for line in stderr.splitlines() if line.startswith("rung: ")]


def _once(ncu: str, command: Sequence[str], what: Sequence[str], timeout: float) -> tuple[str, str, int]:
    """The table, all other output, and the exit code."""
    with tempfile.TemporaryDirectory(prefix="rung-ncu-") as folder:
        log = Path(folder) / "table.csv"
        words = [
            ncu, "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all",
            "--csv", "--page", "raw", "--print-units", "base", "--print-metric-instances", "details",
            "--log-file", str(log), *what, *command,
        ]  # fmt: skip
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise RungError(f"ncu took longer than {timeout:.0f} s; try a smaller --shape.") from None
        except OSError as error:
            raise RungError(f"{ncu} cannot be run: {error.strerror}.") from None
        table = log.read_text(errors="replace") if log.exists() else ""
    return table, "\n".join((table, done.stdout, done.stderr)), done.returncode


def _complaint(stderr: str, code: int) -> str:
    if "ERR_NVGPUCTRPERM" in stderr:
        return PERMISSION
    own = _own_words(stderr)
    if own:
        return own[-1]
    errors = [line for line in stderr.splitlines() if "==ERROR==" in line]
    last = errors[-1].replace("==ERROR==", "").strip() if errors else ""
    if not last:
        last = next((x.strip() for x in reversed(stderr.splitlines()) if x.strip()), "it printed nothing")
    return f"ncu profiled nothing (exit code {code}): {last.rstrip('.')}."


def parse(text: str) -> list[Launch]:
    """`--csv --page raw`: a line of names, a line of units, a line for each kernel; others are skipped."""
    csv.field_size_limit(1 << 30)  # instructions by opcode of a long kernel are one field of more than 128 KB
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(table) < 2 or "Kernel Name" not in table[0]:
        return []
    names = table[0]
    place = {name: index for index, name in enumerate(names)}
    units = table[1] if not table[1][place["ID"]] else [""] * len(names)
    body = table[2:] if not table[1][place["ID"]] else table[1:]
    launches = []
    for row in body:
        if len(row) != len(names):
            continue
        metrics, parts = {}, {}
        for name, unit, cell in zip(names, units, row, strict=True):
            value = None if name in FIXED else _number(cell)
            if value is not None:
                metrics[name] = value * UNITS.get(unit, 1.0)
                if named := _PART.findall(cell):
                    parts[name] = {part: float(count.replace(",", "")) for part, count in named}
        block, grid = (row[place[n]] if n in place else "" for n in ("Block Size", "Grid Size"))
        name = row[place["Kernel Name"]].replace("(anonymous namespace)", "<unnamed>")
        launches.append(Launch(name.partition("(")[0], block, grid, metrics, parts))
    return launches


_PART = re.compile(r"([A-Za-z][\w.]*)\s*:\s*([\d,]+(?:\.\d+)?)")  # of "7 (FADD: 3; FFMA: 4)"


def _number(cell: str) -> float | None:
    """1,234.5 as a number; a list "7 (1; 2)" by its first; None for anything else."""
    try:
        return float(cell.replace(",", "").partition(" ")[0])
    except ValueError:
        return None
