"""Nsight Compute's counters of a rung, under this project's names."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rung.errors import RungError
from rung.profile import ncu
from rung.results import machine
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Subject

MARKER = "spin_kernel"  # torch.cuda._sleep's; rung.profile.target puts it before each task
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "waits for global or local memory: more loads in flight, better coalescing, or a tile "
    "in shared memory would help",
    "short_scoreboard": "waits for shared memory or a special function (exp, rsqrt): fewer bank conflicts or "
    "fewer such instructions would help",
    "barrier": "waits at __syncthreads for other warps: uneven work, or too few other blocks",
    "membar": "waits for a memory fence: stores must become visible first",
    "mio_throttle": "the queue to shared memory and special functions is full: wider accesses make fewer "
    "instructions",
    "lg_throttle": "the queue of global loads is full: vector loads make fewer instructions",
    "tex_throttle": "the queue of the texture unit is full",
    "math_pipe_throttle": "an arithmetic pipe is busy: the kernel computes as fast as that pipe can",
    "wait": "waits the fixed number of cycles between dependent instructions: more independent work per thread "
    "would fill them",
    "not_selected": "was ready, but another warp was issued: there are enough warps",
    "selected": "issued: not a stall",
    "dispatch_stall": "the dispatcher stalled, usually because of a conflict between register banks or pipes",
    "drain": "waits at the end for its stores: many or scattered stores just before the exit",
    "imc_miss": "waits for constants that were not in the cache: indexed constants or a first use",
    "no_instruction": "waits for instructions: a long loop body or a jump missed the instruction cache",
    "branch_resolving": "waits for a jump's target: many short branches",
    "sleeping": "sleeps by its own instruction (nanosleep)",
    "misc": "waits for a reason that the counters do not name",
    "gmma": "waits for the tensor cores' matrix pipe, which is fully used",
}  # fmt: skip
CLASSES = {
    "fp32": "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum",
    "fp16": "smsp__sass_thread_inst_executed_op_fp16_pred_on.sum",
    "integer": "smsp__sass_thread_inst_executed_op_integer_pred_on.sum",
    "conversion": "smsp__sass_thread_inst_executed_op_conversion_pred_on.sum",
    "memory": "smsp__sass_thread_inst_executed_op_memory_pred_on.sum",
    "control": "smsp__sass_thread_inst_executed_op_control_pred_on.sum",
    "bit": "smsp__sass_thread_inst_executed_op_bit_pred_on.sum",
    "between threads": "smsp__sass_thread_inst_executed_op_inter_thread_communication_pred_on.sum",
    "misc": "smsp__sass_thread_inst_executed_op_misc_pred_on.sum",
}
SINGLE = {
    "seconds": "gpu__time_duration.sum",
    "sm_throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "achieved_occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "shared_static": "launch__shared_mem_per_block_static",
    "shared_dynamic": "launch__shared_mem_per_block_dynamic",
    "waves": "launch__waves_per_multiprocessor",
    "l1_hit": "l1tex__t_sector_hit_rate.pct",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "l1_throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2_throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_requests": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
    "cycles_per_issue": "smsp__average_warp_latency_per_inst_issued.ratio",
    "dram_read": "dram__bytes_read.sum",
    "dram_write": "dram__bytes_write.sum",
    "conflicts_load": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "conflicts_store": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "wavefronts_load": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "wavefronts_store": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "passes_load": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",  # without waits for other warps
    "passes_store": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "ideal_passes": "memory_l1_wavefronts_shared_ideal",  # loads and stores
    "shared_loads": "smsp__inst_executed_op_shared_ld.sum",
    "shared_stores": "smsp__inst_executed_op_shared_st.sum",
    "shared_bytes": "sm__sass_data_bytes_mem_shared.sum",
    "global_loads": "smsp__inst_executed_op_global_ld.sum",
    "global_stores": "smsp__inst_executed_op_global_st.sum",
    "global_read_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_write_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_read_bytes": "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum",
    "global_write_bytes": "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum",
    "fadd": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fmul": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "pipe_alu": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "pipe_lsu": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
    "pipe_fma": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "pipe_adu": "sm__inst_executed_pipe_adu.avg.pct_of_peak_sustained_active",
    "hmma": "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "gmma": "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "instructions": "smsp__inst_executed.sum",
    "threads_per_instruction": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "threads_not_predicated": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    "bytes_used_load": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "bytes_used_store": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "branch_uniform": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "tensor_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "issue_active": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
OPCODES = "sass__inst_executed_per_opcode"
LANES = "sass__thread_inst_executed_true_per_opcode"
METRICS = (OPCODES, LANES, *SINGLE.values(), *CLASSES.values(), *(_STALL.format(s) for s in STALLS))


@dataclass(frozen=True)
class Stall:
    """A reason why warps did not issue: the number of warps waiting for it at each issue, and its usual meaning."""

    name: str
    warps: float
    share: float  # share of a warp's latency
    meaning: str


@dataclass
class Profile:
    """One kernel of a rung; figures that this ncu does not collect are missing."""

    kernel: str
    grid: str
    block: str
    figures: dict[str, float]
    classes: dict[str, float]
    stalls: list[Stall]
    opcodes: dict[str, float] = field(default_factory=dict)  # instructions of warps
    lanes: dict[str, float] = field(default_factory=dict)  # instructions of lanes that no predicate switched off


@dataclass
class Report:
    """A profiled rung: its kernels, and its cost model's figures."""

    rung: str
    dtype: str
    shape: str
    model_bytes: float
    model_flops: float
    kernels: list[Profile] = field(default_factory=list)

    def kernel(self, name: str) -> Profile:
        """The kernel of this name, the longest launch when it ran several times."""
        found = [k for k in self.kernels if k.kernel == name]
        if not found:
            names = ", ".join(dict.fromkeys(k.kernel for k in self.kernels)) or "none"
            raise RungError(f"{self.rung} launched no kernel {name!r} here; there are {names}.")
        return max(found, key=_duration)

    @property
    def dram_bytes(self) -> float | None:
        """Bytes that all kernels together moved to and from memory."""
        counted = [k.figures.get("dram_read", 0.0) + k.figures.get("dram_write", 0.0) for k in self.kernels]
        return sum(counted) if any("dram_read" in k.figures for k in self.kernels) else None

    @property
    def flops(self) -> float | None:
        """Float32 operations that all kernels together executed; None if tensor cores were used."""
        if not all({"fadd", "fmul", "ffma"} <= k.figures.keys() for k in self.kernels):
            return None
        if any(k.figures.get("tensor_instructions") for k in self.kernels):
            return None
        return sum(k.figures["fadd"] + k.figures["fmul"] + 2 * k.figures["ffma"] for k in self.kernels)

    @property
    def seconds(self) -> float:
        return sum(k.figures.get("seconds", 0.0) for k in self.kernels)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "dram_bytes": self.dram_bytes, "seconds": self.seconds}


