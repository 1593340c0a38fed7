"""`rung calibrate`: small kernels measure the constants of the model of time on the present GPU.

`measured` runs them; `constants` reads what they found, or what was recorded earlier, and needs no GPU.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuless import timing
from gpuless.facts import gpus, limits
from gpuless.launch import Argument, Build, LaunchConfig
from rung.errors import RungError
from rung.results.row import Row

if TYPE_CHECKING:
    import torch

    Given = int | torch.Tensor

SOURCE = Path(__file__).with_name("probes.cu")
KERNELS = (
    "empty", "chase_cached", "chase", "chase_shared", "products_1", "products_8", "products_s8", "products_tf32",
    "barrier", "special", "special_many", "shuffles", "loop", "atomics", "shared_atomics", "fence", "fence_block",
    "lines", "shared_reads", "stream", "store_one", "load_one", "code", "lines_stored", "lines_missed", "ffma_many",
    "logic_many", "imad_many", "dfma_many",
)  # fmt: skip
ASYNCHRONOUS = ("bulk", "byte_barrier")  # since sm_90
MIB = 1 << 20
# A chain's load takes, beyond its latency in the model: the way to memory, the pass of the data path, its address.
_CHAIN = 14
# What was fitted on an H100, of what its probe says: a GPU with much to do waits longer for DRAM, and the second cache
# gives less than where all multiprocessors read the same.
_LOADED, _SHARED_READS = 833 / 680, 3000 / 3349
Probes = Mapping[str, float]


def recorded(rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The GPU's name, and the probes that were recorded there, by name."""
    found = [row for row in rows if row.kind == "probe"]
    names = {str(row.machine["gpu"]) for row in found}
    if len(names) != 1:
        raise RungError(f"rows of probes of one GPU are read, and here are those of {', '.join(names) or 'none'}.")
    return names.pop(), {r.what.removeprefix("probe/"): next(iter(r.metrics.values())) for r in found}


def constants(gpu: gpus.Gpu, probes: Probes) -> dict[str, float | dict[str, float]]:
    """The fields of timing.Constants that the probes tell; by unit where a field has a value for each."""
    clock, of = gpu.clock_mhz * 1e6, gpu.multiprocessors
    found: dict[str, float | dict[str, float]] = {}

    def read(field: str, reading: Callable[[Callable[[str], float]], float], unit: str = "") -> None:
        try:
            value = reading(lambda name: probes[name])
        except KeyError:  # not measured there
            return
        if not (math.isfinite(value) and value > 0):
            raise RungError(f"the probes of {gpu.name} give {value:g} for {field}: run `rung calibrate` again.")
        if unit:
            of_units = found.setdefault(field, {})
            assert isinstance(of_units, dict)
            of_units[unit] = value
        else:
            found[field] = value

    read("memory_bytes", lambda p: p("stream from DRAM") / clock)
    read("second_cache_bytes", lambda p: p(_same_mebibyte(probes)) * of * _SHARED_READS)
    read("port_bytes", lambda p: p("stream from second cache, one multiprocessor"))
    read("shared_latency", lambda p: p("load, shared memory") - _CHAIN)
    read("first_cache_latency", lambda p: p("load, first cache") - _CHAIN)
    read("second_cache_latency", lambda p: p("load, second cache, 4 MiB") - _CHAIN)
    read("memory_latency", lambda p: (p("load, DRAM, 256 MiB") - _CHAIN) * _LOADED)
    read("fence_latency", lambda p: p("__threadfence") - _CHAIN)
    read("latency", lambda p: p("ex2, chain"), "XU")
    read("latency", lambda p: p("mma.sync f16 16x8x16, chain"), "TENSOR")
    read("latency", lambda p: p("shfl, chain"), "LSU")
    read("occupied", lambda p: p("ex2") / 8, "XU")
    for unit, interval in (("FMA", 1), ("ALU", 2), ("FMA_HEAVY", 2), ("FP64", 2)):
        read("occupied", functools.partial(_occupancy, unit, interval), unit)
    read("product_interval", lambda p: p("mma.sync f16 16x8x16, 8 warps"))
    read("barrier_interval", lambda p: (p("__syncthreads, 32 warps") - p("__syncthreads, 1 warps")) / 31)
    read("barrier_latency", lambda p: (32 * p("__syncthreads, 1 warps") - p("__syncthreads, 32 warps")) / 31)
    read("bytes_latency", lambda p: p("mbarrier, arrival and wait") / 2)
    few, many = of * 64, of * 256
    empty = "empty kernel, {} x 256".format
    read("block_interval", lambda p: (p(empty(many)) - p(empty(few))) / (many - few) * 1e-6 * clock)
    read("stored_line", lambda p: p("store, 32 lines, 1 apart") / 32)
    read("line_of_partition", lambda p: p("load, 32 lines of each of 1 warps in first cache, 1 apart") / 32)
    return found


