"""`--json` of check, run, inspect and count: real output, against the schema that the package ships."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

SCHEMA = json.loads(importlib.resources.files("rung.show").joinpath("document.schema.json").read_text())
FAULTY = Path(__file__).parents[2] / "gpuless/tests/programs/faulty"
KERNEL = """/*---
idea = "Twice."
dtypes = ["f32"]
[[launch]]
kernel = "gelu"
grid = "ceil_div(B * T * C, 128)"
block = "128"
[bind]
N = "B * T * C"
---*/
__global__ void gelu(const float* x, float* out, int N)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = BODY;
}
"""


def rung(*words: object) -> dict[str, Any]:
    """The document that the command prints, which fits the schema and its exit code."""
    ended = subprocess.run([sys.executable, "-m", "rung", *map(str, words)], capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert (found["verb"], found["exit"]) == (words[0], ended.returncode)
    return found


def file(folder: Path, text: str) -> Path:
    path = folder / "mine.cu"
    path.write_text(text)
    return path


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_race_of_a_program_has_its_places_and_the_command_that_repeats_it() -> None:
    source = FAULTY / "race_missing_barrier.cu"
    found = rung("run", source, "--order", "shuffled", "--seed", 3, "--json")
    (race,) = found["findings"]
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "fault:" in text)
    assert (race["kind"], race["place"]["kernel"], race["place"]["block"]) == ("race", "rotate", [0, 0, 0])
    assert line in {race["place"]["line"], race["related"][0]["line"]}
    assert race["launched"].endswith(f"{source.name}:14")
    assert found["results"][0]["race_checked"] == 1
    again = shlex.split(race["repeat"])
    assert rung(*again[1:], "--json")["findings"] == found["findings"]


def test_how_faithfully_instructions_were_executed_is_told(tmp_path: Path) -> None:
    program = """__global__ void k(float* x, const float* y) { x[threadIdx.x] = EXPRESSION; }
