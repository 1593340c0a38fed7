"""Random programs give the host's results, without a fault."""

from __future__ import annotations

import pytest

import random_programs
from emulation import needs_compiler


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_gives_the_hosts_numbers(seed: int) -> None:
    problem, statements = random_programs.compare(seed)
    assert not problem and statements > 50