def _occupancy(unit: str, interval: int, probe: Callable[[str], float]) -> float:
    """Of the clocks in the table of opcodes."""
    return probe(f"{unit}, independent") / interval


def _same_mebibyte(probes: Probes) -> str:
    return next((name for name in probes if name.startswith("stream from second cache, all, 1 MiB")), "")


def row_of(gpu: gpus.Gpu, found: Mapping[str, float | dict[str, float]], when: str) -> str:
    """The file that predictions read (timing.calibrated_file)."""
    lines = [f'gpu = "{gpu.name}"', f'when = "{when}"', "", "[constants]"]
    for name, value in found.items():
        if isinstance(value, dict):
            text = "{ " + ", ".join(f"{unit} = {one:.4g}" for unit, one in value.items()) + " }"
        else:
            text = f"{value:.4g}"
        lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"


def beside(gpu: gpus.Gpu, found: Mapping[str, float | dict[str, float]]) -> Iterator[tuple[str, float, float]]:
    """Each constant: its name, its value in the table, what was found."""
    table = timing.tabled(gpu)
    for name, value in found.items():
        if isinstance(value, dict):
            for unit, one in value.items():
                yield f"{name}.{unit}", table.of_unit(name, unit), one
        else:
            yield name, table[name], value


def _chain(count: int, step: int) -> torch.Tensor:
    """Of ints: at each place that a chain visits the index of the next, `step` ints away, in a drawn order."""
    import torch

    places = torch.randperm(count // step) * step
    links = torch.zeros(count, dtype=torch.int32)
    links[places] = places.roll(-1).to(torch.int32)
    return links.cuda()


class _Probe(NamedTuple):
    what: str
    value: float
    unit: str


def present() -> gpus.Gpu:
    """The GPU of this machine, from the table."""
    import torch

    if not torch.cuda.is_available():
        raise RungError("`rung calibrate` needs a CUDA device; `--from FILE` reads probes that were recorded.")
    return gpus.find(torch.cuda.get_device_name())


class _Probes:
    """The kernels of probe.cu on the present GPU, and their memory. Arguments are tensors and whole numbers."""

    def __init__(self, of: gpus.Gpu) -> None:
        import torch

        from rung.cuda import driver

        self.of, self.sms, self.hopper = of, of.multiprocessors, limits.limits(of.arch).clusters
        kernels = (*KERNELS, *(ASYNCHRONOUS if self.hopper else ()))
        self._module = driver.load_module(Build(SOURCE.read_text(), SOURCE.name, kernels, (), (), arch_specific=True))
        self.out = torch.zeros(1 << 22, device="cuda")
        self.memory = torch.zeros(256 * MIB, device="cuda")
        self.integers = torch.zeros(64, device="cuda", dtype=torch.int32)
        self.launch("loop", self.sms, 256, self.out, 20_000_000)  # warm up
        torch.cuda.synchronize()

    def launch(self, name: str, blocks: int, threads: int, *given: Given, shared: int = 0) -> None:
        arguments: list[Argument] = [("i32" if isinstance(one, int) else "pointer", one) for one in given]
        self._module.launch(name, LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared), arguments)

    def clocks(self, name: str, threads: int, *given: Given, blocks: int = 1, all_blocks: bool = False) -> float:
        import torch

        found = []
        for _ in range(5):
            self.launch(name, blocks, threads, *given)
            torch.cuda.synchronize()
            found.append(self.out[1 : 1 + blocks].mean().item() if all_blocks else self.out[0].item())
        return statistics.median(found)

    def seconds(self, name: str, blocks: int, threads: int, *given: Given, shared: int = 0, count: int = 400) -> float:
        """Of a launch, of many in a graph."""
        import torch

        self.launch(name, blocks, threads, *given, shared=shared)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                self.launch(name, blocks, threads, *given, shared=shared)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        times: list[float] = []
        for _ in range(7):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / count)
        return float(statistics.median(times))


