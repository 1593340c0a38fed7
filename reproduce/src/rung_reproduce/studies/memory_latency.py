"""The latency of a dependent load from shared memory, L1, L2 and global memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuless.launch import Build, LaunchConfig, Module
from rung.errors import RungError
from rung_reproduce import sources
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, need_gpu

KERNELS = ("chase_global", "chase_shared", "store_global", "store_shared")
LINE = 128  # bytes: each step of the walk is in a cache line of its own
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))


@dataclass(frozen=True)
class Chain:
    """A walk through `entries` lines in a random order that visits each once."""

    next: torch.Tensor  # int32, one entry per word; used entries are LINE bytes apart
    order: torch.Tensor

    def after(self, steps: int) -> int:
        """The position of the walk from 0 after this many steps."""
        return int(self.order[steps % len(self.order)])


def chain(entries: int, stride: int, device: str, seed: int = 0) -> Chain:
    """A random cycle; consecutive entries of the walk are at least `stride` words apart."""
    generator = torch.Generator().manual_seed(seed)
    rest = torch.randperm(entries - 1, generator=generator) + 1
    order = torch.cat([torch.zeros(1, dtype=torch.int64), rest]) * stride
    following = torch.zeros(entries * stride, dtype=torch.int32)
    following[order] = order.roll(-1).to(torch.int32)
    return Chain(following.to(device), order)


def build() -> Build:
    """The chasing kernels."""
    path = Path(__file__).with_name("chase.cu")
    return Build(path.read_text(encoding="utf-8"), str(path), KERNELS, ())


def walk(module: Module, kernel: str, order: Chain, first: int, steps: int) -> None:
    """One launch; a RungError if it did not end at the expected entry."""
    last = torch.zeros(1, dtype=torch.int32, device=order.next.device)
    module.launch(kernel, ONE, [("pointer", order.next), ("pointer", last), ("i32", first), ("i32", steps)])
    if int(last[0]) != order.after(steps):
        raise RungError(f"{kernel} ended at {int(last[0])} instead of {order.after(steps)}; no latency is reported.")


def run(runner: Runner) -> Found:
    """Arrays from 4 KiB to far beyond the L2."""
    need_gpu(runner, "memory-latency")
    from rung.cuda.driver import load_module

    module = load_module(build())
    for kernel in KERNELS:
        module.prepare(kernel, ONE)
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    shared = _seconds(module, "chase_shared", chain(4096, 1, "cuda"), 4096, 40_000)
    elsewhere = torch.empty(4 * l2, dtype=torch.uint8, device="cuda")
    exponents = range(12, 31, 3) if runner.quick else range(12, 31)
    found = {}
    for size in (1 << e for e in exponents):
        order = chain(size // LINE, LINE // 4, "cuda")
        far = size > 2 * l2
        # A walk through a part of a large array would find that part in L2 at the next launch.
        found[size] = _seconds(
            module, "chase_global", order, 0 if far else len(order.order), 20_000, elsewhere.zero_ if far else None
        )
        del order
        torch.cuda.empty_cache()
    both = {kernel: _stored(module, kernel, 40_000) * 1e9 for kernel in ("store_shared", "store_global")}
    return report(shared * 1e9, {s: t * 1e9 for s, t in found.items()}, l2, _clock(), both)


def _stored(module: Module, kernel: str, steps: int) -> float:
    """Seconds for a store and the load of the same word, from the difference of two runs."""
    cells, last = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    module.launch(kernel, ONE, [("pointer", cells), ("pointer", last), ("i32", 0), ("i32", steps)])
    if int(last[0]) != steps:
        raise RungError(f"{kernel} counted to {int(last[0])} instead of {steps}; no latency is reported.")
    return _step(module, kernel, cells, 0, steps)


def _seconds(
    module: Module, kernel: str, order: Chain, first: int, steps: int, evict: Callable[[], object] | None = None
) -> float:
    """Seconds per step of a walk that ended where it should."""
    walk(module, kernel, order, first, steps)
    return _step(module, kernel, order.next, first, steps, evict)


def _step(
    module: Module, kernel: str, cells: torch.Tensor, first: int, steps: int, evict: Callable[[], object] | None = None
) -> float:
    """Seconds per step, from the difference of a long and a short launch, so that launch and warm-up cancel."""
    from rung.bench import timing

    def took(count: int) -> float:
        last = torch.zeros(1, dtype=torch.int32, device="cuda")
        arguments = [("pointer", cells), ("pointer", last), ("i32", first), ("i32", count)]
        call = module.bind(kernel, ONE, arguments)
        times = []
        for _ in range(3):
            if evict is not None:
                evict()
            times.append(timing.seconds(call))
        return min(times)

    short = steps // 5
    return (took(steps) - took(short)) / (steps - short)


def _clock() -> float | None:
    """The multiprocessors' clock in GHz while something runs."""
    from rung.results import machine

    try:
        return float(machine.state().get("sm_mhz", "")) / 1e3
    except ValueError:
        return None


