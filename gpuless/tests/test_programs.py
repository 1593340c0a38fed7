"""CUDA programs with host code, through `gpuless run`: the right ones say OK under every order, the faulty ones are
refused for the reason, and at the line, that they name themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "programs"
RIGHT = sorted((FOLDER / "right").glob("*.cu"))
FAULTY = sorted((FOLDER / "faulty").glob("*.cu"))
QUICK = {"add_constant", "race_missing_barrier", "launch_never_asked", "streams_without_event"}
CODES = {"race": 102, "unasked": 103, "copy": 103, "double free": 103, "free": 103, "symbol": 103}


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuless", "run", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def marked(path: Path) -> object:
    return pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])


@pytest.mark.slow
@pytest.mark.parametrize("program", [marked(path) for path in RIGHT])
def test_right_program_says_ok_and_has_no_fault(program: Path) -> None:
    ended = run(program)
    assert ended.returncode == 0, ended.stderr
    assert "OK" in ended.stdout
    assert " 0 faults" in ended.stderr or "__global__" not in program.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("program", RIGHT, ids=lambda path: path.stem)
def test_right_program_ends_alike_under_eight_orders_and_without_race_check(program: Path) -> None:
    ended = run(program, "--order", "all")
    assert ended.returncode == 0, ended.stderr
    plain = run(program, "--no-races")
    assert plain.returncode == 0, plain.stderr


@pytest.mark.parametrize("program", [marked(path) for path in FAULTY])
def test_faulty_program_is_refused_for_its_reason_at_its_line(program: Path) -> None:
    """A comment `// fault: KIND` stands at the line that is at fault."""
    lines = program.read_text().splitlines()
    expected = [
        (found[1], number) for number, line in enumerate(lines, 1) if (found := re.search(r"// fault: ([\w ]+)$", line))
    ]
    assert expected, "the program names no fault"
    document = json.loads(run(program, "--json").stdout)
    assert document["findings"], document
    kind, first = expected[0][0], document["findings"][0]
    assert first["kind"] == kind
    assert "nv_static" not in first["place"].get("kernel", "")
    places = {one.get("line") for one in (first["place"], *first.get("related", []))}
    assert places & {number for _, number in expected}, first
    assert document["exit"] == CODES.get(kind, 101)


def test_what_the_compiler_refuses_is_told_at_its_line(tmp_path: Path) -> None:
    source = tmp_path / "refused.cu"
    source.write_text(
        "#include <curand.h>\n__global__ void one(int* x) { *x = undefined_name; }\n"
        "int main()\n{\n    curandGeneratePoisson(0, 0, 3, 2.0);\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 2
    for line, name in ((2, "undefined_name"), (5, "curandGeneratePoisson")):
        assert re.search(rf"refused.cu\({line}\): error: .*{name}", ended.stderr), ended.stderr
    document = json.loads(run(source, "--json").stdout)
    assert (document["exit"], document["verdict"]) == (2, "refused")
    assert [(one["kind"], one["place"]["line"]) for one in document["findings"]] == [("compile", 2)]


def test_programs_as_strangers_write_them_compile(tmp_path: Path) -> None:
    """Overloads of a kernel with as many parameters; a host function with the name of a template of kernels, and an
    explicit instantiation of one that launches; a namespace that only a host's header declares; a reference as a
    kernel's parameter; CUDA's own constants and types."""
    source = tmp_path / "many.cu"
    source.write_text(
        "#include <chrono>\n#include <cstdio>\nusing namespace std::chrono;\nstruct Pair { int first, second; };\n"
        "__global__ void fill(int* x, int n) { x[threadIdx.x] = n; }\n__global__ void fill(float* x, int n) { x[threadIdx.x] = n + 0.5f; }\n"
        "template <int N> __global__ void once(int* x) { x[threadIdx.x] += N; }\n"
        'extern "C" void once(int* x) { once<3><<<1, 32>>>(x); }\n'
        "template <class T> void both(T* x) { fill<<<1, 32>>>(x, 4); }\ntemplate void both<int>(int* x);\n"
        "__global__ void swap(Pair& pair) { const int was = pair.first; pair.first = pair.second; pair.second = was; }\n"
        "int main()\n{\n    const auto begun = steady_clock::now();\n    int h[32], *x;\n    float* y;\n    Pair* pair;\n"
        "    cudaSetDeviceFlags(cudaDeviceBlockingSync);\n    int overlaps = 0;\n"
        "    cudaDeviceGetAttribute(&overlaps, cudaDevAttrGpuOverlap, 0);\n"
        "    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();\n"
        "    cudaMalloc(&x, sizeof h);\n    cudaMalloc(&y, sizeof h);\n    cudaMallocManaged(&pair, sizeof *pair);\n    *pair = {1, 2};\n"
        "    both(x);\n    once(x);\n    fill<<<1, 32>>>(y, 1);\n    swap<<<1, 1>>>(*pair);\n"
        "    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);\n    cudaDeviceSynchronize();\n"
        "    const bool right = h[31] == 7 && pair->first == 2 && overlaps && format.x == 32;\n"
        "    cudaFree(x); cudaFree(y); cudaFree(pair);\n    return right && steady_clock::now() > begun ? 0 : 7;\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr
    plain = tmp_path / "plain.cpp"
    plain.write_text("#include <cuda_runtime.h>\n__host__ __device__ inline int one() { return 1; }\nint main() { return one() - 1; }\n")
    ended = run(plain)
    assert ended.returncode == 0, ended.stderr


def test_a_texture_is_read(tmp_path: Path) -> None:
    source = tmp_path / "texture.cu"
    source.write_text(
        "__global__ void read(cudaTextureObject_t t, float* x) { x[threadIdx.x] = tex2D<float>(t, threadIdx.x, 0); }\n"
        "int main()\n{\n    float *x, h[32], back[32];\n    for (int i = 0; i < 32; i++) h[i] = i;\n    cudaMalloc(&x, 128);\n"
        "    cudaArray_t array;\n    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();\n"
        "    cudaMallocArray(&array, &format, 32, 1);\n    cudaMemcpy2DToArray(array, 0, 0, h, 128, 128, 1, cudaMemcpyHostToDevice);\n"
        "    cudaTextureObject_t t;\n    cudaResourceDesc resource = {};\n    resource.resType = cudaResourceTypeArray, resource.res.array.array = array;\n"
        "    cudaTextureDesc how = {};\n    cudaCreateTextureObject(&t, &resource, &how, nullptr);\n    read<<<1, 32>>>(t, x);\n"
        "    cudaMemcpy(back, x, 128, cudaMemcpyDeviceToHost);\n    cudaDestroyTextureObject(t), cudaFreeArray(array), cudaFree(x);\n"
        "    return back[31] == 31 ? 0 : 7;\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr


def test_a_callback_wakes_a_host_that_waits_for_a_thread_or_a_condition(tmp_path: Path) -> None:
    source = tmp_path / "threads.cu"
    source.write_text(
        "#include <condition_variable>\n#include <mutex>\n#include <thread>\n#include <vector>\n"
        "__global__ void add(int* x) { x[threadIdx.x]++; }\nstd::mutex own;\nstd::condition_variable told;\nint ended;\n"
        "void wake(void*)\n{\n    std::lock_guard<std::mutex> held(own);\n    ended++;\n    told.notify_one();\n}\n"
        "void work()\n{\n    int* x;\n    cudaStream_t s;\n    cudaStreamCreate(&s);\n    cudaMallocAsync(&x, 128, s);\n    cudaMemsetAsync(x, 0, 128, s);\n"
        "    for (int i = 0; i < 20; i++) add<<<1, 32, 0, s>>>(x);\n    cudaFreeAsync(x, s);\n    cudaLaunchHostFunc(s, wake, nullptr);\n}\n"
        "int main()\n{\n    std::vector<std::thread> threads;\n    for (int i = 0; i < 4; i++) threads.emplace_back(work);\n"
        "    std::unique_lock<std::mutex> held(own);\n    told.wait(held, [] { return ended == 4; });\n    held.unlock();\n"
        "    for (std::thread& one : threads) one.join();\n    return 0;\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr


def test_atomics_of_the_whole_system_are_no_race_with_the_hosts(tmp_path: Path) -> None:
    text = (
        "__global__ void add(int* x) {{ atomicAdd_system(x, 1); }}\n"
        "int main()\n{{\n    int* x;\n    cudaMallocManaged(&x, 4);\n    *x = 0;\n    add<<<1, 32>>>(x);\n    {};\n"
        "    cudaDeviceSynchronize();\n    const int sum = *x;\n    cudaFree(x);\n    return sum == 33 ? 0 : 7;\n}}\n"
    )
    source = tmp_path / "system.cu"
    source.write_text(text.format("__sync_fetch_and_add(x, 1)"))
    assert run(source).returncode == 0
    source.write_text(text.format("*x += 1"))
    assert run(source).returncode == 102


@pytest.mark.parametrize(
    ("touches", "launches", "copied", "kinds"),
    [
        ("h[0] = 1;", "k<<<1, 32>>>(x);", "x, h, 128, cudaMemcpyHostToDevice", []),
        ("", "k<<<1, 32>>>(x);", "x, h, 128, cudaMemcpyHostToDevice", ["unwritten"]),
        ("", "", "x, h, 128, cudaMemcpyHostToDevice", []),
        ("", "k<<<1, 32>>>(x);", "h, x, 128, cudaMemcpyDeviceToHost", []),
    ],
    ids=["written", "the wrong direction", "measures copies", "the right direction"],
)  # fmt: skip
def test_pinned_memory_that_nobody_has_touched_does_not_take_the_place_of_a_kernels_result(
    tmp_path: Path, touches: str, launches: str, copied: str, kinds: list[str]
) -> None:
    source = tmp_path / "pinned.cu"
    source.write_text(
        "__global__ void k(int* x) { x[threadIdx.x] = 2; }\nint main()\n{\n    int *x, *h;\n    cudaMalloc(&x, 128);\n    cudaMallocHost(&h, 128);\n"
        f"    {touches}\n    {launches}\n    cudaMemcpyAsync({copied}, 0);\n    cudaDeviceSynchronize();\n    cudaFree(x);\n    cudaFreeHost(h);\n}}\n"
    )
    document = json.loads(run(source, "--json").stdout)
    assert [one["kind"] for one in document["findings"]] == kinds, document
    assert document["exit"] == (101 if kinds else 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("x[blockIdx.x % 2048 * 64 + threadIdx.x] = blockIdx.x + s;", 102),
        ("x[blockIdx.x * 64 + threadIdx.x] = s; __threadfence(); __syncthreads(); __shared__ int last;\n"
         "if (!threadIdx.x) last = atomicAdd(n, 1) == 4095; __syncthreads();\n"
         "if (last) { for (int i = threadIdx.x; i < 4096 * 64; i += 64) s += x[i]; x[threadIdx.x] = s; }", 0),
    ],
    ids=["blocks far apart", "the last block"],
)  # fmt: skip
def test_beyond_its_time_the_race_check_looks_at_some_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, code: int
) -> None:
    """Where fences order blocks, at none: half a history would tell of races that there are none."""
    source = tmp_path / "long.cu"
    source.write_text(
        f"__global__ void k(int* x, int* n, int m) {{ int s = 0; for (int i = 0; i < m; i++) s += i * i; {body} }}\n"
        "int main()\n{\n    int *x, *n, one;\n    cudaMalloc(&x, 4096 * 64 * 4);\n    cudaMalloc(&n, 4);\n    cudaMemset(n, 0, 4);\n"
        "    k<<<4096, 64>>>(x, n, 50);\n    cudaMemcpy(&one, x, 4, cudaMemcpyDeviceToHost);\n    cudaFree(x);\n    cudaFree(n);\n}\n"
    )
    monkeypatch.setenv("GPULESS_RACE_INSTRUCTIONS", "50000")
    document = json.loads(run(source, "--json").stdout)
    assert document["exit"] == code, document
    assert any(note.startswith("races:") for note in document["notes"])


def test_nodes_of_a_graph_copy_in_three_dimensions_and_are_checked(tmp_path: Path) -> None:
    text = (
        "int main()\n{{\n    int h[32], back[32], *x;\n    for (int i = 0; i < 32; i++) h[i] = i, back[i] = 0;\n    cudaMalloc(&x, {});\n"
        "    cudaGraph_t graph;\n    cudaGraphNode_t first, second;\n    cudaGraphExec_t exec;\n    cudaGraphCreate(&graph, 0);\n"
        "    cudaMemcpy3DParms to = {{}};\n    to.srcPtr = make_cudaPitchedPtr(h, 16, 16, 4);\n    to.dstPtr = make_cudaPitchedPtr(x, 16, 16, 4);\n"
        "    to.extent = make_cudaExtent(16, 4, 2);\n    to.kind = cudaMemcpyHostToDevice;\n    to.srcPos = to.dstPos = make_cudaPos(0, 0, 0);\n"
        "    cudaGraphAddMemcpyNode(&first, graph, nullptr, 0, &to);\n"
        "    if (cudaGraphAddMemcpyNode1D(&second, graph, &first, 1, back, x, sizeof h, cudaMemcpyDeviceToHost)) return 5;\n"
        "    cudaGraphInstantiate(&exec, graph, 0);\n    cudaGraphLaunch(exec, 0);\n    cudaDeviceSynchronize();\n"
        "    cudaFree(x);\n    return back[31] == 31 ? 0 : 7;\n}}\n"
    )
    source = tmp_path / "graph.cu"
    source.write_text(text.format("sizeof h"))
    ended = run(source)
    assert ended.returncode == 0, ended.stderr
    source.write_text(text.format("64"))
    assert run(source).returncode == 103


def test_what_nvcc_accepts_of_both_sides_compiles(tmp_path: Path) -> None:
    """A host function of a kernel's name, default arguments, CUDA's own types in signatures of the device's functions,
    other code for the host."""
    source = tmp_path / "both.cu"
    source.write_text(
        "#include <cooperative_groups.h>\n#include <cuda/barrier>\n#include <mma.h>\nnamespace cg = cooperative_groups;\n"
        "using block_barrier = cuda::barrier<cuda::thread_scope_block>;\n"
        "__host__ __device__ int side() {\n#ifdef __CUDA_ARCH__\n return 1;\n#else\n return 2;\n#endif\n}\n"
        "__device__ void meet(block_barrier& b) { b.arrive_and_wait(); }\n"
        "__device__ int rank(cg::thread_block_tile<32> tile) { return tile.thread_rank() + __dp4a(1u, 255u, 0u) - 255; }\n"
        "template <class T = int> __device__ T third(T a, T b = 3) { return a * b; }\n"
        "__global__ void run(int* x, int n, int add = 5)\n{\n    __shared__ block_barrier b;\n"
        "    if (!threadIdx.x) init(&b, blockDim.x);\n    __syncthreads();\n    meet(b);\n"
        "    x[threadIdx.x] = rank(cg::tiled_partition<32>(cg::this_thread_block())) + third(side()) + add;\n}\n"
        "void run(int* x) { run<<<1, 64>>>(x, 64); }\n"
        "int main()\n{\n    int h[64], *d;\n    cudaMalloc(&d, sizeof h);\n    run(d);\n"
        "    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);\n    cudaFree(d);\n    return h[33] == 9 && side() == 2 ? 0 : 7;\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr


def test_a_lambda_has_what_it_captures(tmp_path: Path) -> None:
    """By copy, by name, with a value, of a template's function; generic; and one that the host calls, too."""
    source = tmp_path / "captures.cu"
    source.write_text(
        "template <class F> __global__ void each(F f) { f(int(threadIdx.x)); }\n__device__ int scale = 2;\n"
        "template <class T, int N> void fill(T* to, T with) { each<<<1, 32>>>([=] __device__(int i) { to[i] = T(with + i * N); }); }\n"
        "int main()\n{\n    float h[32], *x;\n    cudaMalloc(&x, sizeof h);\n    int i = 4;\n    fill<float, 3>(x, 1);\n"
        "    each<<<1, 32>>>([x, more = i + 1] __device__(auto j) { x[j] += more * scale; });\n"
        "    auto half = [] __host__ __device__(float v) { return v / 2; };\n"
        "    each<<<1, 32>>>([=] __device__(int k) mutable -> void { float* p = x + k; *p = half(*p); });\n"
        "    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);\n    cudaFree(x);\n"
        "    for (int k = 0; k < 32; k++) if (h[k] != half(1 + k * 3 + 10)) return 7;\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_kernels_that_wait_for_each_other_for_ever_are_told_at_their_loop(tmp_path: Path) -> None:
    source = tmp_path / "wait.cu"
    source.write_text(
        "__device__ volatile int flag;\n__global__ void wait()\n{\n    while (flag == 0) {}\n}\n"
        "int main()\n{\n    wait<<<1, 64>>>();\n    return cudaDeviceSynchronize() == cudaErrorLaunchTimeout ? 0 : 7;\n}\n"
    )
    for races in ("--races", "--no-races"):
        document = json.loads(run(source, "--json", races).stdout)
        assert document["exit"] == 101
        assert [fault["kind"] for fault in document["findings"]] == ["deadlock"]
        assert document["findings"][0]["place"]["line"] == 4
        assert document["results"][0]["seconds"] < 30


@pytest.mark.parametrize(
    ("loop", "kind"),
    [
        ("for (int i = 0; i < n; i++) x = x * 1.0001f + 0.5f;", "unfinished"),  # it is only slow
        ("for (int i = 0; i < n; i++) { x = x * 1.0001f; __syncthreads(); }", "unfinished"),
        ("for (int i = 0; i < n; i -= i % 8 == 7 ? 7 : -1) x = i & 3;", "deadlock"),  # it comes back to where it was
        ("while (true) atomicAdd(out, 1.0f);", "deadlock"),
    ],
)
def test_a_launch_at_its_limit_is_a_deadlock_only_if_it_cannot_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, kind: str
) -> None:
    source = tmp_path / "limit.cu"
    source.write_text(
        "__global__ void f(float* out, int n) { float x = threadIdx.x; " + loop + " out[threadIdx.x] = x; }\n"
        "int main() { float* out; cudaMalloc(&out, 512); cudaMemset(out, 0, 512); f<<<1, 64>>>(out, 1 << 30);\n"
        "return cudaDeviceSynchronize() ? 0 : 7; }\n"
    )
    monkeypatch.setenv("GPULESS_SECONDS", "1")
    assert [found["kind"] for found in json.loads(run(source, "--json").stdout)["findings"]] == [kind]