def _duration(kernel: Profile) -> float:
    return kernel.figures.get("seconds", 0.0)


def side_by_side(reports: Sequence[Report]) -> list[tuple[Profile | None, ...]]:
    """Pairs the kernels of two rungs: those of the same name, then the others by time."""
    rest = [sorted(r.kernels, key=_duration, reverse=True) for r in reports]
    shared = set.intersection(*({k.kernel for k in kernels} for kernels in rest))
    groups: list[tuple[Profile | None, ...]] = []
    for name in sorted(shared):
        same = [[k for k in kernels if k.kernel == name] for kernels in rest]
        groups += zip(*same, strict=False)  # a kernel that only one rung launched again stays among the rest
    grouped = {id(k) for group in groups for k in group}
    groups += itertools.zip_longest(*([k for k in kernels if id(k) not in grouped] for kernels in rest))
    return sorted(groups, key=lambda group: -max(_duration(k) for k in group if k is not None))


def as_result(subject: Subject, tuning: Mapping[str, int] | None, report: Report) -> Row:
    """The profile as the results store keeps it; the roofline places the rung by its counted bytes."""
    rung = subject.rung
    whole = {"dram_bytes": report.dram_bytes, "flops": report.flops, "duration_us": report.seconds * 1e6 or None}
    row = Row(
        kind="profile",
        what=rung.full_name,
        dtype=report.dtype,
        shape=report.shape,
        values=dict(subject.values),
        tuning=rung.tuned(tuning),
        options={"tuning": "given"} if tuning else {},
        texts={rung.full_name: identity.text(rung)},
        metrics={"cost_bytes": report.model_bytes, "cost_flops": report.model_flops},
        detail={"kernels": [asdict(kernel) for kernel in report.kernels]},
        machine=machine.facts(),
    )
    return row.with_metrics(**whole)