def report(
    shared_ns: float, ns: Mapping[int, float], l2: int, ghz: float | None, stored: Mapping[str, float] | None = None
) -> Found:
    """The plateaus among the sizes, and the table; `stored` has nanoseconds of a store and the load that follows it."""
    levels, reference = plateaus(ns, l2), sources.latencies()
    rows: list[tuple[object, ...]] = [
        ("shared memory", "16 KiB", f"{shared_ns:.1f}", _cycles(shared_ns, ghz), reference["shared memory"])
    ]
    for size, value in ns.items():
        level = next((name for name, (sizes, _) in levels.items() if size in sizes), "between")
        rows.append((level, _size(size), f"{value:.1f}", _cycles(value, ghz), reference.get(level, "")))
    for kernel, both in (stored or {}).items():
        shared = kernel == "store_shared"
        load = shared_ns if shared else levels["L2"][1] if "L2" in levels else 0.0
        name = "shared memory, store" if shared else "global memory, store"
        rows.append((f"{name} and load", "4 bytes", f"{both:.1f}", _cycles(both, ghz), ""))
        if 0 < load < both:
            theirs = reference.get(name, "")
            rows.append((name, "the difference", f"{both - load:.1f}", _cycles(both - load, ghz), theirs))
    series = [
        charts.Series("global load", [(size / 1024, value) for size, value in ns.items()], "f32"),
        charts.Series("shared memory", [(min(ns) / 1024, shared_ns), (max(ns) / 1024, shared_ns)], "tf32", dashed=True),
    ]
    return Found(
        "Latency of one dependent load, over the size of the array",
        ("where", "size", "ns", "cycles", "source's cycles"),
        rows,
        sentence(shared_ns, {name: value for name, (_, value) in levels.items()}),
        series,
        "KiB",
        "ns per load",
    )


def plateaus(ns: Mapping[int, float], l2: int) -> dict[str, tuple[list[int], float]]:
    """Sizes that certainly fit into L1 (up to 64 KiB), into L2 (up to a third of it, beyond L1), or into neither."""
    ranges = {"L1": (0, 64 << 10), "L2": (512 << 10, l2 // 3), "global memory": (4 * l2, 1 << 62)}
    found = {}
    for name, (low, high) in ranges.items():
        sizes = [s for s in ns if low <= s <= high]
        if sizes:
            values = sorted(ns[s] for s in sizes)
            found[name] = (sizes, values[len(values) // 2])
    return found


def sentence(shared_ns: float, levels: Mapping[str, float]) -> str:
    """The distances in nanoseconds, and against shared memory."""
    parts = [f"{name} {value:.0f} ns ({value / shared_ns:.1f}x)" for name, value in levels.items()]
    return f"Shared memory has a latency of {shared_ns:.0f} ns, " + ", ".join(parts) + "."


def _cycles(ns: float, ghz: float | None) -> str:
    return f"{ns * ghz:.0f}" if ghz else ""


def _size(size: int) -> str:
    for unit, step in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << step:
            return f"{size >> step} {unit}"
    return f"{size} bytes"