def test_long_work_of_one_thread_is_no_deadlock(tmp_path: Path) -> None:
    source = tmp_path / "long.cu"
    source.write_text(
        "__global__ void sum(float* x, int n) { float s = 0; for (int j = 0; j < 400; j++) for (int i = 0; i < n; i++)"
        " s += x[i]; x[0] = s; }\n"
        "int main() { float* x; cudaMalloc(&x, 1 << 18); cudaMemset(x, 0, 1 << 18); sum<<<1, 1>>>(x, 1 << 16);\n"
        "int code = cudaDeviceSynchronize(); cudaFree(x); return code; }\n"
    )
    ended = run(source, "--no-races")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["reduce_steps", "graphs", "streams", "convolution", "cluster_histogram", "pdl_chain"])
def test_program_has_the_same_output_on_a_gpu(name: str) -> None:
    source = FOLDER / "right" / f"{name}.cu"
    emulated, real = run(source, "--no-races"), run(source, "--device", "cuda")
    assert (real.returncode, real.stdout) == (emulated.returncode, emulated.stdout), real.stderr


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "none.cu"
    source.write_text("int main() {}\n")
    ended = run(source, "--device", "gpu")
    assert ended.returncode == 2
    assert "emulator or cuda" in ended.stderr


def test_objects_compiled_apart_link_into_a_program(tmp_path: Path) -> None:
    (tmp_path / "device.cu").write_text(
        "__device__ int one = 1;\n__device__ int twice(int i) { return 2 * i + one - 1; }\n"
    )
    (tmp_path / "kernel.cu").write_text(
        "__device__ int twice(int);\n__global__ void k(int* x) { x[threadIdx.x] = twice(threadIdx.x); }\n"
        "void launch(int* x) { k<<<1, 32>>>(x); }\n"
    )
    (tmp_path / "main.cpp").write_text(
        "#include <cuda_runtime.h>\nvoid launch(int*);\nint main() { int h[32], *d; cudaMalloc(&d, sizeof h); launch(d);\n"
        "cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost); cudaFree(d); return h[31] == 62 ? 0 : 7; }\n"
    )

    def compiled(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "gpuless", "nvcc", *words], cwd=tmp_path, check=True)

    for name in ("device.cu", "kernel.cu", "main.cpp"):
        compiled("-O3", "-arch=sm_90", "-rdc=true", "-c", name, "-o", f"{name}.o")
    compiled("device.cu.o", "kernel.cu.o", "main.cpp.o", "-o", "program", "-lcudart")
    ended = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "1 kernel, 1 launch" in ended.stderr
    (tmp_path / "main.cu").write_text((tmp_path / "main.cpp").read_text())
    assert run(*(tmp_path / name for name in ("main.cu", "kernel.cu", "device.cu"))).returncode == 0