def measured(of: gpus.Gpu) -> Iterator[_Probe]:
    """Runs the probes on the present GPU: a minute or two."""
    on = _Probes(of)
    for part in (_latencies, _accesses, _throughputs, _launches, _first_passes):
        yield from part(on)


def _latencies(on: _Probes) -> Iterator[_Probe]:
    import torch

    clocks, out, memory, integers = on.clocks, on.out, on.memory, on.integers
    for count, step, name in (
        (2048, 32, "first cache"), (1 * MIB, 64, "second cache, 4 MiB"), (4 * MIB, 64, "second cache, 16 MiB"),
        (8 * MIB, 64, "second cache, 32 MiB"), (64 * MIB, 1024, "DRAM, 256 MiB"), (256 * MIB, 1024, "DRAM, 1 GiB"),
    ):  # fmt: skip
        links = _chain(count, step)
        kernel = "chase_cached" if name == "first cache" else "chase"
        if "DRAM" not in name:
            clocks(kernel, 1, links, out, count // step)
        if "DRAM" in name:
            memory.fill_(0)
        on.launch(kernel, 1, 1, links, out, 20000)
        torch.cuda.synchronize()
        yield _Probe(f"load, {name}", out[0].item(), "clocks")
        del links
    yield _Probe("load, shared memory", clocks("chase_shared", 32, integers, out, 4096), "clocks")
    yield _Probe("mma.sync f16 16x8x16, chain", clocks("products_1", 32, out, 2000), "clocks")
    for warps in (4, 8, 16):
        for kind, name in (("8", "f16 16x8x16"), ("s8", "s8 16x8x32"), ("tf32", "tf32 16x8x8")):
            took = clocks(f"products_{kind}", 32 * warps, out, 2000) * 4 / warps
            yield _Probe(f"mma.sync {name}, {warps} warps", took, "clocks a quarter")
    for warps in (1, 4, 8, 32):
        yield _Probe(f"__syncthreads, {warps} warps", clocks("barrier", 32 * warps, out, 1000), "clocks")
    yield _Probe("ex2, chain", clocks("special", 32, out, 1000), "clocks")
    yield _Probe("ex2", clocks("special_many", 128, out, 1000), "clocks a quarter")
    yield _Probe("shfl, chain", clocks("shuffles", 32, out, 1000), "clocks")
    yield _Probe("loop", clocks("loop", 32, out, 10000), "clocks")
    yield _Probe("atomicAdd, chain", clocks("atomics", 1, integers, out, 1000), "clocks")
    yield _Probe("atomicAdd in shared memory, chain", clocks("shared_atomics", 32, out, 1000), "clocks")
    yield _Probe("__threadfence", clocks("fence", 1, out, 1000), "clocks")
    yield _Probe("__threadfence_block", clocks("fence_block", 1, out, 1000), "clocks")


def _accesses(on: _Probes) -> Iterator[_Probe]:
    """Of several lines, or with conflicts of banks."""
    clocks, out, memory = on.clocks, on.out, on.memory
    for step, name in ((1, "1"), (2, "2"), (4, "4"), (8, "8"), (32, "32")):
        yield _Probe(f"load, {name} lines in first cache", clocks("lines", 512, memory, out, 500, step, 32), "clocks")
    for warps, apart in itertools.product((1, 2, 4, 8, 16), (1, 24, 32)):
        took = clocks("lines", 32 * warps, memory, out, 500, 32 * apart, 1024)
        yield _Probe(f"load, 32 lines of each of {warps} warps in first cache, {apart} apart", took, "clocks")
    for apart in (2, 3, 4, 8, 16, 24, 32, 64, 96, 100, 192, 768):
        took = clocks("lines", 256, memory, out, 500, 32 * apart, 32)
        yield _Probe(f"load, 32 lines in first cache, {apart} apart", took, "clocks")
    for apart in (1, 8, 24, 32, 96):
        took = clocks("lines_stored", 256, memory, out, 200, 32 * apart)
        yield _Probe(f"store, 32 lines, {apart} apart", took, "clocks")
    for apart in (1, 8, 24, 32, 96):
        yield _Probe(
            f"load, 32 sectors missed, {apart} lines apart",
            clocks("lines_missed", 256, memory, out, 4, 32 * apart),
            "clocks",
        )
    for step, name in ((1, "1"), (2, "2"), (8, "8"), (32, "32")):
        yield _Probe(f"load, {name} ways in shared memory", clocks("shared_reads", 512, out, 500, step), "clocks")


def _throughputs(on: _Probes) -> Iterator[_Probe]:
    clocks, out, memory, sms = on.clocks, on.out, on.memory, on.sms
    alone = clocks("stream", 1024, memory, out, 16384, 64, 1, blocks=1, all_blocks=True)
    yield _Probe("stream from second cache, one multiprocessor", alone, "bytes a clock")
    for parts in (8, 32, sms):
        rate = clocks("stream", 1024, memory, out, 8192, 64, parts, blocks=sms, all_blocks=True)
        yield _Probe(f"stream from second cache, all, {parts / 8:.3g} MiB", rate, "bytes a clock")
    size = memory.numel() // 4 // sms // 4 // 8
    seconds = on.seconds("stream", sms * 2, 1024, memory, out, size * 16, 1, sms * 2, count=4)
    yield _Probe("stream from DRAM", size * 16 * 2 * sms * 16 / seconds, "bytes a second")
    for name, unit in (("ffma", "FMA"), ("logic", "ALU"), ("imad", "FMA_HEAVY"), ("dfma", "FP64")):
        yield _Probe(f"{unit}, independent", clocks(f"{name}_many", 512, out, 200) / 4, "clocks a quarter")
    if on.hopper:
        for size in (128, 1024, 8192):
            yield _Probe(f"bulk copy of {size} bytes", clocks("bulk", 1, memory, out, 1000, size), "clocks")
        yield _Probe("mbarrier, arrival and wait", clocks("byte_barrier", 1, out, 1000), "clocks")


def _launches(on: _Probes) -> Iterator[_Probe]:
    """Of kernels that do nothing, or little."""
    out, memory, sms = on.out, on.memory, on.sms
    grids = ((1, 32), (sms, 256), (sms * 8, 256), (sms * 64, 256), (sms * 256, 256), (sms * 64, 32), (sms * 64, 1024))
    for blocks, threads in grids:
        yield _Probe(f"empty kernel, {blocks} x {threads}", on.seconds("empty", blocks, threads, out) * 1e6, "us")
    room = limits.limits(on.of.arch).shared_block // limits.KIB
    for resident, shared in ((1, 200), (2, 100), (4, 50), (8, 26)):
        if shared > room:
            continue
        for name, given in (("empty", (out,)), ("store_one", (out,)), ("load_one", (memory, out))):
            one, many = (
                on.seconds(name, blocks, 256, *given, shared=shared * 1024, count=50)
                for blocks in (sms * resident, sms * 40)
            )
            life = (many - one) / (40 - resident) * resident * on.of.clock_mhz * 1e6
            yield _Probe(f"life of a block, {name}, {resident} at once", life, "clocks at the highest rate")
    for blocks, threads in ((1, 32), (sms, 256)):
        yield _Probe(f"store, {blocks} x {threads}", on.seconds("store_one", blocks, threads, out) * 1e6, "us")
        took = on.seconds("load_one", blocks, threads, memory, out)
        yield _Probe(f"load and store, {blocks} x {threads}", took * 1e6, "us")


def _first_passes(on: _Probes) -> Iterator[_Probe]:
    """Long code, from memory and from the caches of instructions."""
    import torch

    out, sms = on.out, on.sms
    for cold in (False, True):
        for threads in (32, 256):
            found = []
            for _ in range(5):
                if cold:
                    on.memory.fill_(1)
                on.launch("code", sms, threads, out)
                torch.cuda.synchronize()
                found.append(out[: 2 * sms].view(sms, 2).mean(0).tolist())
            for turn, name in enumerate(("first", "second")):
                took = statistics.median(f[turn] for f in found)
                state = "cold" if cold else "warm"
                yield _Probe(f"2048 instructions, {threads // 32} warps, {name} pass, {state}", took, "clocks")