def profile(subject: Subject, tuning: Mapping[str, int] | None = None) -> Report:
    """Check the rung at the shape and profile one launch of it, in a separate process."""
    import torch

    ncu.find()
    if not torch.cuda.is_available():
        raise RungError("no CUDA device was found, and ncu needs one.")
    return report(subject, split(launched([(subject, tuning)]), 1)[0])


def launched(
    chosen: Sequence[tuple[Subject, Mapping[str, int] | None]], timeout: float = 300, metrics: Sequence[str] = METRICS
) -> list[ncu.Launch]:
    """ncu's counters of one launch of each, in one process, with a marker before each of them."""
    return ncu.run(command(chosen), metrics, timeout=timeout)


def command(chosen: Sequence[tuple[Subject, Mapping[str, int] | None]]) -> list[str]:
    """The program that launches each once, after a marker."""
    return [sys.executable, "-m", "rung.profile.target", json.dumps([_task(*one) for one in chosen])]


def _task(subject: Subject, tuning: Mapping[str, int] | None) -> dict[str, Any]:
    rung = subject.rung
    return {
        "rung": rung.full_name,
        "file": None if catalogue.shipped(rung) else str(rung.path),
        "dtype": subject.dtype.name,
        "values": {n: v for n, v in subject.values.items() if n not in rung.operation.derived},
        "tuning": dict(tuning or {}),
    }


def split(launches: Sequence[ncu.Launch], count: int) -> list[list[ncu.Launch]]:
    """The kernels of each of `count` tasks, by the markers before them; all of the first where there is no marker."""
    found: list[list[ncu.Launch]] = []
    for launch in launches:
        if MARKER in launch.kernel:
            found.append([])
        elif found:
            found[-1].append(launch)
    found = found or [list(launches)]
    return (found + [[] for _ in range(count)])[:count]


def report(subject: Subject, launches: Sequence[ncu.Launch]) -> Report:
    """ncu's metrics under our names."""
    cost = subject.rung.operation.cost_with(subject.values, subject.dtype, subject.rung.binds)
    made = Report(subject.rung.full_name, subject.dtype.name, subject.shape, cost.bytes, cost.flops)
    made.kernels = [_kernel(launch) for launch in launches]
    return made


def _kernel(launch: ncu.Launch) -> Profile:
    m = launch.metrics
    figures = {name: m[metric] for name, metric in SINGLE.items() if metric in m}
    for kind, short in (("load", "loads"), ("store", "stores")):
        wavefronts, count = figures.get(f"wavefronts_{kind}"), figures.get(f"shared_{short}")
        if wavefronts is not None and count:
            figures[f"ways_{kind}"] = wavefronts / count
    if "issue_active" in figures:
        figures["no_eligible"] = 100 - figures["issue_active"]
    if (seconds := figures.get("seconds")) and "dram_read" in figures:
        figures["bytes_per_s"] = (figures["dram_read"] + figures.get("dram_write", 0.0)) / seconds
    traffic = [figures.get(f"global_{direction}_bytes") for direction in ("read", "write")]
    moved = sum(b for b in traffic if b is not None)
    if "shared_bytes" in figures and moved:
        figures["global_share"] = 100 * moved / (moved + figures["shared_bytes"])
    classes = {name: m[metric] for name, metric in CLASSES.items() if metric in m}
    waits = {name: m[_STALL.format(name)] for name in STALLS if _STALL.format(name) in m}
    figures |= {f"stall_{name}": value for name, value in waits.items()}
    total = sum(waits.values()) or 1.0
    order = sorted((n for n in waits if n != "selected"), key=lambda n: -waits[n])
    stalls = [Stall(n, waits[n], waits[n] / total, STALLS[n]) for n in order[:3] if waits[n] > 0]
    opcodes, lanes = (dict(launch.parts.get(metric, {})) for metric in (OPCODES, LANES))
    return Profile(launch.kernel, launch.grid, launch.block, figures, classes, stalls, opcodes, lanes)
