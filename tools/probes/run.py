"""Measures the constants of the model of time on this GPU: python3 tools/probes/run.py -o FILE

A row for each probe, as src/rung/emulator/timing.py names what it measures.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from rung.cuda import driver
from rung.cuda.launch import Argument, Build, LaunchConfig
from rung.results import machine, store
from rung.results.row import Row

HERE = Path(__file__).parent
KERNELS = (
    "empty", "chase_cached", "chase", "chase_shared", "products_1", "products_8", "products_s8", "products_tf32",
    "barrier", "special", "special_many", "shuffles", "loop", "atomics", "shared_atomics", "fence", "fence_block",
    "lines",
    "shared_reads", "stream", "bulk", "byte_barrier", "store_one", "load_one", "code", "lines_stored",
    "lines_missed",
)  # fmt: skip
MIB = 1 << 20


def chain(count: int, step: int) -> torch.Tensor:
    """Of ints: at each place that a chain visits the index of the next, `step` ints away, in a drawn order."""
    places = torch.randperm(count // step) * step
    links = torch.zeros(count, dtype=torch.int32)
    links[places] = places.roll(-1).to(torch.int32)
    return links.cuda()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    path = parser.parse_args().output or store.default_path()
    source = (HERE / "probes.cu").read_text()
    module = driver.load_module(Build(source, "probes.cu", KERNELS, (), (), arch_specific=True))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.zeros(1 << 22, device="cuda")
    memory = torch.zeros(256 * MIB, device="cuda")
    integers = torch.zeros(64, device="cuda", dtype=torch.int32)

    def launch(name: str, blocks: int, threads: int, *given: Argument, shared: int = 0) -> None:
        module.launch(name, LaunchConfig((blocks, 1, 1), (threads, 1, 1), shared), list(given))

    def clocks(name: str, threads: int, *given: Argument, blocks: int = 1, all_blocks: bool = False) -> float:
        found = []
        for _ in range(5):
            launch(name, blocks, threads, *given)
            torch.cuda.synchronize()
            found.append(out[1 : 1 + blocks].mean().item() if all_blocks else out[0].item())
        return statistics.median(found)

    def in_graph(calls: Callable[[], None], count: int) -> float:
        """Seconds of a call, of many in a graph."""
        calls()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                calls()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        times: list[float] = []
        for _ in range(7):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / count)
        return float(statistics.median(times))

    def keep(what: str, value: float, unit: str) -> None:
        print(f"{what:40} {value:12.4f} {unit}", flush=True)
        store.append(
            Row(kind="probe", what=f"probe/{what}", metrics={unit: value}, verdict="ok", machine=machine.facts()), path
        )

    o: Argument = ("pointer", out)

    def n(value: int) -> Argument:
        return ("i32", value)

    launch("loop", sms, 256, o, n(20_000_000))  # warm up
    torch.cuda.synchronize()
    for count, step, name in (
        (2048, 32, "first cache"), (1 * MIB, 64, "second cache, 4 MiB"), (4 * MIB, 64, "second cache, 16 MiB"),
        (8 * MIB, 64, "second cache, 32 MiB"), (64 * MIB, 1024, "DRAM, 256 MiB"), (256 * MIB, 1024, "DRAM, 1 GiB"),
    ):  # fmt: skip
        links = chain(count, step)
        kernel = "chase_cached" if name == "first cache" else "chase"
        if "DRAM" not in name:
            clocks(kernel, 1, ("pointer", links), o, n(count // step))
        if "DRAM" in name:
            memory.fill_(0)
        launch(kernel, 1, 1, ("pointer", links), o, n(20000))
        torch.cuda.synchronize()
        keep(f"load, {name}", out[0].item(), "clocks")
        del links
    keep("load, shared memory", clocks("chase_shared", 32, ("pointer", integers), o, n(4096)), "clocks")
    keep("mma.sync f16 16x8x16, chain", clocks("products_1", 32, o, n(2000)), "clocks")
    for warps in (4, 8, 16):
        for kind, name in (("8", "f16 16x8x16"), ("s8", "s8 16x8x32"), ("tf32", "tf32 16x8x8")):
            took = clocks(f"products_{kind}", 32 * warps, o, n(2000)) * 4 / warps
            keep(f"mma.sync {name}, {warps} warps", took, "clocks a quarter")
    for warps in (1, 4, 8, 32):
        keep(f"__syncthreads, {warps} warps", clocks("barrier", 32 * warps, o, n(1000)), "clocks")
    keep("ex2, chain", clocks("special", 32, o, n(1000)), "clocks")
    keep("ex2", clocks("special_many", 128, o, n(1000)), "clocks a quarter")
    keep("shfl, chain", clocks("shuffles", 32, o, n(1000)), "clocks")
    keep("loop", clocks("loop", 32, o, n(10000)), "clocks")
    keep("atomicAdd, chain", clocks("atomics", 1, ("pointer", integers), o, n(1000)), "clocks")
    keep("atomicAdd in shared memory, chain", clocks("shared_atomics", 32, o, n(1000)), "clocks")
    keep("__threadfence", clocks("fence", 1, o, n(1000)), "clocks")
    keep("__threadfence_block", clocks("fence_block", 1, o, n(1000)), "clocks")
    x: Argument = ("pointer", memory)
    for step, name in ((1, "1"), (2, "2"), (4, "4"), (8, "8"), (32, "32")):
        keep(f"load, {name} lines in first cache", clocks("lines", 512, x, o, n(500), n(step), n(32)), "clocks")
    for warps, apart in itertools.product((1, 2, 4, 8, 16), (1, 24, 32)):
        took = clocks("lines", 32 * warps, x, o, n(500), n(32 * apart), n(1024))
        keep(f"load, 32 lines of each of {warps} warps in first cache, {apart} apart", took, "clocks")
    for apart in (2, 3, 4, 8, 16, 24, 32, 64, 96, 100, 192, 768):
        took = clocks("lines", 256, x, o, n(500), n(32 * apart), n(32))
        keep(f"load, 32 lines in first cache, {apart} apart", took, "clocks")
    for apart in (1, 8, 24, 32, 96):
        keep(f"store, 32 lines, {apart} apart", clocks("lines_stored", 256, x, o, n(200), n(32 * apart)), "clocks")
    for apart in (1, 8, 24, 32, 96):
        keep(
            f"load, 32 sectors missed, {apart} lines apart",
            clocks("lines_missed", 256, x, o, n(4), n(32 * apart)),
            "clocks",
        )
    for step, name in ((1, "1"), (2, "2"), (8, "8"), (32, "32")):
        keep(f"load, {name} ways in shared memory", clocks("shared_reads", 512, o, n(500), n(step)), "clocks")
    alone = clocks("stream", 1024, x, o, n(16384), n(64), n(1), blocks=1, all_blocks=True)
    keep("stream from second cache, one multiprocessor", alone, "bytes a clock")
    for parts in (8, 32, 132):
        rate = clocks("stream", 1024, x, o, n(8192), n(64), n(parts), blocks=sms, all_blocks=True)
        keep(f"stream from second cache, all, {parts / 8:.3g} MiB", rate, "bytes a clock")
    size = memory.numel() // 4 // sms // 4 // 8
    seconds = in_graph(lambda: launch("stream", sms * 2, 1024, x, o, n(size * 16), n(1), n(sms * 2)), 4)
    keep("stream from DRAM", size * 16 * 2 * sms * 16 / seconds, "bytes a second")
    for size in (128, 1024, 8192):
        keep(f"bulk copy of {size} bytes", clocks("bulk", 1, x, o, n(1000), n(size)), "clocks")
    keep("mbarrier, arrival and wait", clocks("byte_barrier", 1, o, n(1000)), "clocks")

    def in_many(name: str, blocks: int, threads: int, *given: Argument, shared: int = 0, count: int = 400) -> float:
        return in_graph(lambda: launch(name, blocks, threads, *given, shared=shared), count)

    grids = ((1, 32), (sms, 256), (sms * 8, 256), (sms * 64, 256), (sms * 256, 256), (sms * 64, 32), (sms * 64, 1024))
    for blocks, threads in grids:
        keep(f"empty kernel, {blocks} x {threads}", in_many("empty", blocks, threads, o) * 1e6, "us")
    for resident, shared in ((1, 200), (2, 100), (4, 50), (8, 26)):
        for name, given in (("empty", (o,)), ("store_one", (o,)), ("load_one", (x, o))):
            one, many = (
                in_many(name, blocks, 256, *given, shared=shared * 1024, count=50)
                for blocks in (sms * resident, sms * 40)
            )
            life = (many - one) / (40 - resident) * resident * 1.98e9
            keep(f"life of a block, {name}, {resident} at once", life, "clocks at 1.98 GHz")
    for blocks, threads in ((1, 32), (sms, 256)):
        keep(f"store, {blocks} x {threads}", in_many("store_one", blocks, threads, o) * 1e6, "us")
        keep(f"load and store, {blocks} x {threads}", in_many("load_one", blocks, threads, x, o) * 1e6, "us")
    for cold in (False, True):
        for threads in (32, 256):
            found = []
            for _ in range(5):
                if cold:
                    memory.fill_(1)
                launch("code", sms, threads, o)
                torch.cuda.synchronize()
                found.append(out[: 2 * sms].view(sms, 2).mean(0).tolist())
            for turn, name in enumerate(("first", "second")):
                took = statistics.median(f[turn] for f in found)
                state = "cold" if cold else "warm"
                keep(f"2048 instructions, {threads // 32} warps, {name} pass, {state}", took, "clocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
