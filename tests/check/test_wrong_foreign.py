"""Kernels as people write them, with one mistake each: refused by the command line, for the right reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler

FOREIGN = Path(__file__).parents[1] / "foreign"
# File, operation, what of its text becomes what, and what the refusal says.
WRONG = [
    ("layernorm_block_per_row.cu", "layernorm", "shared_sum[warp_id] = warp_sum;", "shared_sum[warp_id % 4] = warp_sum;", "race|another value|off"),
    ("layernorm_three_kernels.cu", "layernorm", "shared[0] / C + 1e-5f", "shared[0] / (C - 1) + 1e-5f", "off|NaN"),
    ("softmax_dynamic_shared.cu", "softmax", "    float sum = sumvals[0];", "    float sum = sumvals[1];", "never set|off|NaN|touches|reads"),
    ("attention_query_key.cu", "attention", "if (t2 > t) {", "if (t2 >= t && t2) {", "off|NaN"),
    ("flash_minimal.cu", "attention", "row_l_prev * before * o[x]", "row_l_prev * o[x]", "off"),
    ("attention_flash_two.cu", "attention", "acc[i] = acc[i] * corr + p * v[j][i]", "acc[i] = acc[i] + p * v[j][i]", "off"),
    ("encoder_packed.cu", "embedding", "wpe[t * C4 + c4]", "wpe[bt * C4 + c4]", "past the end|off"),
    ("gelu_packed.cu", "gelu", "0.044715f * xi * xi * xi;\n            packed", "0.44715f * xi * xi * xi;\n            packed", "instead of"),
    ("matmul_wmma.cu", "matmul", "acc, 16, wmma::mem_row_major", "acc, 16, wmma::mem_col_major", "off|transposed"),
    ("matmul_mma_ptx.cu", "matmul", "pair(weight, col, OC, at + 8, C)", "pair(weight, col, OC, at, C)", "off"),
    ("matmul_split_k.cu", "matmul", "turn.wait(blockIdx.z);", "", "no barrier|off|never|NaN"),
    ("reduce_look_back.cu", "reduce", "        __threadfence();\n        atomicExch(state + me, PARTIAL);", "        atomicExch(state + me, PARTIAL);", "race|barrier"),
    ("reduce_grid_sync.cu", "reduce", "    cg::sync(grid);\n", "", "no barrier|never|off"),
    ("copy_bulk.cu", "copy", "    wait(&bar, 0);\n", "", "race|under way|differ|never"),
    ("sgemm_double_buffering.cu", "matmul", "__pipeline_wait_prior(1)", "__pipeline_wait_prior(2)", "race|under way|off|NaN"),
    ("sgemm_resolve_bank_conflicts.cu", "matmul", "if (row < M && col < N) C[row", "if (row < M) C[row", "past|off|written|touches"),
    ("transpose_no_conflicts.cu", "transpose", "    __syncthreads();\n", "", "no barrier|differ"),
    ("tutorial_layernorm.py", "layernorm", "w = tl.load(W + cols, mask=mask)", "w = tl.load(W + cols)", "line 42: "),
    ("tutorial_softmax.py", "softmax", "row - tl.max(row, axis=0)", "row", "off|NaN"),
    ("triton_block_pointers.py", "transpose", "tl.load(source, boundary_check=(0, 1))", "tl.load(source)", "parameter 'x_ptr'"),
]  # fmt: skip
# The call is rung's guess, or right under a condition that is told: with what it gives.
UNSURE = {
    "softmax_dynamic_shared.cu": "call",
    "gelu_packed.cu": "call",
    "sgemm_resolve_bank_conflicts.cu": "call",
    "tutorial_layernorm.py": "bounds",
    "triton_block_pointers.py": "bounds",
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "operation", "before", "after", "told"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)]
)
def test_a_mistake_is_refused_for_its_reason(
    name: str, operation: str, before: str, after: str, told: str, tmp_path: Path
) -> None:
    text = (FOREIGN / name).read_text()
    assert before in text
    path = tmp_path / name
    path.write_text(text.replace(before, after, 1))
    command = [sys.executable, "-m", "rung", "check", operation, str(path), "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(result.stdout)
    kinds = {one["kind"] for one in found["findings"]}
    text = " ".join(one["text"] for one in found["findings"])
    if name in UNSURE:
        assert (result.returncode, kinds) == (3, {UNSURE[name]}), result.stdout
    else:
        assert result.returncode == 1, result.stdout
    assert re.search(told, text), result.stdout