def test_files_are_compiled_for_the_architecture_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "arch.cu").write_text(
        "#include <cstdio>\n__global__ void k(int* x) {\n#ifdef __CUDA_ARCH__\n*x = __CUDA_ARCH__;\n#endif\n}\n"
        "int main() { int *x, y; cudaMalloc(&x, 4); k<<<1, 1>>>(x); cudaMemcpy(&y, x, 4, cudaMemcpyDeviceToHost);\n"
        "printf(\"%d\\n\", y); return cudaFree(x); }\n"
    )
    for options, made in (((), "900"), (("--gpu", "a100"), "800"), (("--arch", "sm_80"), "800")):
        ended = run(*options, tmp_path / "arch.cu")
        assert (ended.returncode, ended.stdout) == (0, f"{made}\n"), ended.stderr


@pytest.mark.parametrize("name", ["kernel.cu", "host.cpp"])
def test_dependencies_name_the_headers_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "own.h").write_text("inline int one() { return 1; }\n")
    (tmp_path / name).write_text('#include "own.h"\nint two() { return 2 * one(); }\n')
    words = ["-MD", "-MF", "made.d", "-c", name, "-o", "made.o"]
    subprocess.run([sys.executable, "-m", "gpuless", "nvcc", *words], cwd=tmp_path, check=True)
    target, _, needed = (tmp_path / "made.d").read_text().replace("\\\n", "").partition(":")
    assert target.strip() == "made.o"
    assert {name, "own.h"} <= set(needed.split())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reverse", "shuffled"])
