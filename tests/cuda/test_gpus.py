"""A GPU is one row: of the table, or of a file that RUNG_GPUS names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuless.base.errors import UserError
from gpuless.facts import gpus
from gpuless.facts.limits import limits, occupancy
from gpuless.program import building
from verbs import rung

PROGRAM = """
#include <cstdio>
__global__ void see(unsigned* out)
{
    asm("mov.u32 %0, %%nsmid;" : "=r"(out[0]));
    unsigned sm;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    atomicMax(out + 1, sm);
}
int main()
{
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    int clock;
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
    unsigned *out, seen[2];
    cudaMalloc(&out, 8), cudaMemset(out, 0, 8);
    see<<<300, 1>>>(out);
    cudaMemcpy(seen, out, 8, cudaMemcpyDeviceToHost);
    printf("%d %u %u %d %d\\n", p.multiProcessorCount, seen[0], seen[1] + 1, clock / 1000, int(p.sharedMemPerBlockOptin));
}
"""
ROW = """
[architectures]
sm_91 = { threads = 1024, blocks = 8, shared_kib = 300 }
[gpus.small]
name = "NVIDIA Small"
arch = "sm_90"
multiprocessors = 66
memory_gib = 40
clock_mhz = 990
memory_clock_mhz = 2619
bus_bits = 2560
l2_mib = 25
tera = { bytes = 1.675, f32 = 16.75, bf16 = 247 }
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert rung(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gpus.toml"
    path.write_text(ROW)
    monkeypatch.setenv("RUNG_GPUS", str(path))
    return path


def seen(capsys: pytest.CaptureFixture[str], folder: Path, gpu: str) -> list[int]:
    (folder / "see.cu").write_text(PROGRAM)
    return [int(word) for word in run(capsys, "run", str(folder / "see.cu"), "--gpu", gpu)["output"].split()]


def test_a_program_sees_the_chosen_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert seen(capsys, tmp_path, "a100") == [108, 108, 108, 1410, 163 << 10]


def test_a_gpu_whose_code_is_not_modelled_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "see.cu").write_text(PROGRAM)
    with pytest.raises(UserError, match="sm_75"):
        building.program([tmp_path / "see.cu"], building.Options(gpu="t4"))


def test_a_row_makes_a_gpu_that_programs_see(capsys: pytest.CaptureFixture[str], tmp_path: Path, added: Path) -> None:
    assert seen(capsys, tmp_path, "small") == [66, 66, 66, 990, 227 << 10]


def test_a_row_makes_a_gpu_whose_time_is_known(capsys: pytest.CaptureFixture[str], added: Path) -> None:
    what = ("gelu/1", "--shape", "B=4,T=64,C=1024")

    times = [run(capsys, "count", *what, "--time", g)["results"][0] for g in ("small", "h100")]
    assert times[0]["us"] > times[1]["us"] and times[0]["gpu"] == "NVIDIA Small"


def test_the_row_that_the_page_shows_is_a_gpu(added: Path) -> None:
    page = Path(__file__).parents[2] / "docs/programs.md"
    added.write_text(re.findall(r"```toml\n(\[gpus\..*?)```", page.read_text(), re.DOTALL)[0])
    gpus._tables.cache_clear()
    assert gpus.find("gh200").rates["f16"] == 989e12
    gpus._tables.cache_clear()


def test_a_row_of_an_architecture_has_limits(added: Path) -> None:
    assert limits("sm_91").shared_block == 299 << 10
    assert occupancy("sm_91", 256, 32, 0).warps == 32


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("[gpus.x]\nname = 'X'", "multiprocessors"),
        (ROW.replace("bus_bits", "bus_bit"), "bus_bit, bus_bits"),
        ("gpus = 3", ""),
        ("[", ""),
        (ROW.replace("sm_90", "sm_9"), "sm_9"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    row: str, named: str, added: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    added.write_text(row)
    gpus._tables.cache_clear()
    code = rung("count", "gelu/1", "--time", "h100")
    told = capsys.readouterr().err
    assert code == 2 and str(added) in told and named in told
    gpus._tables.cache_clear()
