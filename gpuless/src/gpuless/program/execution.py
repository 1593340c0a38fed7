"""Runs commands where a GPU in software is found, and returns what was reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpuless import driver
from gpuless.base.errors import TooLong, UserError
from gpuless.counts import fidelity
from gpuless.facts import gpus
from gpuless.program import building, toolkit

ORDERS = ("forward", "reverse", "shuffled")
# By which Makefiles and CMake name the toolkit's folder.
_TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDAToolkit_ROOT", "CUDAPATH", "CUDA_DIR", "CUDA_INSTALL_PATH")


@dataclass(frozen=True)
class Execution:
    """How a program's threads, blocks and streams take turns, and what is looked for."""

    order: str = "forward"
    seed: int = 0
    races: Literal["auto", "yes", "no"] = "auto"
    gpu: str = gpus.USUAL
    arch: str = ""  # that nvcc compiles for in its processes; the GPU's if empty
    quiet: bool = False
    stop: bool = False  # at the first fault
    device: Literal["emulator", "cuda"] = "emulator"
    counts: Path | None = None  # what is counted is written there; in a folder each process has a file
    precision: bool = False  # float64 is computed beside floating-point numbers
    numbers: bool = False  # where a NaN, an infinity or an overflow is made is a fault
    own_code: bool = False  # faults leave a program's exit code alone
    cold: bool = False  # each launch from empty caches
    steps: int = 0  # instructions of warps, until a launch is stopped; 0: its CPU time is limited
    constants: Sequence[float] = ()  # of the model of time: then only blocks that stand for a grid are executed

    def environment(self, report: Path | None = None) -> dict[str, str]:
        """All variables of a process that finds the GPU in software (driver/README.md), or, on a GPU, NVIDIA's runtime
        libraries."""
        if self.device == "cuda":
            return os.environ | {"LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", toolkit.runtime_folders())}
        tools = toolkit.folder()
        chosen = driver.environment() | building.compiling(self.gpu, self.arch)
        chosen |= {
            "LD_LIBRARY_PATH": os.pathsep.join([str(tools / "lib64"), chosen["LD_LIBRARY_PATH"]]),
            "PATH": _before("PATH", [tools / "bin"]),
            **dict.fromkeys(_TOOLKIT, str(tools)),
            "CUDACXX": str(tools / "bin/nvcc"),
            "GPULESS_ORDER": str(ORDERS.index(self.order)),
            "GPULESS_SEED": str(self.seed),
            "GPULESS_RACES": str(("no", "auto", "yes").index(self.races)),
            "GPULESS_GPU": self.gpu,
            "GPULESS_QUIET": str(int(self.quiet)),
            "GPULESS_STOP": str(int(self.stop)),
            "GPULESS_NAN": str(int(self.numbers)),
            "GPULESS_PRECISION": str(int(self.precision)),
            "GPULESS_EXIT": str(int(not self.own_code)),
            **({"GPULESS_INSTRUCTIONS": str(self.steps)} if self.steps else {}),
            "GPULESS_CONSTANTS": " ".join(map(repr, self.constants)),
            "GPULESS_COLD": "1" if self.cold else "",
        }
        for name, path in (("GPULESS_REPORT", report), ("GPULESS_COUNTS", self.counts)):
            if path is not None:
                chosen[name] = str(path.absolute())
        return os.environ | chosen


def _before(name: str, folders: Sequence[Path]) -> str:
    """A variable that lists folders, with these before its own."""
    own = os.environ.get(name, os.defpath if name == "PATH" else "")
    return os.pathsep.join(filter(None, [*map(str, folders), own]))


@dataclass(frozen=True)
class Ended:
    """How a run ended: the exit code, the records of its processes, and the output where it was kept."""

    code: int
    records: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    errors: str = ""

    @property
    def faults(self) -> list[dict[str, Any]]:
        return [one for one in self.records if one["record"] == "fault"]

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Each kernel with its launches, as the processes summed them."""
        return [kernel for one in self.records if one["record"] == "end" for kernel in one["kernels"]]

    @property
    def notes(self) -> list[str]:
        return [note for one in self.records if one["record"] == "end" for note in one["notes"]]

    @property
    def fidelity(self) -> dict[str, Any]:
        """How the kernels' instructions were executed (docs/json.md)."""
        return fidelity.merged(one["fidelity"] for one in self.records if one["record"] == "end")

    @property
    def precision(self) -> list[dict[str, Any]]:
        """Of each line that stores floating-point numbers the largest error, the worst line first."""
        told = [one for one in self.records if one["record"] == "precision"]
        kept = ("place", "error", "stored", "exact", "arose")
        return [{key: one[key] for key in kept} for one in sorted(told, key=lambda one: -one["error"])]

    def findings(self) -> list[dict[str, Any]]:
        """The faults, as documents tell them."""
        told = []
        for one in self.faults:
            found = {"kind": one["kind"], "text": one["text"]}
            if one["place"]:
                found["place"] = one["place"]
            if "file" in one.get("related", {}):
                found["related"] = [one["related"]]
            if (called := one.get("called")) and one["place"].get("kernel"):
                found["launched"] = f"{called['file']}:{called['line']}"
            if one.get("memory"):
                found["memory"] = one["memory"]
            told.append(found)
        if not told and self.code > 128:
            name = signal.Signals(self.code - 128).name if self.code - 128 in signal.valid_signals() else str(self.code)
            told.append({"kind": "signal", "text": f"the program's host code was ended by {name}"})
        elif not told and self.code:
            told.append({"kind": "exit", "text": f"the program ends with exit code {self.code}"})
        return told


def split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """A program's files, and the words behind them."""
    at = next((i for i, word in enumerate(words) if not word.endswith(building.SOURCES)), len(words))
    return [Path(word) for word in words[:at]], [*words[at:]]


@contextmanager
def _ending_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """A SIGTERM that this process gets goes to that one, which tells how far it came; ^C goes to both by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def run(command: Sequence[str | Path], how: Execution, *, keep: bool = False, seconds: float | None = None) -> Ended:
    """Runs a command here, in the present folder; with `keep`, its output is returned instead of shown."""
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory(prefix="gpuless-") as folder:
        report = Path(folder) / "report.jsonl"
        sys.stdout.flush()
        streams = subprocess.PIPE if keep else None
        try:
            process = subprocess.Popen(
                words, env=how.environment(report), stdout=streams, stderr=streams, text=True, errors="replace",
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        except OSError as problem:
            raise UserError(f"{words[0]} does not start: {problem.strerror}.") from None
        with process, _ending_with(process):
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TooLong(f"{Path(words[0]).name} has not ended within {seconds:g} seconds.") from None
        records = driver.records(report)
    code = process.returncode
    return Ended(128 - code if code < 0 else code, records, output or "", errors or "")


@contextmanager
def counted(command: Sequence[str | Path], how: Execution, *, keep: bool) -> Iterator[tuple[Ended, Path]]:
    """Runs a command and counts its launches, or simulates them: how it ended, and the file of what was written."""
    with tempfile.TemporaryDirectory(prefix="gpuless-count-") as folder:
        counts = Path(folder) / "counts"
        yield run(command, replace(how, races="no", quiet=True, counts=counts), keep=keep), counts


def orders(how: Execution) -> list[Execution]:
    """Eight orders: as issued, the latest first, and six at random."""
    plain = [replace(how, order="forward", quiet=True), replace(how, order="reverse", quiet=True)]
    return [*plain, *(replace(how, order="shuffled", quiet=True, seed=how.seed + n) for n in range(1, 7))]
