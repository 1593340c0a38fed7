"""Launching on a real GPU: every kind of argument, graphs, clusters, constants, and reported failures."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from gpuless.launch import Build, LaunchConfig
from rung.cuda.driver import CudaModule, load_module
from rung.errors import RungError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def module(source: str, *kernels: str, defines: tuple[tuple[str, str], ...] = ()) -> CudaModule:
    return load_module(Build(source, "mine.cu", kernels or ("k",), defines))


@contextmanager
def refused(*facts: object) -> Iterator[None]:
    """A mistake that is reported with these names and numbers, in whatever words."""
    with pytest.raises(RungError) as raised:
        yield
    said = re.findall(r"'?\w+(?:\.\w+)*'?", str(raised.value))
    assert not set(map(str, facts)) - {*said, *(word.strip("'") for word in said)}


def test_every_kind_of_argument_arrives_unharmed() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(double* out, bool b, int i, unsigned u, long long l, unsigned long long ul,
                                 float f, double d, __half h, __nv_bfloat16 bf, const float* x,
                                 const float* none) {
      out[0] = b; out[1] = i; out[2] = u; out[3] = (double)l; out[4] = (double)(ul >> 60); out[5] = f;
      out[6] = d; out[7] = __half2float(h); out[8] = __bfloat162float(bf); out[9] = x[1];
      out[10] = none == nullptr;
    }"""
    out = torch.zeros(11, dtype=torch.float64, device="cuda")
    x = torch.tensor([1.0, 42.0], device="cuda")
    arguments = [
        ("pointer", out), ("bool", True), ("i32", -7), ("u32", 4_000_000_000), ("i64", -(2**40)),
        ("u64", 2**64 - 1), ("f32", 0.5), ("f64", 1 / 3), ("f16", -2.25), ("bf16", 1.5), ("pointer", x),
        ("pointer", None),
    ]  # fmt: skip
    module(source).launch("k", ONE, arguments)
    expected = [1, -7, 4_000_000_000, -(2**40), 15, 0.5, 1 / 3, -2.25, 1.5, 42, 1]
    assert out.tolist() == expected


