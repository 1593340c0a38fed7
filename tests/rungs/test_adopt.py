"""A file without a header gets one: from its launch, its signature, or a trial on a small case."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulation import needs_compiler
from gpuless.base.files import read_text
from rung import adopt
from rung.adopt import launches, names
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, Unjudged
from rung.rungs import catalogue, header, learned
from rung.rungs.cuda import CudaRung

FOREIGN = Path(__file__).parents[1] / "foreign"
FILES = sorted(path.name for path in FOREIGN.glob("*.[cp][uy]"))
OF = {"flash_minimal": "attention", "triton_descriptors": "residual", "tutorial_vector_add": "residual"}
TOLD = {  # what to add
    "attention_heads.cu": 'needs = "HS <= 128"',
    "layernorm_packed_shared.cu": "C % 4 == 0",
    "matmul_register_tiles.cu": "OC % 128 == 0",
    "matmul_whole_tiles.cu": "not judged",
    "attention_torch_host.cu": "T % 32 == 0",
    "relu_float4.cu": "NaN is lost",
    "sgemm_shared.cu": "C % 32 == 0",
    "sgemm_1d_blocktiling.cu": "C % 8 == 0",
    "sgemm_2d_blocktiling.cu": "C % 8 == 0",
    "sgemm_bank_linear.cu": "C % 8 == 0",
    "sgemm_vectorize.cu": "C % 8 == 0",
}
# What a kernel's launch says completely is not tried.
SURE = {
    "encoder_forward": ("embedding", {"inp": "tokens"}, "(B * T * C + 256 - 1) // 256", 256),
    "layernorm_floatx": ("layernorm", {"inp": "x", "N": "B * T"}, "ceil_div(B * T, 8)", 256),
}


def first(operation: str, text: str, path: Path) -> launches.Proposal:
    """The likeliest proposal for the file's first kernel."""
    of = launches.propose(catalogue.operation(operation), text, path)
    if not of.proposals:
        raise next(iter(of.failures.values()))
    return next(next(iter(of.proposals.values())))


def learn(operation: str, path: Path) -> learned.LearnedCall:
    """What is found out about the file's first kernel."""
    adopt.rungs_in_file(catalogue.operation(operation), path)
    found = learned.read(catalogue.operation(operation), catalogue.text_of(path))
    assert found is not None
    return found.calls[0]


@pytest.mark.parametrize("name", SURE)
def test_a_written_launch_is_enough(name: str) -> None:
    operation, bind, grid, block = SURE[name]
    path = FOREIGN / f"{name}.cu"
    source = read_text(path)
    assert names.spoken_of(source, path, [*catalogue.operations()])[0] == operation
    found = first(operation, source, path)
    assert found.sure and found.own and found.table["bind"] == bind
    assert found.table["launch"][0]["grid"] == grid
    assert found.table["launch"][0]["block"] == block
    rung = CudaRung(catalogue.operation(operation), path, found.table)
    case = (
        next(c for c in rung.operation.cases if c.name == "another eps")
        if "eps" in rung.operation.scalars
        else rung.operation.cases[0]
    )
    rung.require_bindable(rung.operation.complete(case.values), dtype_named("f32"))
    assert header.parse(header.written(found.table) + "\n", "x").launches == rung.header.launches


@pytest.mark.parametrize(("name", "operation"), [("triton_block_pointers.py", "transpose"), ("rmsnorm_cub.cu", "rmsnorm")])
def test_names_of_functions_say_which_operation_a_file_is_for(name: str, operation: str) -> None:
    source = read_text(FOREIGN / name)
    assert names.spoken_of(source, Path("k" + name[-3:]), [*catalogue.operations()])[0] == operation


@pytest.mark.parametrize(
    ("path", "kernels", "operations"),
    [
        ("rope_embedding.cu", ["rope_1d_embedding_kernel"], ["rope", "embedding"]),
        ("rms_norm.cu", ["rms_norm_kernel", "layer_norm_kernel"], ["rmsnorm", "layernorm"]),
        ("softmax_attention.cu", ["AttentionKernel"], ["softmax", "attention"]),
        ("layernorm_matmul.cu", ["k"], ["layernorm_matmul", "layernorm", "matmul"]),
        ("add.cu", ["elementwise_add", "relu_float4"], ["residual", "relu"]),
        ("padded.cu", ["warpSumReductionKernel"], ["reduce"]),
        ("softmax/kernel.cu", ["k"], ["softmax"]),
    ],
)
def test_the_first_word_of_a_name_counts_most(path: str, kernels: list[str], operations: list[str]) -> None:
    source = "".join(f"__global__ void {kernel}(float* x) {{}}\n" for kernel in kernels)
    assert names.spoken_of(source, Path("/files") / path, [*catalogue.operations()]) == operations


@pytest.mark.slow
@needs_compiler
def test_of_two_operations_that_a_name_speaks_of_the_right_one_has_a_header(tmp_path: Path) -> None:
    path = tmp_path / "relu_add.cuh"
    text = "__global__ void k(const float* a, const float* b, float* c, int n)\n{\n"
    text += "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) c[i] = a[i] + b[i];\n}\n"
    path.write_text(text)
    done = rung_line("check", str(path), "--quick")
    assert done.returncode == 0, done.stderr
    assert "taken for residual" in done.stderr


@needs_compiler
@pytest.mark.slow  # like its neighbours: each candidate is run at eight sizes
def test_a_grid_that_is_not_rounded_up_asks_for_multiples() -> None:
    path = FOREIGN / "matmul_whole_tiles.cu"
    found = learn("matmul", path)
    assert found.table["needs"] == ["OC % 32 == 0", "B * T % 32 == 0"]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(  # a block of the wrong size writes beyond CUB's memory; softmax has scalars of its own
    ("name", "size"), [("rmsnorm_cub", {"size": "C"}), ("softmax_tiled_partition", {"N": "B * NH * T", "C": "S"})]
)
def test_a_wrong_proposal_does_not_end_the_search(name: str, size: dict[str, str]) -> None:
    path = FOREIGN / f"{name}.cu"
    found = learn(name.partition("_")[0], path)
    assert not found.doubts and size.items() <= found.table["bind"].items()


