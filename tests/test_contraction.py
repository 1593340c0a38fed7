"""A GPU's compiler fuses a product and a sum, which rounds once; results of float32 keep their bounds by either way."""

import pytest

from rung.check.trial import QUICK, check
from rung.emulator import translation
from rung.rungs import catalogue


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_fused_multiply_adds_move_no_result_over_its_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator fuses none as a rule: here it does as nvcc does."""
    plain = translation._flags

    def fused(races: bool, coverage: bool = False) -> tuple[str, ...]:
        # GCC fuses only where it also takes the trouble of expensive optimisations.
        return (*plain(races, coverage), "-mfma", "-ffp-contract=fast", "-fexpensive-optimizations")

    monkeypatch.setattr(translation, "_flags", fused)
    rungs = [r for r in catalogue.rungs(name) if "f32" in r.dtypes and r.kind == "cuda"]
    reports = [check(rung, "f32", device="emulator", effort=QUICK) for rung in rungs]
    assert reports and not [(r.rung, r.reason) for r in reports if r.verdict == "failed"]