def test_a_missing_event_changes_the_result_in_another_order(tmp_path: Path, order: str) -> None:
    source = tmp_path / "streams.cu"
    source.write_text(
        "#include <cstdio>\n"
        "__global__ void set(int* x) { *x = 1; }\n__global__ void copy(int* y, const int* x) { *y = *x; }\n"
        "int main() { int *x, *y, h = 0; cudaStream_t a, b; cudaMalloc(&x, 4); cudaMalloc(&y, 4); cudaMemset(x, 0, 4);\n"
        "cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking); cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);\n"
        "cudaDeviceSynchronize(); set<<<1, 1, 0, a>>>(x); copy<<<1, 1, 0, b>>>(y, x); cudaDeviceSynchronize();\n"
        "cudaMemcpy(&h, y, 4, cudaMemcpyDeviceToHost); printf(\"<%d>\", h); }\n"
    )
    usual = run(source)
    assert usual.returncode == CODES["race"] and "<1>" in usual.stdout
    seeds = range(4 if order == "shuffled" else 1)
    assert any("<0>" in run(source, "--order", order, "--seed", seed).stdout for seed in seeds)


def test_unwritten_shared_memory_is_a_fault_and_a_part_of_a_copy_a_note(tmp_path: Path) -> None:
    source = tmp_path / "part.cu"
    source.write_text(
        """__global__ void f(float* out) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x < 48) out[threadIdx.x] = s[threadIdx.x];
}
int main() {
    float *d, h[128];
    cudaMalloc(&d, sizeof h);
    f<<<1, 64>>>(d);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    return cudaFree(d) != cudaSuccess;
}
"""
    )
    document = json.loads(run(source, "--json").stdout)
    assert document["exit"] == 101 and [(f["kind"], f["place"]["line"]) for f in document["findings"]] == [("unwritten", 5)]
    assert "'s'" in document["findings"][0]["text"]
    assert len(document["notes"]) == 1 and "320" in document["notes"][0]  # bytes that nothing has written