int main()
{
    float* x;
    cudaMalloc(&x, 1024);
    cudaMemset(x, 0x3f, 1024);
    k<<<2, 32>>>(x, x + 64);
    k<<<2, 32>>>(x, x + 64);
    cudaFree(x);
}
"""
    told = {}
    for what in ("y[threadIdx.x] + 1", "__expf(y[threadIdx.x])", "__sinf(y[threadIdx.x])", "y[threadIdx.x] + clock()"):
        told[what] = rung("run", file(tmp_path, program.replace("EXPRESSION", what)), "--json")["fidelity"]
    exact, table, sine, near = told.values()
    assert exact["exact"] > 4 * 4 and not (exact["table"] or exact["approximate"] or exact["refused"])
    assert (table["table"], table["approximate"]) == ({"MUFU.EX2": 4}, {})
    assert (sine["table"], sine["approximate"]) == ({"MUFU.SIN": 4}, {})
    assert not near["table"] and sum(near["approximate"].values()) == 4


def test_a_check_tells_how_faithfully_instructions_were_executed(tmp_path: Path) -> None:
    body = "0.5f * x[i] * (1 + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])))"
    found = rung("check", "gelu", file(tmp_path, KERNEL.replace("BODY", body)), "--quick", "--json")
    (result,) = found["results"]
    assert {*result["fidelity"]["table"]} == {"MUFU.EX2", "MUFU.RCP"} and not result["fidelity"]["approximate"]
    assert result["fidelity"]["exact"] > 100 * result["runs"] / 10


def test_a_programs_own_failure_is_a_finding(tmp_path: Path) -> None:
    found = rung("run", file(tmp_path, "#include <cstdio>\nint main() { puts(\"no\"); return 7; }\n"), "--json")
    assert (found["verdict"], found["exit"], found["output"]) == ("failed", 7, "no\n")
    assert [one["kind"] for one in found["findings"]] == ["exit"]


def test_a_source_that_does_not_compile_is_refused_at_its_line(tmp_path: Path) -> None:
    found = rung("run", file(tmp_path, "int main()\n{\n    cudaNoSuchObject_t t;\n}\n"), "--json")
    assert (found["verdict"], found["exit"]) == ("refused", 2)
    assert found["findings"][0]["kind"] == "compile"
    assert found["findings"][0]["place"] == {"file": str(tmp_path / "mine.cu"), "line": 3}


def test_a_program_that_was_built_reports_by_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "gpuless", "nvcc", FAULTY / "double_free.cu", "-o", tmp_path / "made"], check=True)
    report = tmp_path / "report.jsonl"
    ended = subprocess.run([tmp_path / "made"], env=os.environ | {"GPULESS_REPORT": str(report)})
    fault, end = map(json.loads, report.read_text().splitlines())
    assert (fault["kind"], fault["exit"], end["exit"]) == ("double free", 103, ended.returncode)


def test_names_that_cannot_be_bound_fail_the_check(tmp_path: Path) -> None:
    found = rung("check", "gelu", file(tmp_path, KERNEL.replace("int N", "int M").replace("< N", "< M")), "--json")
    assert found["verdict"] == "failed"
    assert (found["findings"][0]["about"], found["results"][0]["verdict"]) == ("gelu/mine f32", "failed")


def test_an_operation_that_does_not_exist_is_refused() -> None:
    assert rung("check", "no_such", "--json")["verdict"] == "refused"


@pytest.mark.slow
def test_wrong_values_come_with_case_evidence_and_the_command_that_repeats_them(tmp_path: Path) -> None:
    found = rung("check", "gelu", file(tmp_path, KERNEL.replace("BODY", "2.0f * x[i]")), "--json", "--quick", "--seed", 5)
    (wrong,) = found["findings"]
    assert wrong["kind"] == "values"
    assert set(wrong["case"]["values"]) == {"B", "T", "C"}
    assert wrong["evidence"]["pairs"] and wrong["evidence"]["wrong"] > 0
    again = rung(*shlex.split(wrong["repeat"])[1:], "--json")
    assert again["findings"][0]["evidence"]["pairs"] == wrong["evidence"]["pairs"]


@pytest.mark.slow
def test_a_fault_of_a_rung_has_its_place_and_the_values_of_its_case(tmp_path: Path) -> None:
    found = rung("check", "gelu", file(tmp_path, KERNEL.replace("BODY", "x[i + 64]")), "--json", "--quick")
    (fault,) = found["findings"]
    assert fault["kind"] == "bounds"
    assert Path(fault["place"]["file"]).name == "mine.cu"
    assert (fault["place"]["kernel"], fault["place"]["line"]) == ("gelu", 14)
    assert fault["case"]["values"]


@pytest.mark.slow
def test_a_missed_goal_of_a_right_kernel_is_a_finding() -> None:
    words = ("--shape", "R=64,C=64", "--json", "--goal", "sectors_per_request(ld) <= 1")
    found = rung("count", "transpose/2", *words)
    assert [one["kind"] for one in found["findings"]] == ["goal"]
    assert found["results"][0]["kernels"][0]["figures"]["global_loads"] > 0


@pytest.mark.slow
def test_right_rungs_have_no_finding(tmp_path: Path) -> None:
    for words in (("check", "gelu/1", "--quick"), ("inspect", "gelu/1"), ("count", "gelu/1", "--shape", "B=1,T=8,C=64")):
        found = rung(*words, "--json")
        assert (found["verdict"], found["findings"]) == ("ok", []), words
        assert found["results"]


@pytest.mark.slow
def test_the_documents_examples_are_what_the_commands_print(tmp_path: Path) -> None:
    """Keys of the example in docs/json.md."""
    text = (Path(__file__).parent.parent.parent / "docs/json.md").read_text()
    example = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])  # type: ignore[index]
    jsonschema.Draft202012Validator(SCHEMA).validate(example)
    source = tmp_path / "rotate.cu"
    source.write_text((FAULTY / "race_missing_barrier.cu").read_text())
    found = rung("run", source, "--json")
    assert found.keys() == example.keys()
    assert found["findings"][0].keys() == example["findings"][0].keys()