@needs_compiler
@pytest.mark.slow
def test_what_the_text_leaves_open_is_tried() -> None:
    path = FOREIGN / "transpose_tiled.cu"
    found = learn("transpose", path)
    assert not found.doubts
    assert found.table["bind"] == {"odata": "out", "idata": "x", "rows": "R", "cols": "C"}
    assert found.table["launch"][0]["block"] == [32, 8]


@pytest.mark.parametrize(
    ("name", "grid", "block", "more"),
    [
        ("transpose_tiled", ["(C + 32 - 1) // 32", "(R + 32 - 1) // 32"], [32, 8], {}),
        ("matmul_instantiated", ["ceil_div(OC, 16)", "ceil_div(B * T, 16)"], [16, 16], {"needs": ["bias"]}),
        ("reduce_atomic_rows", ["ceil_div(N, 256)", "B"], 256, {"needs": ["B <= 65535"]}),
        ("relu_float4", "(N // 4 + 256 - 1) // 256", 256, {"needs": ["N % 4 == 0"]}),
        (
            "attention_heads", ["ceil_div(T, 256)", "B * NH"], 256,
            {"bind": {"hs": "HS"} | {name: f"{name}_heads" for name in ("q", "k", "v", "out")}},
        ),
    ],
)  # fmt: skip
def test_indices_comments_and_instantiations_tell_the_launch(
    name: str, grid: object, block: object, more: dict[str, object]
) -> None:
    path = FOREIGN / f"{name}.cu"
    device, main, host = read_text(path).partition("int main")
    source = f"{device}/* {main}{host} */"
    table = first(name.partition("_")[0], source, path).table
    assert (table["launch"][0]["grid"], table["launch"][0]["block"]) == (grid, block)
    assert {key: table.get(key) for key in more} == more
    assert name != "matmul_instantiated" or table["launch"][0]["kernel"] == "linear_tiled<true>"


def test_tensors_of_a_torch_host_are_sizes_and_buffers() -> None:
    path = FOREIGN / "attention_torch_host.cu"
    found = first("attention", read_text(path), path)
    table, sure = found.table, found.sure
    assert table["buffers"]["sums"] == {"shape": ["B", "NH", "T"], "dtype": "f32", "zero": True}
    assert table["buffers"]["maxima"]["fill"] == float("-inf")
    assert (table["bind"]["len"], table["bind"]["tiles"], table["bind"]["Bk"]) == ("T", "ceil_div(T, 32)", 32)
    assert table["launch"][0]["grid"] == ["B", "NH"] and not sure
    written = header.parse(header.written(table) + "\n", "x")
    assert written.buffers["maxima"].fill == float("-inf") and written.buffers["sums"].zero


HEADER_OF_HOST = """#pragma once
#include <cublas_v2.h>
#include <vector>
static void* workspace = NULL;
inline std::vector<float> filled(int n) { return std::vector<float>(n, 1.0f); }
#if defined(FULL)
typedef float floatX;
#else
typedef __nv_bfloat16 floatX;
#endif
"""
ADDS = "__global__ void add(floatX* out, const floatX* inp1, const floatX* inp2, int N) {\n"
ADDS += "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) out[i] = (floatX)((float)inp1[i] + (float)inp2[i]); }\n"