@pytest.mark.parametrize(("first", "lines"), [("__syncthreads(); if (i)", []), ("", [7])])
def test_unwritten_shared_memory_may_be_moved_until_it_is_used(tmp_path: Path, first: str, lines: list[int]) -> None:
    """Planes of a grid move down before the lowest one has been read."""
    source = tmp_path / "planes.cu"
    source.write_text(
        """__global__ void f(float* v, int n) {
    __shared__ float planes[3][32];
    const int t = threadIdx.x;
    planes[2][t] = v[t];
    for (int i = 0; i < n; i++) {
        planes[0][t] = planes[1][t], planes[1][t] = planes[2][t], planes[2][t] = v[32 * i + t];
        FIRST v[32 * i + t] = planes[0][t] + planes[1][t];
    }
}
int main() {
    float* d;
    cudaMalloc(&d, 512), cudaMemset(d, 0, 512);
    f<<<1, 32>>>(d, 4);
    return cudaFree(d) != cudaSuccess;
}
""".replace("FIRST", first)
    )
    findings = json.loads(run(source, "--json").stdout)["findings"]
    assert [(f["kind"], f["place"]["line"]) for f in findings] == [("unwritten", line) for line in lines]


EVERY_OTHER = """__global__ void f(%s* out, const %s* in) {
    __shared__ %s s[64];
    if (threadIdx.x != 13) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
int main() {
    %s *a, *b, h[64];
    cudaMalloc(&a, sizeof h), cudaMalloc(&b, sizeof h);
    for (int i = 0; i < 64; i++) h[i] = i;
    cudaMemcpy(a, h, sizeof h - sizeof *h, cudaMemcpyHostToDevice);
    f<<<1, 64>>>(b, a);
    cudaMemcpy(h, b, sizeof h, cudaMemcpyDeviceToHost);
    return cudaFree(a) || cudaFree(b);
}
"""