def test_templates_and_mangled_names_launch() -> None:
    source = "template <typename T, int N> __global__ void fill(T* x) { x[threadIdx.x] = T(N); }"
    x = torch.zeros(32, device="cuda")
    loaded = module(source, "fill<float, 3>")
    loaded.launch("fill<float, 3>", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", x)])
    assert x.eq(3).all()
    assert loaded.resources["fill<float, 3>"].registers > 0


ADD = 'extern "C" __global__ void k(float* x, float y) { x[blockIdx.x * blockDim.x + threadIdx.x] += y; }'


def test_a_launch_goes_to_torchs_current_stream() -> None:
    loaded, config = module(ADD), LaunchConfig((4, 1, 1), (64, 1, 1))
    x = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        loaded.launch("k", config, [("pointer", x), ("f32", 2.0)])
        assert not stream.query()
    stream.synchronize()
    assert x.eq(2).all()


def test_launches_are_captured_in_a_graph_and_replayed() -> None:
    loaded, config = module(ADD), LaunchConfig((4, 1, 1), (64, 1, 1))
    x = torch.zeros(256, device="cuda")
    loaded.prepare("k", config)
    bound = loaded.bind("k", config, [("pointer", x), ("f32", 1.0)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
        loaded.launch("k", config, [("pointer", x), ("f32", 10.0)])
    assert x.eq(0).all()
    graph.replay()
    graph.replay()
    assert x.eq(22).all()


def test_a_bound_launch_repeats_and_keeps_its_tensors() -> None:
    x = torch.zeros(64, device="cuda")
    bound = module(ADD).bind("k", LaunchConfig((1, 1, 1), (64, 1, 1)), [("pointer", x), ("f32", 1.0)])
    for _ in range(100):
        bound()
    assert x.eq(100).all()


SHARED = """
extern "C" __global__ void k(float* out, int n) {
  extern __shared__ float s[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *out = s[n - 1];
}"""


@pytest.mark.parametrize("kibibytes", [1, 48, 64, 96])
def test_dynamic_shared_memory_beyond_48_kib(kibibytes: int) -> None:
    out, size = torch.zeros(1, device="cuda"), kibibytes * 1024
    config = LaunchConfig((1, 1, 1), (256, 1, 1), shared=size)
    module(SHARED).launch("k", config, [("pointer", out), ("i32", size // 4)])
    assert out.item() == size // 4 - 1


def test_too_much_shared_memory_is_refused_with_the_limit() -> None:
    config = LaunchConfig((1, 1, 1), (32, 1, 1), shared=1 << 20)
    with refused("'k'", "mine.cu", 1 << 20):
        module(SHARED).prepare("k", config)


GRID_SYNC = """
#include <cooperative_groups.h>
extern "C" __global__ void k(int* counter, int* seen) {
  if (threadIdx.x == 0) atomicAdd(counter, 1);
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) seen[blockIdx.x] = *(volatile int*)counter;
}"""


def test_a_cooperative_grid_synchronises_also_in_a_graph() -> None:
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    config = LaunchConfig((blocks, 1, 1), (64, 1, 1), cooperative=True)
    counter, seen = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1, blocks))
    bound = module(GRID_SYNC).bind("k", config, [("pointer", counter), ("pointer", seen)])
    bound()
    assert seen.eq(blocks).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
    graph.replay()
    assert seen.eq(2 * blocks).all()


def test_a_cooperative_grid_that_cannot_be_resident_is_refused() -> None:
    config = LaunchConfig((100_000, 1, 1), (1024, 1, 1), cooperative=True)
    with refused(100_000):
        module(GRID_SYNC).prepare("k", config)


CLUSTER = """
#include <cooperative_groups.h>
extern "C" __global__ void k(int* out) {
  __shared__ int mine;
  auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) mine = 100 + blockIdx.x;
  cluster.sync();
  unsigned neighbour = (cluster.block_rank() + 1) % cluster.num_blocks();
  if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, neighbour);
  cluster.sync();
}"""


@pytest.mark.skipif(not HOPPER, reason="clusters came with sm_90")
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_blocks_of_a_cluster_read_each_others_shared_memory(size: int) -> None:
    out = torch.zeros(32, dtype=torch.int32, device="cuda")
    config = LaunchConfig((32, 1, 1), (32, 1, 1), cluster=(size, 1, 1))
    module(CLUSTER).launch("k", config, [("pointer", out)])
    expected = [100 + b // size * size + (b + 1) % size for b in range(32)]
    assert out.tolist() == expected


@pytest.mark.skipif(not HOPPER, reason="programmatic dependent launch came with sm_90")
def test_a_dependent_launch_waits_where_it_says_also_in_a_graph() -> None:
    source = """
    extern "C" __global__ void first(float* x) {
      asm volatile("griddepcontrol.launch_dependents;");
      for (int i = 0; i < 100; i++) __nanosleep(1000);
      x[threadIdx.x] = 1.0f;
    }
    extern "C" __global__ void second(float* x) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      x[threadIdx.x] += 1.0f;
    }"""
    x = torch.zeros(32, device="cuda")
    loaded = module(source, "first", "second")
    first = loaded.bind("first", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", x)])
    second = loaded.bind("second", LaunchConfig((1, 1, 1), (32, 1, 1), pdl=True), [("pointer", x)])
    first()
    second()
    assert x.eq(2).all()
    x.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first()
        second()
    graph.replay()
    assert x.eq(2).all()


CONSTANT = """
__constant__ float c_weight[8];
static __constant__ float c_static[4];
extern "C" __global__ void k(float* out) {
  out[threadIdx.x] = c_weight[threadIdx.x] + c_static[threadIdx.x % 4];
}
"""


def test_constants_are_filled_in_stream_order_also_in_a_graph() -> None:
    loaded, config = module(CONSTANT), LaunchConfig((1, 1, 1), (8, 1, 1))
    weight, out = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    loaded.set_constant("c_static", torch.full((4,), 100.0, device="cuda"))
    loaded.set_constant("c_weight", weight)
    loaded.launch("k", config, [("pointer", out)])
    assert out.tolist() == [100.0 + i for i in range(8)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loaded.set_constant("c_weight", weight)
        loaded.launch("k", config, [("pointer", out)])
    weight += 10
    graph.replay()
    assert out.tolist() == [110.0 + i for i in range(8)]


@pytest.mark.parametrize(
    ("symbol", "tensor", "facts"),
    [
        (
            "c_weight",
            lambda: torch.zeros(9, device="cuda"),
            (32, 36),
        ),
        ("c_wait", lambda: torch.zeros(8, device="cuda"), ("'c_wait'",)),
        ("c_weight", lambda: torch.zeros(8), ("cpu",)),
        ("c_weight", lambda: torch.zeros(4, 2, device="cuda").T, ("contiguous",)),
    ],
)
def test_a_constant_that_cannot_be_filled_is_reported(
    symbol: str, tensor: Callable[[], torch.Tensor], facts: tuple[object, ...]
) -> None:
    with refused(*facts):
        module(CONSTANT).set_constant(symbol, tensor())


def test_arguments_that_do_not_match_the_compiled_kernel_are_refused() -> None:
    x = torch.zeros(1, device="cuda")
    with refused("'k'", 2, 1):
        module(ADD).launch("k", ONE, [("pointer", x)])
    with refused("'k'", "mine.cu", 4, 8):
        module(ADD).launch("k", ONE, [("pointer", x), ("f64", 1.0)])


def test_launch_bounds_are_respected() -> None:
    source = 'extern "C" __global__ void __launch_bounds__(64) k(float* x) { *x = 1; }'
    with refused(128, 64):
        module(source).prepare("k", LaunchConfig((1, 1, 1), (128, 1, 1)))


def test_the_same_build_is_loaded_once() -> None:
    assert module(ADD) is module(ADD)
    assert module(ADD) is not module(ADD, defines=(("X", "1"),))


def test_occupancy_agrees_with_the_drivers() -> None:
    from cuda.bindings import driver

    from gpuless.facts.limits import occupancy

    source = (
        'extern "C" __global__ void k(float* x) { __shared__ float s[N]; s[threadIdx.x] = *x; x[1] = s[1]; }'
    )
    for floats in (256, 4096, 12000):
        loaded = module(source, defines=(("N", str(floats)),))
        found = loaded.resources["k"]
        for threads in (32, 96, 256, 1024):
            loaded.prepare("k", LaunchConfig((1, 1, 1), (threads, 1, 1)))
            error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                loaded._function("k"), threads, 0
            )
            assert not error
            expected = occupancy(loaded.device.limits.arch, threads, found.registers, found.static_shared)
            assert expected.blocks == blocks


def test_a_failing_kernel_is_named() -> None:
    # In a process of its own: an illegal address ends the CUDA context for good.
    program = """
import torch
import rung
from rung.cuda.driver import load_module
from gpuless.launch import Build, LaunchConfig
from rung.cuda.launcher import synchronize
from rung.errors import RungError
source = 'extern "C" __global__ void astray(float* x) { *x = 1; } extern "C" __global__ void next() { }'
module = load_module(Build(source, "mine.cu", ("astray", "next"), ()))
one = LaunchConfig((1, 1, 1), (1, 1, 1))
module.prepare("next", one)
module.launch("astray", one, [("pointer", None)])
for attempt in (synchronize, lambda: module.launch("next", one, [])):
    try:
        attempt()
    except RungError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    output = done.stdout.splitlines()
    assert len(output) == 2, done.stderr
    assert all("'astray'" in line and "illegal" in line.lower() for line in output)
    assert "kernel 'next' of mine.cu could not be launched" in output[1]
