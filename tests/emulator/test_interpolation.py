"""How benchmarks/special_functions.py finds the rows by which the machine interpolates the special functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def test_a_parabola_is_found_from_what_it_gives_cut_to_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from special_functions import ONE, cut, parabola, square

    x = np.arange(1 << 17)
    products = sum((x >> i & 1) * (x >> j & 1) << (i + j) for i in range(17) for j in range(17) if i + j + (i != j) >= 19)
    assert (square(x) == products >> 19).all()
    for c0, c1, c2, cut_off in ((ONE - ONE // 3 + 77, -43583, 1532, 16), (ONE + ONE // 7, 112824, 2460, 17)):
        bits = c0 + c1 * x + c2 * square(x) >> cut_off
        found = parabola(*cut(np.ldexp(bits.astype(np.float32), cut_off - 40)), x)
        assert found[1:] == (c1, c2) and (found[0] + c1 * x + c2 * square(x) >> cut_off == bits).all()