@pytest.mark.parametrize("kind", ["float", "int", "double"])
def test_a_single_number_that_nothing_has_written_is_told(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "one.cu"
    source.write_text(EVERY_OTHER.replace("%s", kind))
    document = json.loads(run(source, "--json").stdout)
    assert {(f["kind"], f["place"]["line"]) for f in document["findings"]} == {("unwritten", 3), ("unwritten", 5)}


def test_a_byte_that_equals_what_was_there_is_written(tmp_path: Path) -> None:
    source = tmp_path / "bytes.cu"
    source.write_text("""#include <cstdio>
__global__ void f(const char* in, char* out)
{
    __shared__ bool first;
    if (threadIdx.x == 0) first = in[0] == 1;
    out[4 * threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (first && in[4 * threadIdx.x] == 1) out[4 * threadIdx.x]++;
}
int main()
{
    char *in, *out;
    cudaMalloc(&in, 4096), cudaMalloc(&out, 4096);
    for (int i = 0; i < 1024; i++) cudaMemset(in + 4 * i, 1, 1);
    f<<<1, 1024>>>(in, out);
    cudaFree(in), cudaFree(out);
}
""")
    assert json.loads(run(source, "--json").stdout)["findings"] == []


def test_fewer_blocks_than_results_are_told_where_the_results_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "blocks.cu"
    source.write_text(
        """__global__ void f(float* sums) { if (!threadIdx.x) sums[blockIdx.x] = blockIdx.x; }
int main() {
    float *d, h[32];
    cudaMalloc(&d, sizeof h);
    f<<<7, 64>>>(d);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    return cudaFree(d) != cudaSuccess;
}
"""
    )
    document = json.loads(run(source, "--json").stdout)
    assert document["exit"] == 101 and [(f["kind"], f["place"]["line"]) for f in document["findings"]] == [("unwritten", 6)]


def test_parameters_beyond_32_kb_are_read(tmp_path: Path) -> None:
    source = tmp_path / "large.cu"
    source.write_text("""#include <cstdio>
struct Large { int v[8180]; };
__global__ void f(const Large p, int* out)
{
    const int i = out[3];
    out[0] = p.v[8179], out[1] = p.v[8100 + i], out[2] = p.v[i];
}
int main()
{
    Large p;
    for (int i = 0; i < 8180; i++) p.v[i] = i;
    int *out, h[4] = {0, 0, 0, 7};
    cudaMalloc(&out, sizeof h);
    cudaMemcpy(out, h, sizeof h, cudaMemcpyHostToDevice);
    f<<<1, 1>>>(p, out);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    printf("%d %d %d\\n", h[0], h[1], h[2]);
    return cudaFree(out);
}
""")
    result = run(source)
    assert (result.returncode, result.stdout) == (0, "8179 8107 7\n")


def test_options_of_the_host_compiler_hold_for_the_hosts_part(tmp_path: Path) -> None:
    source = tmp_path / "threads.cu"
    source.write_text("""#include <cstdio>
#include <omp.h>
__global__ void f() {}
int main()
{
    int n = 0;
#pragma omp parallel num_threads(2) reduction(+ : n)
    n += omp_get_thread_num() + 1;
    f<<<1, 1>>>();
    cudaDeviceSynchronize();
    printf("%d\\n", n);
}
""")
    result = run(source, "-Xcompiler", "-fopenmp")
    assert (result.returncode, result.stdout) == (0, "3\n")
    lacking = run(source)
    assert lacking.returncode == 2 and "omp_get_thread_num" in lacking.stderr


@pytest.mark.slow
def test_register_variables_and_the_policies_of_thrusts_back_end_compile(tmp_path: Path) -> None:
    source = tmp_path / "old.cu"
    source.write_text("""#include <cstdio>
#include <thrust/device_vector.h>
#include <thrust/sequence.h>
#include <type_traits>
struct Sum
{
    template <class A, class B> __device__ typename std::common_type<A, B>::type operator()(A&& a, B&& b) const { return a + b; }
};
__global__ void f(int* x) { register int i = threadIdx.x; __const__ int none = 0; i += none; x[i] = Sum()(x[i], short(i)); }
int main()
{
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    thrust::device_vector<int> x(4);
    thrust::sequence(thrust::cuda::par_nosync.on(stream), x.begin(), x.end());
    f<<<1, 4, 0, stream>>>(x.data().get());
    cudaStreamSynchronize(stream);
    for (int v : x) printf("%d ", v);
    return cudaStreamDestroy(stream);
}
""")
    result = run(source)
    assert (result.returncode, result.stdout) == (0, "0 2 4 6 ")


def test_headers_and_helpers_of_cub_and_cublas_are_there(tmp_path: Path) -> None:
    source = tmp_path / "helpers.cu"
    source.write_text("""#include <cub/util_allocator.cuh>
#include <cub/util_debug.cuh>
#include <cub/device/device_reduce.cuh>
#include <cublas_api.h>
#include <cstdio>
cub::CachingDeviceAllocator allocator(true);
__global__ void fill(float* x) { x[threadIdx.x] = threadIdx.x; }
int main()
{
    float *x, *sum, *c, h[8];
    void* room = nullptr;
    size_t bytes = 0;
    CubDebugExit(allocator.DeviceAllocate((void**)&x, 32));
    CubDebugExit(allocator.DeviceAllocate((void**)&sum, 4));
    CubDebugExit(allocator.DeviceAllocate((void**)&c, 32));
    fill<<<1, 8>>>(x);
    CubDebugExit(cub::DeviceReduce::Sum(room, bytes, x, sum, 8));
    CubDebugExit(allocator.DeviceAllocate(&room, bytes));
    CubDebugExit(cub::DeviceReduce::Sum(room, bytes, x, sum, 8));
    cublasHandle_t handle;
    cublasFillMode_t fill = CUBLAS_FILL_MODE_LOWER;  // named, where no call takes it
    cublasCreate(&handle);
    const float one = fill + 1, two = 2;
    cublasSgeam(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 4, &one, x, 4, &two, x, 2, c, 2);
    cublasDestroy(handle);
    cudaMemcpy(h, sum, 4, cudaMemcpyDeviceToHost), printf("%g\\n", h[0]);
    cudaMemcpy(h, c, 32, cudaMemcpyDeviceToHost);
    for (float v : h) printf("%g ", v);
    for (void* p : {(void*)x, (void*)sum, (void*)c, room}) CubDebugExit(allocator.DeviceFree(p));
}
""")
    result = run(source)
    assert (result.returncode, result.stdout) == (0, "28\n0 6 5 11 10 16 15 21 ")


def test_a_pool_of_the_programs_own_gives_memory(tmp_path: Path) -> None:
    source = tmp_path / "pool.cu"
    source.write_text("""__global__ void f(float* x) { *x = 1; }
int main()
{
    cudaMemPoolProps properties = {};
    cudaMemPool_t pool;
    float* x;
    cudaMemPoolCreate(&pool, &properties);
    cudaMallocFromPoolAsync(&x, 4, pool, 0);
    f<<<1, 1>>>(x);
    cudaFreeAsync(x, 0);
    cudaDeviceSynchronize();
    return cudaMemPoolDestroy(pool);
}
""")
    assert run(source).returncode == 0


TWO_FILES = """#include <cstdio>
extern "C" int twice(int n);
__global__ void set(int* x) { *x = 21; }
int main()
{
    int *x, y;
    cudaMalloc(&x, sizeof y);
    set<<<1, 1>>>(x);
    cudaMemcpy(&y, x, sizeof y, cudaMemcpyDeviceToHost);
    printf("%d\\n", twice(y));
    cudaFree(x);
}
"""


def test_a_c_file_is_c(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text(TWO_FILES)
    (tmp_path / "twice.c").write_text("int twice(int new) { return 2 * new; }\n")  # no C++
    ended = run(tmp_path / "main.cu", tmp_path / "twice.c")
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr


HELPER = """#include <strings.h>
#include <pthread.h>
typedef pthread_t Thread;
typedef float Number;
#ifdef CUBLAS_API_H_
static const char* named(cublasStatus_t status) { return status == CUBLAS_STATUS_LICENSE_ERROR ? "license" : "OK"; }
#endif
"""


def test_helpers_of_the_host_in_headers_of_its_own_are_no_code_of_kernels(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common/tools.h").write_text(HELPER)
    (tmp_path / "common/helper_math.h").write_text(
        "inline __host__ __device__ void operator+=(float2& a, float2 b) { a.x += b.x; a.y += b.y; }\n"
    )
    source = tmp_path / "main.cu"
    source.write_text(
        "#include <cublas_v2.h>\n#include <tools.h>\n#include <helper_math.h>\n#include <cstdio>\n"
        "typedef Number Other;\n__global__ void add(float2* x, Other by) { *x += make_float2(by, by); }\n"
        "int main() { float2* x; cudaMallocManaged(&x, sizeof *x); *x = make_float2(1, 2); add<<<1, 1>>>(x, 2);\n"
        'cudaDeviceSynchronize(); printf("%g %s\\n", x->y, named(CUBLAS_STATUS_SUCCESS)); cudaFree(x); }\n'
    )
    ended = run(source, "-I", tmp_path / "common")
    assert (ended.returncode, ended.stdout) == (0, "4 OK\n"), ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_project_that_asks_cmake_for_the_toolkit_is_built(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text(TWO_FILES)
    (tmp_path / "twice.c").write_text("int twice(int new) { return 2 * new; }\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(p LANGUAGES C CXX CUDA)\nfind_package(CUDAToolkit 12 REQUIRED)\n"
        "add_executable(p main.cu twice.c)\ntarget_link_libraries(p PRIVATE CUDA::cudart CUDA::cublas)\n"
    )
    for words in (["cmake", "-S", ".", "-B", "b"], ["cmake", "--build", "b"], ["b/p"]):
        command = [sys.executable, "-m", "gpuless", "run", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "42\n"



FORMS = """#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <type_traits>
int n;  // the host's; the kernel has a parameter of this name
const float half_of = 0.5f;
const float quarter = half_of * half_of;
__constant__ float first, second[2], third;
template <class T> using Pack = typename std::aligned_storage<2 * sizeof(T), 2 * sizeof(T)>::type;

template <class F> __device__ float larger(float a, float b, F of) { return of(a, b); }

__global__ void sums(float* x, int n, float quarter)
{
    float most = -__FLT_MAX__;
    most = larger(most, x[threadIdx.x], [](float a, float b) { return a > b ? a : b; });
    Pack<float> two;
    reinterpret_cast<float*>(&two)[0] = most;
    if (threadIdx.x < n) x[threadIdx.x] = reinterpret_cast<float*>(&two)[0] + first + second[1] + third * quarter;
}

int main()
{
    n = 4;
    float h[4] = {1, 2, 3, 4}, a = 10, b[2] = {0, 20}, c = 4, one = 1, zero = 0, *x, *y;
    cudaMemcpyToSymbol(first, &a, sizeof a);
    cudaMemcpyToSymbol(second, b, sizeof b);
    cudaMemcpyToSymbol(third, &c, sizeof c);
    cudaMalloc(&x, sizeof h);
    cudaMalloc(&y, sizeof h);
    cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
    sums<<<1, 4>>>(x, n, quarter);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, x, CUDA_R_32F, 2, x, CUDA_R_32F, 2, &zero, y, CUDA_R_32F,
                 2, CUDA_R_32F, CUBLAS_GEMM_DEFAULT);
    cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost);
    for (float value : h) printf("%g ", value);
    cublasDestroy(handle);
    cudaFree(x);
    cudaFree(y);
}
"""


def test_forms_that_nvcc_accepts_run(tmp_path: Path) -> None:
    """A byte order mark, a host's variable named like a parameter, floats calculated from floats, several constants in
    a declaration, g++'s own limits, aligned storage, CUDA 10's call of a product."""
    program = tmp_path / "forms.cu"
    program.write_text(FORMS, encoding="utf-8-sig")
    ended = run(program)
    x = [[32, 33], [34, 35]]  # columns first
    wanted = [sum(x[k][i] * x[j][k] for k in range(2)) for j in range(2) for i in range(2)]
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [f"{value:g}" for value in wanted]


def test_a_header_that_is_nowhere_is_asked_for(tmp_path: Path) -> None:
    program = tmp_path / "lacking.cu"
    program.write_text("#include <cub/nowhere.cuh>\nint main() {}\n")
    ended = run(program)
    assert ended.returncode == 2
    assert "-I" in ended.stderr and "CUB" not in ended.stderr


def test_a_kernel_that_waits_when_the_program_exits_is_still_judged(tmp_path: Path) -> None:
    program = tmp_path / "waiting.cu"
    program.write_text("""#include <cstdlib>
__global__ void doubled(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2.0f;
}
int main()
{
    float *kept, *x;
    cudaStream_t stream;
    cudaMallocHost(&kept, 4000), cudaMalloc(&x, 4000), cudaMemset(x, 0, 4000), cudaStreamCreate(&stream);
    doubled<<<4, 256, 0, stream>>>(x, 1000);
    cudaFree(x);
    doubled<<<4, 256, 0, stream>>>(x, 1000);
    if (cudaMemcpyAsync(kept, x, 4000, cudaMemcpyDeviceToHost, stream) != cudaSuccess) exit(1);
}
""")
    for _ in range(3):
        document = json.loads(run(program, "--json").stdout)
        assert document["verdict"] == "failed"
        assert "bounds" in {found["kind"] for found in document["findings"]}
        assert not {found["kind"] for found in document["findings"]} & {"signal"}


LONG = """
#include <cstdio>
#include <unistd.h>
__global__ void count(float* out)
{
    float x = threadIdx.x;
    for (int i = 0; i < LOOPS; i++) x = x * 0.999f + 1.0f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
int main()
{
    float* out;
    cudaMalloc(&out, BLOCKS * 32 * sizeof(float));
    count<<<BLOCKS, 32>>>(out);
    printf("%d\\n", getpid()), fflush(stdout);
    return cudaFree(out) != cudaSuccess;
}
"""


def long_program(folder: Path, loops: int, blocks: int) -> Path:
    (folder / "long.cu").write_text(LONG.replace("LOOPS", str(loops)).replace("BLOCKS", str(blocks)))
    return folder / "long.cu"


def test_a_long_launch_tells_how_many_of_its_blocks_have_ended(tmp_path: Path) -> None:
    source = long_program(tmp_path, 400000, 4096)
    command = [sys.executable, "-m", "gpuless", "run", str(source), "--no-races"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        line = next(line for line in process.stderr if "blocks" in line)
        told = re.search(r"count.*: (\d+) of 4096 blocks", line)
        assert told and 0 < int(told[1]) < 4096
        process.kill()


def test_a_run_that_is_ended_tells_how_far_it_came_and_leaves_no_process(tmp_path: Path) -> None:
    source = long_program(tmp_path, 40000, 65536)
    command = [sys.executable, "-m", "gpuless", "run", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        program = int(process.stdout.readline())
        assert "blocks after" in process.stderr.readline()  # the launch has begun
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
        assert re.search(r"count.*: \d+ of 65536 blocks after .* left", process.stderr.read())
        with pytest.raises(ProcessLookupError):
            os.kill(program, 0)


def test_a_launch_that_ends_at_its_limit_tells_what_it_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = long_program(tmp_path, 40000, 65536)
    monkeypatch.setenv("GPULESS_SECONDS", "1")
    document = json.loads(run(source, "--json").stdout)
    assert [found["kind"] for found in document["findings"]] == ["unfinished"]
    numbers = re.search(r"after (\d+) s .* (\d+) of 65536 .* (\d+) s", document["findings"][0]["text"])
    assert numbers and int(numbers[1]) == 1 and 0 < int(numbers[2]) < 65536
    assert int(numbers[3]) == pytest.approx(65536 / int(numbers[2]), rel=0.3)


def test_a_kernel_may_run_for_the_first_time_when_the_program_ends(tmp_path: Path) -> None:
    source = tmp_path / "end.cu"
    source.write_text("""
__global__ void one(float* a) { a[threadIdx.x] = threadIdx.x; }
__global__ void two(float* a) { a[threadIdx.x] += 1; }
int main()
{
    float *a, *b;
    cudaMalloc(&a, 128), cudaMalloc(&b, 128);
    one<<<1, 32>>>(a);
    cudaFree(a);
    one<<<1, 32>>>(b);
    two<<<1, 32>>>(b);
}
""")
    ended = run(source)
    assert ended.returncode == 0 and "2 kernels, 3 launches" in ended.stderr, ended.stderr


def test_a_kernel_that_launches_and_a_result_that_stays_on_the_device_are_told(tmp_path: Path) -> None:
    program = "__global__ void f(int* x) { *x += 1; }\n%s\nint main() { int *d, h = 1; cudaMalloc(&d, 4);\n" \
        "cudaMemcpy(d, &h, 4, cudaMemcpyHostToDevice); %s<<<1, 1>>>(d); cudaFree(d); }\n"
    source = tmp_path / "f.cu"
    source.write_text(program % ("", "f"))
    document = json.loads(run(source, "--json").stdout)
    assert document["exit"] == 0 and len(document["notes"]) == 1
    source.write_text(program % ("__global__ void g(int* x) { f<<<1, 1>>>(x); }", "g"))
    ended = run(source)
    assert ended.returncode == 2 and "f.cu(2): error" in ended.stderr, ended.stderr


def test_cudas_complex_numbers_and_headers_that_only_the_host_uses(tmp_path: Path) -> None:
    source = tmp_path / "complex.cu"
    source.write_text(
        "#include <cuComplex.h>\n#include <cstdio>\n#include <ftw.h>\n#include <execution>\n"
        "__global__ void turn(cuFloatComplex* x) { *x = cuCmulf(*x, make_cuFloatComplex(0, 1)); }\n"
        "int main() { cuFloatComplex h = {3, 4}, *d; cudaMalloc(&d, sizeof h);\n"
        "cudaMemcpy(d, &h, sizeof h, cudaMemcpyHostToDevice); turn<<<1, 1>>>(d);\n"
        "cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost); cudaFree(d);\n"
        'printf("%g %g\\n", cuCrealf(h), cuCabsf(h)); }\n'
    )
    ended = run(source)
    assert (ended.returncode, ended.stdout) == (0, "-4 5\n"), ended.stderr


def test_a_stream_that_has_been_destroyed_is_named(tmp_path: Path) -> None:
    source = tmp_path / "gone.cu"
    source.write_text(
        "__global__ void k(int* x) { *x = 1; }\nint main() {\n    int* x; cudaMalloc(&x, 4);\n    cudaStream_t s; cudaStreamCreate(&s);\n"
        "    cudaStreamDestroy(s);\n    k<<<1, 1, 0, s>>>(x);\n    cudaStreamSynchronize(s);\n    cudaFree(x);\n}\n"
    )
    ended = run(source)
    assert ended.returncode == 103 and ended.stderr.count("gpuless: stream: ") == 1, ended.stderr
