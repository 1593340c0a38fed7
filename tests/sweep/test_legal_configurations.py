"""A configuration that a rung's rules admit compiles and fits; one that does not is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import legal_configurations as legal
from rung.dtypes import DTYPES
from rung.profile import inspect
from rung.rungs import catalogue, identity
from rung.rungs.cuda import CudaRung
from rung.sweep.sweep import HOPELESS, configurations

RUNG = """/*---
idea = "Something in shared memory."
dtypes = ["f32"]
{needs}
[tune]
BYTES = [1024, 65536]
[[launch]]
kernel = "copy"
grid = 1
block = 32
---*/
#include "rung.cuh"
extern "C" __global__ void copy(const Real* x, Real* out, int N)
{{
    __shared__ char staged[BYTES];
    for (int i = threadIdx.x; i < N; i += 32) {{
        staged[i % BYTES] = char(i);
        out[i] = fmaxf(x[i], 0.0f) + float(staged[(i + 7) % BYTES]);
    }}
}}
"""


@pytest.mark.parametrize(("needs", "wrong"), [("", {65536}), ('needs = "BYTES <= 49152"', set())])
def test_what_the_rules_admit_and_the_compiler_does_not_is_found(tmp_path: Path, needs: str, wrong: set[int]) -> None:
    (tmp_path / "staged.cu").write_text(RUNG.format(needs=needs))
    rung = catalogue.rung_from_file(catalogue.operation("relu"), tmp_path / "staged.cu")
    found = list(legal.faults(rung))
    assert {one.tuning["BYTES"] for one, reason in found if reason} == wrong
    assert {one.tuning["BYTES"] for one, _ in found} == ({1024} if needs else {1024, 65536})


BOX = """/*---
idea = "A box of the copy engine."
dtypes = ["f32"]
needs = "sm >= 90"
[tune]
WIDE = [64, 512]
[maps.x_map]
operand = "x"
box = ["WIDE"]
[[launch]]
kernel = "copy"
grid = 1
block = 32
---*/
#include "tensor_map.cuh"
extern "C" __global__ void copy(const __grid_constant__ TensorMap x_map, Real* out, int N) { out[0] = WIDE; }
"""


def test_a_box_that_the_copy_engine_does_not_take_is_found(tmp_path: Path) -> None:
    (tmp_path / "box.cu").write_text(BOX)
    rung = catalogue.rung_from_file(catalogue.operation("relu"), tmp_path / "box.cu")
    reasons = {one.tuning["WIDE"]: reason for one, reason in legal.faults(rung)}
    assert not reasons[64] and "box (512,)" in reasons[512]


def test_tiles_that_48_kb_do_not_hold_are_refused_by_rule() -> None:
    rung = catalogue.find("token_logprob/03")
    values = rung.operation.complete(next(iter(rung.operation.shapes.values())))
    refusal = rung.refusal(values, DTYPES["f16"], {"BM": 128, "BN": 128, "BK": 32})
    assert refusal is not None and "49152" in refusal
    assert rung.refusal(values, DTYPES["f16"], {"BM": 64, "BN": 64, "BK": 32}) is None


def test_a_product_of_more_registers_than_a_thread_may_have_is_refused_by_rule() -> None:
    """ptxas needs 90 registers for scores of 128 keys; two blocks of three warpgroups leave 80."""
    rung = catalogue.find("attention/35")
    values = rung.operation.complete({"B": 1, "T": 64, "C": 32, "NH": 2})
    tuning = {"GROUPS": 2, "STAGES": 3, "BLOCKS": 2}
    refusal = inspect.refusal(rung, "sm_90", DTYPES["f32"], values, {**tuning, "BC": 128})
    assert refusal is not None and "BC // 2 + 26" in str(refusal)
    assert inspect.refusal(rung, "sm_90", DTYPES["f32"], values, {**tuning, "BC": 64}) is None


def test_what_stands_beside_the_stages_counts_where_a_block_has_99_kb() -> None:
    rung = catalogue.find("token_logprob/04")
    values = rung.operation.complete(next(iter(rung.operation.shapes.values())))
    tuning = {"BM": 64, "BN": 128, "BK": 64, "SLICES": 16, "WM": 32, "WN": 32, "STAGES": 4}
    assert "99 if" in str(inspect.refusal(rung, "sm_86", DTYPES["bf16"], values, tuning))
    assert inspect.refusal(rung, "sm_80", DTYPES["bf16"], values, tuning) is None


def test_a_shape_that_no_configuration_fits_is_given_up() -> None:
    """decode/14 is for one text: at 256 none of its millions of configurations is legal."""
    rung, asked = catalogue.find("decode/14"), []

    def legal(tuning: dict[str, int]) -> bool:
        asked.append(tuning)
        return rung.refusal(rung.operation.complete(rung.operation.shapes["gpt2 b256"]), DTYPES["bf16"], tuning) is None

    configurations(rung, sample=2, seed=1, legal=legal)
    assert 0 < len(asked) <= HOPELESS


RUNGS = [r for name in catalogue.operations() for r in catalogue.rungs(name) if isinstance(r, CudaRung) and r.tune]
DRAWN = 8


@pytest.mark.parametrize("turn", [*range(0, DRAWN, 2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, DRAWN, 2))])
def test_a_legal_configuration_compiles_and_fits(turn: int) -> None:
    """Drawn by the texts of the rungs: when one changes, others are met."""
    seed = int(identity.own_text(RUNGS[turn * len(RUNGS) // DRAWN])[:8], 16)
    rung = RUNGS[(seed + turn) % len(RUNGS)]
    for one, reason in legal.faults(rung, most=2, seed=seed):
        assert not reason, f"{one}: {reason}"
