"""torch.compile among the libraries: every shape is compiled, however many there are."""

import pytest
import torch

from rung.lazy import compiled


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: usual(f, backend="eager", **options))


def test_the_ninth_shape_is_compiled_as_well() -> None:
    seen = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            seen.append(len(x))
        return x + x

    run = compiled(twice)
    for n in range(1, 13):
        assert torch.equal(run(torch.ones(n)), torch.full((n,), 2.0))
    assert not seen
