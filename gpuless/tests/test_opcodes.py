"""The table of opcodes, which the executor and Python both read."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from emulation import needs_compiler
from gpuless import machine
from gpuless.compile import sass
from gpuless.facts import opcodes


def problem(instruction: str) -> str:
    """Why the executor refuses an instruction; empty if it takes it."""
    library = machine.library()
    handle = library.rung_machine_load(f"0 {instruction}\n".encode())
    found = library.rung_machine_problem(handle)
    library.rung_machine_free(handle)
    return found.decode() if found else ""


def test_an_opcode_has_one_row() -> None:
    names = re.findall(r"^(?:OP|ACCESS)\((\w+),", opcodes.SOURCE.read_text(), re.MULTILINE)
    assert not [name for name, count in Counter(names).items() if count > 1] and {*names} == {*opcodes.table()}


@needs_compiler
@pytest.mark.parametrize(
    ("taken", "refused"),
    [("IADD3 R0, R1, R2, R3", "IADD3.FTZ R0, R1, R2, R3"), ("UIADD3 UR4, UR4, 0x1, URZ", "UIADD4 UR4, UR4, 0x1, URZ"),
     ("FSEL R0, R1, R2, P0", "FSEL.FTZ R0, R1, R2, P0"), ("LDG.E.128 R4, [R2.64]", "LDG.E.256 R4, [R2.64]"),
     ("HMMA.16816.F32 R4, R8, R12, R4", "HMMA.16816.F32.E2M1 R4, R8, R12, R4"), ("NOP", "UTCHMMA gdesc[UR4]")],
)  # fmt: skip
def test_what_no_row_says_is_refused(taken: str, refused: str) -> None:
    assert not problem(taken)
    assert problem(refused)


def test_a_group_counts_the_opcodes_of_its_rows() -> None:
    assert sass._counted("LDG.E.128.CONSTANT") == ["total", "LDG", "LDG.128"]
    assert sass._counted("ULDC.64") == ["total", "LDC"] and sass._counted("LDGSTS.E.128")[-1] == "LDGSTS.128"
    assert opcodes.row("UMOV").unit == "UNIFORM" and opcodes.row("VOTEU").group == "vote"  # type: ignore[union-attr]
    assert opcodes.row("FNORD") is None
