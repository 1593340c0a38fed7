"""A clock whose value decides what a kernel stores is told from its machine code."""

import pytest

from gpuless.compile.sass import Instruction
from rung.check.decided import clocks

READ = ["CS2R R2, SR_CLOCKLO", "S2R R0, SR_TID.X"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (["IMAD.MOV.U32 R4, RZ, RZ, R2", "STG.E desc[UR4][R10.64], R4"], "STG"),
        (["ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "FSEL R6, R5, R7, P0", "STG.E desc[UR4][R10.64], R6"], "STG"),
        (["ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "@P0 BRA 0x100"], "BRA"),
        (["ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "@P0 EXIT", "STG.E desc[UR4][R10.64], R0"], "EXIT"),
        (["STG.E desc[UR4][R10.64], R0", "ISETP.GT.U32.AND P0, PT, R2, 0x64, PT", "@P0 EXIT", "BPT.TRAP 0x1"], ""),
        (["NANOSLEEP R2", "STG.E desc[UR4][R10.64], R0"], ""),
        (["MOV R2, 0x1", "STG.E desc[UR4][R10.64], R2"], ""),
    ],
    ids=["stored", "selects", "branches", "ends", "traps", "sleeps", "overwritten"],
)
def test_a_clock_is_followed_to_a_store_or_branch(code: list[str], found: str) -> None:
    every = [Instruction(16 * i, text, ()) for i, text in enumerate([*READ, *code])]
    assert [one.name for one, _ in clocks(every)] == ([found] if found else [])


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        ("S2R R2, SR_VIRTUALSMID", True),
        ("CS2R.32 R2, SR_PM0", True),
        ("LDC.64 R2, c[0x0][0x30]", True),
        ("S2R R2, SR_CTAID.X", False),
        ("S2UR UR2, SR_CgaCtaId", False),
        ("S2R R2, SR_LEMASK", False),
        ("LDC R2, c[0x0][0x10c]", False),
    ],
)
def test_what_belongs_to_the_call_is_no_matter(read: str, *, counts: bool) -> None:
    store = f"STG.E desc[UR4][R10.64], {'UR2' if 'UR2' in read else 'R2'}"
    every = [Instruction(16 * i, text, ()) for i, text in enumerate([read, store])]
    assert bool([*clocks(every)]) is counts


def test_code_without_a_clock_is_not_looked_at() -> None:
    assert [*clocks([Instruction(0, "STG.E desc[UR4][R10.64], R2", ())])] == []