@pytest.mark.slow
@needs_compiler
def test_the_hosts_code_of_headers_is_no_kernels_and_their_types_count(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/common.h").write_text(HEADER_OF_HOST)
    path = tmp_path / "residual.cuh"
    path.write_text('#include "common.h"\n#include "bindings_of_torch.h"\nnamespace own {\n' + ADDS + "}\n")
    (rung,) = adopt.rungs_in_file(catalogue.operation("residual"), path)
    assert isinstance(rung, CudaRung) and rung.dtypes == ("bf16",) and not rung.doubts
    assert rung.header.launches[0].kernel == "own::add"
    assert [p.ctype for p in rung.parameters["own::add"] if p.pointer] == ["__nv_bfloat16"] * 3


def test_kernels_in_a_row_are_each_tried_and_a_block_of_a_row_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "swiglu.cu"
    path.write_text(
        "__global__ void one(float* d_c, float* d_a, float* d_b, int rows, int cols) { int i = blockIdx.x * cols + "
        "threadIdx.x; d_c[i] = d_a[i] / (1 + expf(-d_a[i])) * d_b[i]; }\n__global__ void two(float* d_c, float* d_a, "
        "float* d_b, int rows, int cols) { one_thread(d_c); }\nvoid run(float* d_c, float* d_a, float* d_b, int rows, "
        "int cols) { dim3 block(cols), grid(rows); one<<<grid, block>>>(d_c, d_a, d_b, rows, cols);\n"
        "two<<<grid, block>>>(d_c, d_a, d_b, rows, cols); }\n"
    )
    found = launches.propose(catalogue.operation("swiglu"), path.read_text(), path).proposals
    assert {*found} == {"one", "two"}
    tables = [one.table for some in found.values() for one in itertools.islice(some, 8)]
    assert all("C <= 1024" in table["needs"] for table in tables if table["launch"][0]["block"] == "C")


def test_values_of_a_template_come_from_braces_and_types_of_the_hosts_template_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "transpose.cu"
    path.write_text(
        "template <typename T, int SIDE> __global__ void turn(T* out, const T* x, int R, int C) {}\n"
        "template <typename T> void run(T* out, T* x, int R, int C) { constexpr unsigned int SIDE{8U};\n"
        "dim3 grid(C / SIDE, R / SIDE), block(SIDE, SIDE); turn<T, SIDE><<<grid, block>>>(out, x, R, C); }\n"
    )
    table = first("transpose", path.read_text(), path).table
    assert table["launch"][0]["kernel"] == "turn<float, 8>" and table["launch"][0]["block"] == [8, 8]


def test_a_pointer_that_no_operand_is_left_for_is_told_without_advice(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    path.write_text("__global__ void softmax(const float* x, const float* mask, float* out, int C) {}")
    with pytest.raises(RungError, match=r"mask of softmax\(const float\* x, (?!.*\[bind\])"):
        first("softmax", path.read_text(), path)


@pytest.mark.slow
@needs_compiler
def test_headers_are_found_up_to_the_repository(tmp_path: Path) -> None:
    for folder in (".git", "include", "kernels/relu", "common"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "include" / "least.h").write_text("#define LEAST 0.0f\n")
    (tmp_path / "common" / "most.cuh").write_text("__device__ float most(float a, float b) { return a > b ? a : b; }\n")
    path = tmp_path / "kernels" / "relu" / "k.cu"
    text = '#include "least.h"\n#include "common/most.cuh"\n__global__ void relu(const float* x, float* out, int N)\n'
    text += "{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < N) out[i] = most(x[i], LEAST);\n}\n"
    path.write_text(text)
    done = rung_line("check", "relu", str(path), "--quick")
    assert done.returncode in (0, 3) and "1 case" in done.stdout, done.stderr


def test_an_operation_that_nothing_names(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(const float* x, float* out) {}")
    with pytest.raises(RungError, match="name it, as in"):
        names.spoken_of(path.read_text(), path, [*catalogue.operations()])


def rung_line(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from rung.cli import main; main(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


WRONG = '/*---\nidea = "x"\n[[launch]]\nkernel = "k"\ngrid = "B * T"\nblock = 32\n---*/\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ("const float* inpt, float* out, int C", r'inpt = "x" for k\(float\* inpt|inpt = "x".*float\* inpt'),
        ("const float* x, float* out, int Cc", r'Cc = "C" or "\w+", for k\(.*int Cc'),
        ("const half* x, float* out, int C", "points to half, but the tensor holds f32"),
    ],
)
def test_a_wrong_name_is_told_before_torch_is_imported(parameters: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(WRONG + f"__global__ void k({parameters}) {{}}")
    code = (
        "import sys; from rung.cli import main\nimport atexit; atexit.register(lambda: print('torch' in sys.modules))"
    )
    command = [sys.executable, "-c", f"{code}\nmain(['check', 'gelu', {str(path)!r}])"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert re.search(named, result.stdout)
    assert result.stdout.split()[-1] == "False"


@pytest.mark.slow
@needs_compiler
def test_a_lambda_of_a_kernel_may_say_device(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    body = "auto twice = [] __device__ (float a) { return a > __FLT_MAX__ ? a : 2 * a; };\n    out[0] = twice(x[0]);"
    path.write_text(f"__global__ void k(const float* x, float* out)\n{{\n    {body}\n}}")
    result = rung_line("inspect", "gelu", str(path))
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("header", ["", WRONG])
def test_a_file_whose_header_is_nowhere_is_not_judged(header: str, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    kernel = "__global__ void k(const float* x, float* out, int C) { out[0] = twice(x[0]); }"
    path.write_text(f'{header}#include "nowhere.cuh"\n{kernel}')
    result = rung_line("check", "gelu", str(path))
    assert result.returncode == 3, result.stdout
    assert "nowhere.cuh" in result.stdout


@pytest.mark.slow
def test_a_guessed_launch_that_lacks_memory_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    body = "extern __shared__ float s[]; s[0] = x[0]; out[0] = s[0];"
    host = "void run(const float* x, float* out, int N) { k<<<(N + 255) / 256, 256>>>(x, out, N); }"
    path.write_text(f"__global__ void k(const float* x, float* out, int N) {{ {body} }}\n{host}")
    result = rung_line("check", "gelu", str(path))
    assert result.returncode == 3, result.stdout + result.stderr


@needs_compiler
def test_the_compiler_tells_an_error_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    kernel = "__global__ void k(const float* x, float* out, int C) { out[0] = undefined_thing; }"
    path.write_text(WRONG + kernel)
    result = rung_line("check", "gelu", str(path))
    assert result.returncode == 1
    assert "sm_90" in result.stdout
    assert "H200" not in result.stdout


@needs_compiler
def test_the_header_is_written_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "layernorm.cu"
    text = (FOREIGN / "layernorm_floatx.cu").read_text()
    path.write_text(text)
    assert rung_line("check", str(path), "--quick", "--write").returncode == 0
    assert path.read_text().startswith("/*---\n")
    assert path.read_text().endswith(text)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_kernels_as_people_write_them_pass(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text((FOREIGN / name).read_text())
    words = path.stem.split("_")
    operation = OF.get(path.stem) or next((word for word in words if word in catalogue.operations()), "")
    named = [operation, str(path)] if operation else [str(path)]
    result = rung_line("check", *named)
    assert result.returncode == 3 * (name in TOLD), result.stdout + result.stderr
    assert TOLD.get(name, "") in result.stdout + result.stderr
    if line := re.search(r"needs the line (needs = \[.*?\])", result.stdout):
        assert rung_line("check", *named, "--quick", "--write").returncode == 3
        text = re.sub(r"^needs = .*\n", "", path.read_text(), count=1, flags=re.MULTILINE)
        path.write_text(text.replace("\n[bind]", f"\n{line[1]}\n[bind]", 1))
        result = rung_line("check", *named)
        assert result.returncode == 0, result.stdout + result.stderr


@needs_compiler
@pytest.mark.slow
def test_a_product_of_row_major_matrices_has_the_other_layout_of_the_weight() -> None:
    path = FOREIGN / "sgemm_shared.cu"
    found = learn("matmul", path)
    assert (found.table["bind"]["B"], found.table["zeroed"]) == ("weight_t", ["out"])
    assert 'needs = ["B * T % 32 == 0", "C % 32 == 0", "OC % 32 == 0"]' in found.doubts[0]


WHOLE = """void launch(float* out, float* x, int B, int T, int C, int side) {
    assert(C % 4 == 0);
    side = 128;
    dim3 threads(side);
    copy<<<B * T * C / 4 / side + 1, threads>>>((float4*)x, (float4*)out, B * T * C / 4);
}"""


def proposed(text: str, operation: str, tmp_path: Path) -> learned.LearnedCall:
    path = tmp_path / "own.cu"
    path.write_text(text)
    return learn(operation, path)


@pytest.mark.slow
def test_a_size_that_has_the_operations_name_is_no_other(tmp_path: Path) -> None:
    text = """__global__ void attention(const float* q, const float* k, const float* v, float* out, int B, int NH, int T, int HS) {
  for (int t = 0; t < T; t++) out[blockIdx.x * T * HS + t * HS + threadIdx.x] = 0;
}
void run(const float* q, const float* k, const float* v, float* out, int B, int NH, int T, int HS) {
  attention<<<B * NH, HS>>>(q, k, v, out, B, NH, T, HS);
}
"""
    found = proposed(text, "attention", tmp_path)  # with T = "B" and one token it would only seem right, or wrong
    assert found.doubts and not {*found.table["bind"]} & {"NH", "T", "HS"}, found


@pytest.mark.slow
def test_vectors_asserts_and_assignments_of_the_host_become_the_header(tmp_path: Path) -> None:
    kernel = "__global__ void copy(const float4* x, float4* out, int n) { out[threadIdx.x] = x[threadIdx.x]; }\n"
    table = proposed(kernel + WHOLE, "gelu", tmp_path).table
    assert table["needs"] == ["C % 4 == 0"]
    assert table["launch"][0]["block"] == 128


@pytest.mark.slow
def test_branches_with_one_kernel_are_alternatives(tmp_path: Path) -> None:
    kernel = "template <int BM> __global__ void k(const float* x, float* out, int C) { out[threadIdx.x] = x[0]; }\n"
    host = "void f(float* x, float* out, int B, int T, int C) { if (C > 9) { const uint BM = 32; k<BM><<<B * T, BM>>>"
    host += "(x, out, C); } else { const uint BM = 64; k<BM><<<B * T, BM>>>(x, out, C); } }"
    launch = proposed(kernel + host, "gelu", tmp_path).table["launch"]
    assert [(one["kernel"], one["block"]) for one in launch] == [("k<32>", 32)]  # of one branch, not of both


def test_values_are_fitted_to_what_a_rung_needs(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        '/*---\nidea = "x"\nneeds = ["B * T % 16 == 0", "C % 64 == 0", "causal == 0"]\n[[launch]]\nkernel = "k"\n'
        "grid = 1\nblock = 32\n---*/\n__global__ void k(const float* qkv, float* out) {}"
    )
    rung = catalogue.rung_from_file(catalogue.operation("attention"), path)
    asked = rung.operation.complete(dict(B=1, T=7, C=96, NH=3))
    fitted = rung.fitted(asked, dtype_named("f32"))
    assert fitted is not None and rung.refusal(fitted, dtype_named("f32")) is None
    assert (fitted["B"] * fitted["T"], fitted["C"], fitted["causal"]) == (16, 128, 0)


@needs_compiler
@pytest.mark.parametrize(
    ("statement", "tried"), [("while (C) {}", 2), ('asm volatile("nonsense.u32;");', 8)], ids=["endless", "unknown PTX"]
)
def test_a_trial_ends_at_what_no_header_changes(statement: str, tried: int, tmp_path: Path) -> None:
    from rung.adopt import search

    of, path = catalogue.operation("softmax"), tmp_path / "own.cu"
    path.write_text((FOREIGN / "softmax_forward.cu").read_text().replace("int laneId", f"{statement} int laneId"))
    proposals = next(iter(launches.propose(of, path.read_text(), path).proposals.values()))
    tables = [one.table for one in itertools.islice(proposals, 8)]
    begun: list[int] = []

    def tell(*, number: int | None = None, **_: object) -> None:
        begun.extend([] if number is None else [number])

    found = search.Search(of, path, "kernel", tables, True, tell, search.Spending("kernel", 60.0)).run(0)
    assert found.table is None
    order = [*search.order(len(tables))]
    assert len({order[number][1] for number in begun}) == tried <= len(tables)


@needs_compiler
def test_a_compile_error_of_a_bare_file_is_told_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text((FOREIGN / "softmax_forward.cu").read_text().replace("float maxval", "floot maxval"))
    program = "import sys; from rung.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "check", "softmax", str(path), "--device", "emulator"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "floot" in result.stdout and result.stdout.splitlines()[-1] == "False", result


WHOLE_TILES = """
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}
void run(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 block(32, 32), grid(n / 32, m / 32);
    product<<<grid, block>>>(a, b, c, m, n, k);
}
"""


@needs_compiler
def test_the_files_own_launch_of_whole_tiles_is_tried_at_sizes_that_fit_it(tmp_path: Path) -> None:
    """At the smallest case its grid has no block, which says nothing of the launch."""
    path = _bare(tmp_path / "own.cu", WHOLE_TILES)
    call = learn("matmul", path)
    assert call.table["launch"][0]["grid"] == ["OC // 32", "B * T // 32"] and not call.doubts
    assert {"OC % 32 == 0", "B * T % 32 == 0"} <= {*call.table["needs"]}


SQUARE = """
__global__ void transpose(float* out, const float* in, int N) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < N && y < N) out[x * N + y] = in[y * N + x];
}
void run(float* out, const float* in, int N) {
    dim3 block(32, 32), grid((N + 31) / 32, (N + 31) / 32);
    transpose<<<grid, block>>>(out, in, N);
}
"""


@needs_compiler
def test_a_transpose_that_is_given_one_size_is_square(tmp_path: Path) -> None:
    call = learn("transpose", _bare(tmp_path / "own.cu", SQUARE))
    assert "R == C" in call.table["needs"] and not call.doubts


def test_a_block_that_is_a_part_of_a_row_needs_rows_of_whole_parts(tmp_path: Path) -> None:
    text = """
__global__ void gather(const int* idx, float* weight, float* output, int n, int emb_size) {
    int i = blockIdx.x, row = idx[i], col = threadIdx.x * 4;
    *(float4*)(output + i * emb_size + col) = *(float4*)(weight + row * emb_size + col);
}
void run(const int* idx, float* weight, float* output, int n, int emb_size) {
    dim3 grid(n), block(emb_size / 4);
    gather<<<grid, block>>>(idx, weight, output, n, emb_size);
}
"""
    table = first("embedding", text, _bare(tmp_path / "own.cu", text)).table
    assert table["launch"][0]["block"] == "C // 4" and "C % 4 == 0" in table["needs"]


def test_a_number_in_place_of_an_operand_is_one_in_each_case() -> None:
    from rung.inputs import with_zeros

    of = catalogue.operation("rmsnorm").with_numbers({"weight": None})
    values = of.complete(dict(B=1, T=2, C=7))
    given = of.inputs(
        values,
        dtype_named("f32"),
        0,
        magnitude=100.0,
        change={"x": with_zeros, "weight": with_zeros},
        empty=lambda _, shape, kind: np.empty(shape, kind),
    )
    assert len(np.unique(given["weight"])) == 1 and float(given["weight"][0]) != 0 and (given["x"] == 0).any()


def _bare(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


WARP_A_ROW = """
__global__ void layernorm_forward(const float* inp, const float* weight, const float* bias, float* out, int C) {
    const float* x = inp + (size_t)blockIdx.x * C;
    float sum = 0, square = 0;
    for (int i = threadIdx.x; i < C; i += 32) sum += x[i];
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    float mean = sum / C;
    for (int i = threadIdx.x; i < C; i += 32) square += (x[i] - mean) * (x[i] - mean);
    for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(0xffffffff, square, offset);
    float scale = rsqrtf(square / C + 1e-5f);
    for (int i = threadIdx.x; i < C; i += 32) out[blockIdx.x * C + i] = (x[i] - mean) * scale * weight[i] + bias[i];
}
"""


@pytest.mark.slow
@needs_compiler
def test_a_block_that_is_right_in_short_rows_only_is_not_taken(tmp_path: Path) -> None:
    result = rung_line("check", "layernorm", str(_bare(tmp_path / "own.cu", WARP_A_ROW)), "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "block = 32\n" in result.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("operation", "kernel", "candidate"),
    [
        ("gelu", "void gelu(const float* a, float* result, int n, int first) { result[first] = a[0] * n; }", "bind ="),
        (
            "matmul",
            "void matmul(const float* a, const float* b, float* c, int M, int N, int K) {"
            " __shared__ float tile[BM * BN * BK]; tile[threadIdx.x] = a[threadIdx.x]; c[0] = tile[b[0] > 0]; }",
            "kernel = ",
        ),
    ],
    ids=["no trial is right", "values of template parameters"],
)
def test_a_guess_that_nothing_confirms_is_not_judged(
    operation: str, kernel: str, candidate: str, tmp_path: Path
) -> None:
    template = "template <int BM, int BN, int BK> " if "BM" in kernel else ""
    path = _bare(tmp_path / "own.cu", f"{template}__global__ {kernel}\n")
    result = rung_line("check", operation, str(path))
    assert result.returncode == 3 and " failed" not in result.stdout, result.stdout + result.stderr
    assert candidate in result.stdout
    document = json.loads(rung_line("check", operation, str(path), "--json").stdout)
    assert document["verdict"] == "not judged" and document["results"][0]["verdict"] == "not judged"


OTHERS = """
#include <cublas_v2.h>
#include <cuda_fp8.h>
#include <chrono>
__global__ void other(float* x) { extern __shared__ float s[]; s[0] = x[0]; x[0] = s[0]; }
__global__ void gelu_kernel(const float* inp, float* out, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = 0.5f * inp[i] * (1 + tanhf(0.7978845608f * (inp[i] + 0.044715f * inp[i] * inp[i] * inp[i])));
}
int main() { auto t = std::chrono::steady_clock::now(); cublasHandle_t h; gelu_kernel<<<1, 256>>>(nullptr, nullptr, 3); }
"""


@needs_compiler
def test_only_the_code_of_the_launched_kernel_counts(tmp_path: Path) -> None:
    result = rung_line("check", "gelu", str(_bare(tmp_path / "own.cu", OTHERS)), "--quick")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_an_operations_operands_and_sizes_are_listed(name: str) -> None:
    of = catalogue.operation(name)
    told = json.loads(rung_line("show", name, "--json").stdout)
    assert [one["name"] for one in told["operands"]] == [o.name for o in of.operands]
    assert (told["dims"], told["scalars"].keys()) == ([*of.dims], of.scalars.keys())


def test_a_kernel_that_one_block_runs_for_one_vector_has_one_row(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    path.write_text(
        "__global__ void softmax_kernel(const float* input, float* output, int N) {\n"
        "    float most = -INFINITY, sum = 0.0f;\n"
        "    for (int i = 0; i < N; ++i) most = fmaxf(most, input[i]);\n"
        "    for (int i = 0; i < N; ++i) sum += expf(input[i] - most);\n"
        "    for (int i = threadIdx.x; i < N; i += blockDim.x) output[i] = expf(input[i] - most) / sum;\n"
        "}\n"
        'extern "C" void solve(const float* input, float* output, int N) {\n'
        "    softmax_kernel<<<1, 256>>>(input, output, N);\n"
        "}\n"
    )
    rung = adopt.rung_from_file(catalogue.operation("softmax"), path)
    assert {"B == 1", "NH == 1", "T == 1"} <= {*rung.needs} and rung.guessed and not rung.doubts


def test_a_block_that_is_rounded_up_to_whole_warps_by_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    path.write_text(
        "__global__ void softmax(const float* x, float* out, int C)\n{\n    const float* row = x + blockIdx.x * C;\n"
        "    float m = row[0], sum = 0;\n    for (int i = 0; i < C; i++) m = fmaxf(m, row[i]);\n"
        "    for (int i = 0; i < C; i++) sum += expf(row[i] - m);\n"
        "    if (threadIdx.x < C) out[blockIdx.x * C + threadIdx.x] = expf(row[threadIdx.x] - m) / sum;\n}\n"
        "void launched(const float* x, float* out, int N, int C) { softmax<<<N, (C + 31) & ~31>>>(x, out, C); }\n"
    )
    found = learn("softmax", path)
    assert found.table["launch"][0]["block"] == "(S + 31) // 32 * 32"


TURN = "__global__ void transpose_kernel(float* input, int M, int N, float* output)\n{\n"
TURN += "    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;\n"
TURN += "    if (row < M && col < N) output[col * M + row] = input[row * N + col];\n}\n"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("arguments", ["x, M, N, y", "x, y, M, N"], ids=["as declared", "in another order"])
def test_a_number_of_mains_is_not_the_kernels_size(arguments: str, tmp_path: Path) -> None:
    host = "int main() { size_t M = 128, N = 64; constexpr size_t SIDE = 32; float *x, *y; dim3 block(SIDE, SIDE);\n"
    host += f"dim3 grid(CEIL(N, SIDE), CEIL(M, SIDE)); transpose_kernel<<<grid, block>>>({arguments}); }}\n"
    result = rung_line("check", str(_bare(tmp_path / "transpose.cu", TURN + host)))
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'grid = ["ceil_div(C, 32)", "ceil_div(R, 32)"]' in result.stderr


@pytest.mark.slow
@needs_compiler
def test_a_guessed_header_that_is_wrong_at_some_shapes_is_no_verdict(tmp_path: Path) -> None:
    host = "int main() { dim3 grid(4, 4), block(32, 32); float *x, *y; transpose_kernel<<<grid, block>>>(x, 9, 9, y); }\n"
    path = _bare(tmp_path / "transpose.cu", TURN.replace("if (row < M", "if (M < 200 && row < M") + host)
    result = rung_line("check", str(path), "--json")
    (report,) = json.loads(result.stdout)["results"]
    assert (result.returncode, report["verdict"]) == (3, "not judged"), result.stdout + result.stderr


@pytest.mark.slow
@needs_compiler
def test_strides_are_those_of_the_hosts_tensor_or_asked_for(tmp_path: Path) -> None:
    kernel = "__global__ void relu_kernel(const float* x, float* out, int stride_n, int n)\n{\n"
    kernel += "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    kernel += "    if (i < n) out[i * stride_n] = x[i * stride_n] < 0 ? 0 : x[i * stride_n];\n}\n"
    host = "torch::Tensor f(torch::Tensor x) { int n = x.size(0), stride_n = x.stride(0); auto out = empty_like(x);\n"
    host += "relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), stride_n, n); }\n"
    path = _bare(tmp_path / "relu.cu", kernel)
    result = rung_line("check", str(path))
    assert result.returncode == 3 and "int stride_n" in result.stderr
    result = rung_line("check", str(_bare(path, kernel + host)))
    assert result.returncode == 0 and "stride_n = 1\n" in result.stderr, result.stdout + result.stderr


@pytest.mark.slow
@needs_compiler
def test_neighbouring_pairs_of_rope_are_tried(tmp_path: Path) -> None:
    body = "int half = HS / 2, idx = blockIdx.x * blockDim.x + threadIdx.x;\n    if (idx >= B * T * NH * half) return;\n"
    body += "    int i = idx % half, t = idx / half / NH % T; float c = cosines[t * half + i], s = sines[t * half + i];\n"
    body += "    float a = x[2 * idx], b = x[2 * idx + 1]; out[2 * idx] = a * c - b * s; out[2 * idx + 1] = b * c + a * s;"
    taken = "const float* x, const float* cosines, const float* sines, float* out, int B, int T, int NH, int HS"
    result = rung_line("check", str(_bare(tmp_path / "rope.cu", f"__global__ void rope({taken})\n{{\n    {body}\n}}\n")))
    assert result.returncode == 0 and 'needs = ["interleaved == 1"]' in result.stderr, result.stdout + result.stderr


@pytest.mark.slow
@needs_compiler
def test_a_parameter_with_a_concept_is_a_type(tmp_path: Path) -> None:
    kernel = "#include <concepts>\ntemplate <typename T> concept Number = std::same_as<T, float> || std::same_as<T, int>;\n"
    kernel += "template <unsigned SIDE, Number T> __global__ void relu_kernel(const T* x, T* out, int n)\n{\n"
    kernel += "    int i = blockIdx.x * SIDE + threadIdx.x;\n    if (i < n) out[i] = x[i] < 0 ? 0 : x[i];\n}\n"
    result = rung_line("check", str(_bare(tmp_path / "relu.cu", kernel)), "--quick")
    assert result.returncode == 0 and 'kernel = "relu_kernel<256, float>"' in result.stderr, result.stdout + result.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("before", "after", "code"),
    [("#define PLAIN\n#ifndef PLAIN\n__global__\n#endif\n", "", 2), ("void f()\n{\n__global__ ", "}\n", 1)],
    ids=["its macros leave no kernel", "a kernel within a function"],
)
def test_what_no_compiler_makes_a_kernel_of_is_told(before: str, after: str, code: int, tmp_path: Path) -> None:
    kernel = "void relu_kernel(const float* x, float* out, int n) { int i = threadIdx.x; if (i < n) out[i] = x[i]; }\n"
    result = rung_line("check", "relu", str(_bare(tmp_path / "relu.cu", before + kernel + after)))
    assert result.returncode == code and "headers are tried" not in result.stderr, result.stdout + result.stderr


def test_what_is_tried_of_a_file_that_two_operations_fit_is_told_before(tmp_path: Path) -> None:
    kernel = "__global__ void gelu_then_softmax(const float* x, float* other, float* third, int n) {}\n"
    result = rung_line("check", str(_bare(tmp_path / "gelu_softmax.cu", kernel)))
    assert "may be gelu or softmax; gelu is tried" in result.stderr


OF_A_TEMPLATE = """template <TAKES>
__global__ void residual(const float* a, const float* b, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = VALUE;
}
MAKES
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("takes", "value", "makes", "code"),
    [
        (
            "bool TWICE", "TWICE ? 0 : a[i] + b[i]",
            "void add(const float* a, const float* b, float* out, int n) { const bool TWICE = false; residual<TWICE><<<(n + 255) / 256, 256>>>(a, b, out, n); }",
            0,
        ),
        (
            "class Traits", "a[i] + Traits::scale * b[i]",
            "template <class Traits> void add(const float* a, const float* b, float* out, int n) { residual<Traits><<<(n + 255) / 256, 256>>>(a, b, out, n); }",
            3,
        ),
    ],
    ids=["a local bool", "a class that nobody names"],
)  # fmt: skip
def test_values_of_a_template_are_the_files_or_no_verdict(takes: str, value: str, makes: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "residual.cu"
    path.write_text(OF_A_TEMPLATE.replace("TAKES", takes).replace("VALUE", value).replace("MAKES", makes))
    assert rung_line("check", str(path), "--quick").returncode == code


@needs_compiler
def test_a_header_beside_the_authors_folder_says_what_pointers_are(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "common/include").mkdir(parents=True)
    (tmp_path / "common/include/short.h").write_text("using In = const float* __restrict__;\ntypedef float *Out;\n")
    (tmp_path / "ops").mkdir()
    path = tmp_path / "ops/relu.cu"
    body = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = x[i] < 0 ? 0 : x[i];"
    path.write_text(f"#include <short.h>\n__global__ void relu(In x, Out out, int n) {{ {body} }}\n")
    result = rung_line("check", str(path), "--quick")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("defined", ["struct Row { float* x; int n; };\n", ""])
def test_a_class_by_value_is_no_verdict(defined: str, tmp_path: Path) -> None:
    path = _bare(tmp_path / "relu.cu", f"{defined}__global__ void relu(Row x, float* out) {{ }}\n")
    result = rung_line("check", str(path))
    assert result.returncode == 3 and "Row x of relu" in result.stderr, result.stdout + result.stderr


def test_template_values_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "matmul.cu"
    path.write_text(
        "template <int BM, int BN, int BK, int TM, int TN>\n__global__ void matmul(const float* a, const float* b, "
        "float* c, int M, int N, int K) { c[0] = a[BM] * b[BN * BK * TM * TN]; }\n"
    )
    result = rung_line("check", str(path))
    assert result.returncode == 3 and "BM, BN, BK, TM, TN" in result.stderr, result.stdout + result.stderr


@needs_compiler
def test_rows_by_batch_and_seq_len_and_a_thread_for_each_column(tmp_path: Path) -> None:
    """A kernel given to a host function; an embedding without positions, whose table is not const."""
    table = "__global__ void embedding(const int* idx, float* weight, float* output, int n, int emb_size) {\n"
    table += "    output[blockIdx.x * emb_size + threadIdx.x] = weight[idx[blockIdx.x] * emb_size + threadIdx.x];\n}\n"
    result = rung_line("check", str(_bare(tmp_path / "embedding.cu", table)), "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    row = "__global__ void softmax(const float* input, float* output, int batch, int seq_len) { }\n"
    path = _bare(tmp_path / "softmax.cu", row + "void run(const float* x, float* y, int batch, int seq_len) {\n"
                 "    softmax<<<batch, 256>>>(x, y, batch, seq_len);\n}\n")
    bind = first("softmax", path.read_text(), path).table["bind"]
    assert (bind["batch"], bind["seq_len"]) == ("B * NH * T", "S")


@pytest.mark.slow
@needs_compiler
def test_a_race_of_the_likeliest_header_is_told(tmp_path: Path) -> None:
    text = """
__global__ void softmax(const float* x, float* out, int n) {
    __shared__ float part[8];
    float most = -1e30f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, x[blockIdx.x * n + i]);
    for (int o = 16; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++) most = fmaxf(most, part[i]);
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[blockIdx.x * n + i] - most);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    part[threadIdx.x / 32] = sum;  // others may still read the maxima
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++) sum += part[i];
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - most) / sum;
}
void run(const float* x, float* out, int rows, int n) { softmax<<<rows, 256>>>(x, out, n); }
"""
    result = rung_line("check", str(_bare(tmp_path / "softmax.cu", text)))
    assert result.returncode in (1, 3) and "part" in result.stdout, result.stdout + result.stderr
    assert "softmax.cu:13: race" in result.stdout or "line 14" in result.stdout


def _first(operation: str, path: Path, text: str) -> dict[str, Any]:
    return first(operation, text, _bare(path, text)).table


def test_macros_that_launch_and_values_of_templates_that_are_sizes(tmp_path: Path) -> None:
    text = """
template <const int NUM_THREADS = 256>
__global__ void norm_kernel(float* x, float* y, float g, int N, int K) { y[0] = g * __shfl_sync(~0u, x[0], 0); }
#define LAUNCH(K) \\
  norm_kernel<(K)><<<grid, block>>>( \\
      reinterpret_cast<float*>(x.data_ptr()), reinterpret_cast<float*>(y.data_ptr()), g, N, (K));
#define DISPATCH(N, K) \\
  dim3 block((K)); \\
  dim3 grid((N)); \\
  switch ((K)) { case 64: LAUNCH(64) break; case 128: LAUNCH(128) break; }
void norm(torch::Tensor x, torch::Tensor y, float g) { const int N = x.size(0); const int K = x.size(1); DISPATCH(N, K) }
"""
    table = _first("rmsnorm", tmp_path / "norm.cu", text)
    assert table["bind"] == {"y": "out", "g": "weight", "N": "B * T", "K": "C"}
    assert table["define"] == {"VALUE_0": "C"}
    assert table["launch"] == [{"kernel": "norm_kernel<VALUE_0>", "grid": "B * T", "block": "C"}]
    assert {"C <= 1024", "C % 32 == 0"} <= {*table["needs"]}


def test_constants_fix_the_size_of_heads_and_one_calls_heads_are_all(tmp_path: Path) -> None:
    text = """
#define D 64   // of a head
__global__ void flash(const float* Q, const float* K, const float* V, float* O, int N) {
    O[blockIdx.y * N * D + threadIdx.x] = Q[0] + K[0] + V[0];
}
int main() {
    const int H = 32, N = 2048;
    flash<< <dim3((N + 127) / 128, H), 128 >> >(q, k, v, o, N);
}
"""
    table = _first("attention", tmp_path / "flash.cu", text)
    assert table["bind"]["N"] == "T" and "C == 64 * NH" in table["needs"]
    assert table["launch"][0]["grid"] == ["(T + 127) // 128", "B * NH"] and table["launch"][0]["block"] == 128


@needs_compiler
def test_a_launch_by_a_constant_number_of_elements_is_no_ground_for_a_failure(tmp_path: Path) -> None:
    text = """
const int N = 1 << 25;
__global__ void add_v2(float* a, float* b, float* result) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 2;
    result[i] = a[i] + b[i], result[i + 1] = a[i + 1] + b[i + 1];
}
int main() {
    int block_size = 256;
    int grid_size = (N - 1) / block_size + 1;
    dim3 Grid(grid_size / 2);
    dim3 Block(block_size);
    add_v2<<<Grid, Block>>>(a, b, result);
}
"""
    result = rung_line("check", str(_bare(tmp_path / "add.cu", text)))
    assert result.returncode == 3 and "not judged" in result.stdout, result.stdout + result.stderr


def test_operands_of_their_own_names_are_never_swapped(tmp_path: Path) -> None:
    text = "__global__ void swiglu(float* out, const float* gate, const float* up, int N) { out[0] = gate[0] * up[0]; }\n"
    text += "void run(float* o, float* g, float* u, int N) { swiglu<<<(N + 255) / 256, 256>>>(o, g, u, N); }\n"
    of = catalogue.operation("swiglu")
    proposals = launches.propose(of, text, _bare(tmp_path / "swiglu.cu", text)).proposals
    tables = [one.table for some in proposals.values() for one in some]
    assert tables and all({"gate", "up"}.isdisjoint(table.get("bind", {})) for table in tables)


def test_a_uint_is_a_number(tmp_path: Path) -> None:
    text = "__global__ void relu(const float* x, float* out, uint n) { out[n] = x[0]; }\n"
    assert _first("relu", tmp_path / "relu.cu", text)["bind"] == {"n": "N"}


ROW_MAJOR = """__global__ void multiply(const float* A, const float* B, float* C, int M, int N, int K)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (row >= M || column >= K) return;
    for (int i = 0; i < N; i++) sum += A[row * N + i] * B[i * K + column];
    C[row * K + column] = sum;
}
void solve(const float* A, const float* B, float* C, int M, int N, int K)
{
    dim3 threads(16, 8);
    dim3 blocks((K + threads.x - 1) / threads.x, (M + threads.y - 1) / threads.y);
    multiply<<<blocks, threads>>>(A, B, C, M, N, K);
}
"""


def test_the_sides_of_a_dim3_are_numbers_and_n_may_be_the_columns_of_x(tmp_path: Path) -> None:
    path = _bare(tmp_path / "matmul.cu", ROW_MAJOR)
    call = learn("matmul", path)
    assert call.doubts == [] and call.table["bind"] | {"M": "B * T", "N": "C", "K": "OC"} == call.table["bind"]
    assert call.table["launch"][0]["grid"] == ["(OC + 16 - 1) // 16", "(B * T + 8 - 1) // 8"]


@needs_compiler
@pytest.mark.parametrize("within", ["i < N * N", "i < N"])
def test_a_size_may_be_the_side_of_a_square(within: str, tmp_path: Path) -> None:
    text = "__global__ void copy(const float* A, float* B, int N)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    text += f"    if ({within}) B[i] = A[i];\n}}\n"
    text += "void solve(const float* A, float* B, int N) { copy<<<(N * N + 255) / 256, 256>>>(A, B, N); }\n"
    call = learn("copy", _bare(tmp_path / "copy.cu", text))
    square = ["N == int(sqrt(N)) * int(sqrt(N))"] if "N * N" in within else None
    assert not call.doubts and call.table.get("needs") == square


def test_what_a_kernel_stores_to_is_no_input(tmp_path: Path) -> None:
    text = "__global__ void normalise(float* input, float* output, float* spread, float* gamma, float* beta, int n, int d)\n"
    text += "{\n    int row = blockIdx.x;\n    spread[row] = 1;\n    output[row * d] = input[row * d] * gamma[0] + beta[0];\n}\n"
    path = _bare(tmp_path / "layernorm.cu", text)
    with pytest.raises(Unjudged, match=r"\[buffers.spread\]"):
        first("layernorm", path.read_text(), path)


def test_a_kernel_that_counts_no_rows_has_one_and_the_files_own_kernels_are_its_headers(tmp_path: Path) -> None:
    (tmp_path / "more.cuh").write_text("__global__ void halve(const float* in, float* out, int n) { out[0] = in[0] / 2; }\n")
    text = '#include "more.cuh"\n__global__ void linear(const float* x, const float* weight, float* y, int input_size, int output_size)\n'
    text += "{\n    int o = blockIdx.x * blockDim.x + threadIdx.x;\n    float sum = 0;\n    if (o >= output_size) return;\n"
    text += "    for (int i = 0; i < input_size; i++) sum += x[i] * weight[i * output_size + o];\n    y[o] = sum;\n}\n"
    text += "int main() { linear<<<1, 4>>>(x, weight, y, 3, 2); }\n"
    path = _bare(tmp_path / "linear.cu", text)
    call = learn("matmul", path)
    assert call.name == "linear" and call.doubts == [] and {"B == 1", "T == 1"} <= {*call.table["needs"]}
    assert [*adopt.others_in_file(catalogue.operation("matmul"), path)] == ["halve"]


def test_a_launch_may_begin_with_a_bracket(tmp_path: Path) -> None:
    path = _bare(tmp_path / "matmul.cu", ROW_MAJOR)
    of = catalogue.operation("matmul")
    launch = "grid=((K + 15) / 16, (M + 7) / 8), block=(16, 8)"
    (rung,) = adopt.of_kernel(of, path, "multiply", launch)
    assert not rung.doubts
    with pytest.raises(RungError, match="--launch"):
        adopt.of_kernel(of, path, "multiply", "grid=(rows + 15) / 16, block=16")


TILES = """__global__ void multiply(const float* A, const float* B, float* C, int M, int N, int K)
{
    __shared__ float a[16][16], b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < (N + 15) / 16; t++) {
        int i = t * 16 + threadIdx.x, j = t * 16 + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < M && i < N ? A[row * N + i] : 0;
        b[threadIdx.y][threadIdx.x] = j < N && column < K ? B[j * K + column] : 0;
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += a[threadIdx.y][k] * b[k][threadIdx.x];
    }
    if (row < M && column < K) C[row * K + column] = sum;
}
void solve(const float* A, const float* B, float* C, int M, int N, int K)
{
    multiply<<<dim3((K + 15) / 16, (M + 15) / 16), dim3(16, 16)>>>(A, B, C, M, N, K);
}
"""


def test_a_race_of_the_files_own_block_is_told_before_an_address_of_a_guess(tmp_path: Path) -> None:
    call = learn("matmul", _bare(tmp_path / "matmul.cu", TILES))
    assert call.fault.get("kind") == "race"


def test_the_side_of_a_tile_is_no_length_of_rows(tmp_path: Path) -> None:
    text = "#define TILE_DIM 16\n__global__ void square(float* A, float* B, float* C, unsigned N)\n{\n"
    text += "    __shared__ float a[TILE_DIM][TILE_DIM];\n    a[threadIdx.y][threadIdx.x] = A[0];\n    C[0] = a[0][0] * N;\n}\n"
    of = launches.propose(catalogue.operation("matmul"), text, tmp_path / "matmul.cu")
    assert not any("C == 16" in one.table.get("needs", []) for one in of.proposals["square"])


@needs_compiler
def test_a_missing_guard_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "__global__ void add(const float* x, const float* y, float* z, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    z[i] = x[i] + y[i];\n}\n"
        "void solve(const float* x, const float* y, float* z, int n) { add<<<(n + 63) / 64, 64>>>(x, y, z, n); }\n"
    )
    (rung,) = adopt.rungs_in_file(catalogue.operation("residual"), path)
    assert rung.doubts and rung.learned and rung.learned.failure["place"]["line"] == 3
    assert "line 3" in rung.doubts[0]
