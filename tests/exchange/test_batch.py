"""`rung judge`: a file of kernels in, a file of verdicts out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rung.errors import RungError
from rung.exchange import batch

GELU = """extern "C" __global__ void gelu(const float* x, float* out, int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float v = x[i];
    out[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
}
"""
REFERENCE = """import torch
N = 1000
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(N)]
"""
CANDIDATE = '''import torch
from torch.utils.cpp_extension import load_inline
source = """
__global__ void twice(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) * 2;
}
torch::Tensor call(torch::Tensor x) {
    auto out = torch::empty_like(x);
    twice<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.numel());
    return out;
}
"""
module = load_inline("m", cpp_sources="torch::Tensor call(torch::Tensor x);", cuda_sources=source, functions=["call"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.call(x)
'''


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def verdicts(path: Path) -> dict[str, Any]:
    return {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}


@pytest.mark.slow
def test_verdicts_are_the_same_whoever_works(tmp_path: Path) -> None:
    given = written(
        tmp_path / "in.jsonl",
        {"id": "right", "operation": "gelu", "source": GELU},
        {"id": "wrong", "operation": "gelu", "source": GELU.replace("0.5f", "0.6f")},
        {"id": "broken", "operation": "gelu", "source": GELU.replace("tanhf", "tanhg")},
        {"id": "unknown", "operation": "none", "source": GELU},
        {"id": "candidate", "reference": REFERENCE, "source": CANDIDATE},
        {"id": "other", "reference": REFERENCE, "source": CANDIDATE.replace("* 2;", "* 3;")},
    )
    list(batch.judge(given, tmp_path / "one.jsonl", 1))
    list(batch.judge(given, tmp_path / "two.jsonl", 2))
    one = verdicts(tmp_path / "one.jsonl")
    assert one == verdicts(tmp_path / "two.jsonl")
    found = {name: row["verdict"] for name, row in one.items()}
    assert found == {
        "right": "ok", "wrong": "failed", "broken": "failed", "unknown": "refused", "candidate": "ok", "other": "failed",
    }  # fmt: skip
    assert one["right"]["reports"][0]["fidelity"] == {
        "table": ["MUFU.EX2", "MUFU.RCP"], "approximate": [], "refused": [],
    }  # fmt: skip
    assert one["broken"]["reports"][0]["cause"] == "compile" and "kernel.cu:6" in one["broken"]["reason"]


@pytest.mark.slow
def test_lines_with_a_verdict_are_not_judged_again(tmp_path: Path) -> None:
    given = written(tmp_path / "in.jsonl", *({"id": n, "operation": "none", "source": GELU} for n in range(3)))
    out = written(tmp_path / "out.jsonl", {"id": 1, "verdict": "ok"})
    assert {row["id"] for row in batch.judge(given, out, 1)} == {0, 2}
    assert list(batch.judge(given, out, 1)) == [] and len(verdicts(out)) == 3


@pytest.mark.slow
def test_a_candidate_that_ends_its_judge_costs_one_line(tmp_path: Path) -> None:
    ending = "import os\nos._exit(3)\n"
    given = written(
        tmp_path / "in.jsonl",
        {"id": "ends", "reference": ending + REFERENCE, "source": CANDIDATE},
        {"id": "next", "operation": "none", "source": GELU},
    )
    found = {row["id"]: row["verdict"] for row in batch.judge(given, tmp_path / "out.jsonl", 1)}
    assert found == {"ends": "not judged", "next": "refused"}


@pytest.mark.parametrize(
    "line, told",
    [
        ({"id": 1}, "id and source"),
        ({"id": 1, "source": ""}, "an operation, or give a reference"),
        ({"id": 1, "source": "", "operation": "gelu", "reference": ""}, "an operation, or give a reference"),
    ],
)
def test_a_line_that_is_none_is_refused(tmp_path: Path, line: dict[str, Any], told: str) -> None:
    with pytest.raises(RungError, match=told):
        batch.read_lines(written(tmp_path / "in.jsonl", line))


def test_an_id_stands_once(tmp_path: Path) -> None:
    line = {"id": 1, "operation": "gelu", "source": GELU}
    with pytest.raises(RungError, match="twice"):
        batch.read_lines(written(tmp_path / "in.jsonl", line, line))


def example(name: str) -> dict[str, Any]:
    """What a block of docs/doors.md defines."""
    text = (Path(__file__).parents[2] / "docs/doors.md").read_text()
    block = next(block for block in re.findall(r"```python\n(.*?)```\n\n", text, re.DOTALL) if f"# {name}\n" in block)
    defined: dict[str, Any] = {}
    exec(block, defined)
    return defined


@pytest.mark.slow
def test_the_adapter_for_kernelbench_judges_a_run(tmp_path: Path) -> None:
    problems, run = tmp_path / "KernelBench", tmp_path / "runs/mine"
    (problems / "level1").mkdir(parents=True), run.mkdir(parents=True)
    (problems / "level1/19_Twice.py").write_text(REFERENCE)
    for number, text in enumerate((CANDIDATE, CANDIDATE.replace("* 2;", "* 3;"), CANDIDATE.replace("fmaxf", "fmaxg"))):
        (run / f"level_1_problem_19_sample_{number}_kernel.py").write_text(text)
    results = example("kernelbench.py")["evaluate"](problems, run, workers=1)
    assert json.loads((run / "eval_results.json").read_text()) == results
    found = {one["sample_id"]: (one["compiled"], one["correctness"]) for one in results["19"]}
    assert found == {0: (True, True), 1: (True, False), 2: (False, False)}


@pytest.mark.slow
def test_the_reward_of_a_text_is_its_verdict() -> None:
    defined = example("reward.py")
    texts = [f"Here:\n```cuda\n{code}```\n" for code in (GELU, GELU.replace("0.5f", "0.6f"), GELU.replace("tanhf", "tanhg"))]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert defined["reward"]([*messages[:1], *texts[1:], "no code"], operation=["gelu"] * 4) == [1.0, 0.1, 0.0, 0.0]
    assert defined["reward_one"](messages[0], {"operation": "gelu"}) == 1.0
