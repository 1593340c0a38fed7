"""A clock whose value decides what a kernel stores is told from its machine code."""

import pytest

from gpuless.compile.sass import Instruction
from rung.check.machine_code import clocks

READ = ["CS2R R2, SR_CLOCKLO", "S2R R0, SR_TID.X"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (["IMAD.MOV.U32 R4, RZ, RZ, R2", "STG.E desc[UR4][R10.64], R4"], "STG"),
        (["ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "FSEL R6, R5, R7, P0", "STG.E desc[UR4][R10.64], R6"], "STG"),
        (["ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "@P0 BRA 0x100"], "BRA"),
        (["NANOSLEEP R2", "STG.E desc[UR4][R10.64], R0"], ""),
        (["MOV R2, 0x1", "STG.E desc[UR4][R10.64], R2"], ""),
    ],
    ids=["stored", "selects", "branches", "sleeps", "overwritten"],
)
def test_a_clock_is_followed_to_a_store_or_branch(code: list[str], found: str) -> None:
    every = [Instruction(16 * i, text, ()) for i, text in enumerate([*READ, *code])]
    assert [one.name for one, _ in clocks(every)] == ([found] if found else [])


def test_code_without_a_clock_is_not_looked_at() -> None:
    assert [*clocks([Instruction(0, "STG.E desc[UR4][R10.64], R2", ())])] == []
