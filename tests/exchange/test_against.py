"""A problem in KernelBench's form, and a candidate that compiles CUDA inline: judged without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation import needs_compiler

PROBLEM = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def forward(self, x):
        return torch.logsumexp(x * self.scale, dim=1, keepdim=True)
rows, columns = 64, 1000
def get_inputs():
    return [torch.randn(rows, columns)]
def get_init_inputs():
    return [0.5]
"""
CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline

source = """
__global__ void lse_kernel(const float* x, float* out, int cols, float scale) {
    __shared__ float part[8];
    const float* row = x + (size_t)blockIdx.x * cols;
    float m = -INFINITY, s = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, row[c] * scale);
    for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < 8; ++w) m = fmaxf(m, part[w]);
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += blockDim.x) s += expf(row[c] * scale - m);
    for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffff, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        s = 0.0f;
        for (int w = 0; w < 8; ++w) s += part[w];
        out[blockIdx.x] = m + logf(s);
    }
}
torch::Tensor lse(torch::Tensor x, double scale) {
    auto out = torch::empty({x.size(0), 1}, x.options());
    lse_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1), (float)scale);
    return out;
}
"""
module = load_inline("lse", cpp_sources="torch::Tensor lse(torch::Tensor, double);", cuda_sources=source, functions=["lse"])
class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def forward(self, x):
        return module.lse(x, self.scale)
'''
RACE = CANDIDATE.replace("part[w]);\n    __syncthreads();", "part[w]);")


def judged(
    folder: Path, candidate: str, problem: str = PROBLEM, words: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    (folder / "problem.py").write_text(problem)
    (folder / "candidate.py").write_text(candidate)
    command = [sys.executable, "-m", "rung", "check", "--against", "problem.py", "candidate.py", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return done.returncode, json.loads(done.stdout)


@needs_compiler
@pytest.mark.slow
def test_numbers_of_the_model_and_sizes_in_the_launch_are_known(tmp_path: Path) -> None:
    code, told = judged(tmp_path, CANDIDATE)
    assert (code, told["verdict"]) == (0, "ok"), told
    assert judged(tmp_path, CANDIDATE, words=("--goal", "sectors_per_request(st) <= 0.5"))[0] == 1
    other = PROBLEM.replace("return [0.5]", "return [0.25]")  # what is known of the kernels is of the other problem
    assert judged(tmp_path, CANDIDATE, other)[0] == 0
    assert judged(tmp_path, CANDIDATE.replace("m + logf(s)", "m - logf(s)"))[0] == 1


@needs_compiler
def test_a_fault_has_the_candidates_line(tmp_path: Path) -> None:
    code, told = judged(tmp_path, RACE)
    place = told["findings"][0]["place"]
    line = RACE.splitlines().index("    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;") + 1
    assert (code, told["findings"][0]["kind"], place["line"]) == (1, "race", line)
