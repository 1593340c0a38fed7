"""The five small ladders: their references against other words for the same mathematics, their promises."""

import math
import re
from pathlib import Path

import pytest
import torch

from rung.check.judge import check
from rung.dtypes import dtype
from rung.operation import LADDERS as FOLDER
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

LADDERS = ("embedding", "gelu", "layernorm", "residual", "softmax")
FOREIGN = Path(__file__).parents[1] / "foreign"


def reference(name: str, tensors: dict[str, torch.Tensor], **values: float) -> dict[str, torch.Tensor]:
    operation = catalogue.operation(name)
    exact = {k: t.double() if t.is_floating_point() else t.long() for k, t in tensors.items()}
    return operation.reference(exact, operation.complete(values))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gelu(x: float, cubic: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + cubic * x**3)))


def test_gelu_has_the_constant_that_gpt2_was_trained_with() -> None:
    points = [-3.0, -1.0, -0.1, 0.0, 0.5, 1.0, 2.5]
    out = reference("gelu", {"x": torch.tensor(points).view(1, 1, -1)}, B=1, T=1, C=len(points))["out"]
    for x, y in zip(points, out.flatten().tolist(), strict=True):
        assert y == pytest.approx(gelu(x, 0.044715), abs=1e-7)
    assert gelu(1.0, 0.044715) == pytest.approx(0.8411919906, abs=1e-10)
    assert abs(gelu(1.0, 0.44715) - 0.8411919906) > 0.05


def test_gelu_with_the_misprinted_constant_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "misprint.cu"
    source = catalogue.find("gelu/naive").source
    assert "0.044715f" in source
    wrong.write_text(source.replace("0.044715f", "0.44715f"))
    report = check(
        catalogue.rung_from_file(catalogue.operation("gelu"), wrong), "f32", device="emulator", case="odd"
    )
    assert report.verdict == "failed" and "out" in report.reason


def test_layernorm_agrees_with_torch_and_gives_its_statistics() -> None:
    x, residual = 5 * normal(2, 3, 37) + 7, normal(2, 3, 37, seed=1)
    weight, bias = normal(37, seed=2), normal(37, seed=3)
    tensors = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    found = reference("layernorm", tensors, B=2, T=3, C=37)
    stream = x + residual
    torch.testing.assert_close(found["sum"], stream)
    torch.testing.assert_close(found["mean"], stream.mean(-1))
    torch.testing.assert_close(found["rstd"], (stream.var(-1, correction=0) + 1e-5).rsqrt())
    expected = torch.nn.functional.layer_norm(stream, (37,), weight, bias, 1e-5)
    torch.testing.assert_close(found["out"], expected, rtol=1e-12, atol=1e-12)


def test_softmax_rows_see_what_lies_before_them() -> None:
    x = normal(1, 2, 9, 9)
    whole = reference("softmax", {"x": x}, B=1, NH=2, T=9, S=9, scale=0.5)["out"]
    torch.testing.assert_close(whole.sum(-1), torch.ones(1, 2, 9, dtype=torch.float64))
    assert torch.equal(whole.triu(1), torch.zeros_like(whole))
    torch.testing.assert_close(whole[0, 1, 4, :5], torch.softmax(0.5 * x[0, 1, 4, :5], -1))
    # The last two queries alone, with all nine keys: what a cache makes of it.
    tail = reference("softmax", {"x": x[:, :, 7:]}, B=1, NH=2, T=2, S=9, scale=0.5)["out"]
    torch.testing.assert_close(tail, whole[:, :, 7:])


def test_embedding_counts_positions_from_the_start() -> None:
    tokens = torch.tensor([[4, 0], [2, 2]])
    wte, wpe = normal(5, 3), normal(7, 3, seed=1)
    tensors = {"tokens": tokens, "wte": wte, "wpe": wpe}
    found = reference("embedding", tensors, B=2, T=2, C=3, V=5, MAXT=7, start=5)
    torch.testing.assert_close(found["out"][1, 0], wte[2] + wpe[5])
    torch.testing.assert_close(found["out"][0, 1], wte[0] + wpe[6])


@pytest.mark.parametrize("rung", [r.name for r in catalogue.rungs("softmax", libraries=False)])
def test_nothing_behind_the_mask_matters(rung: str) -> None:
    """Scores that were never computed may be anything, NaN included."""
    values = catalogue.operation("softmax").complete(dict(B=1, NH=1, T=5, S=7))
    x = normal(1, 1, 5, 7).float().masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(3), torch.nan)
    out = torch.full_like(x, torch.nan)
    chosen = catalogue.find(f"softmax/{rung}")
    chosen.prepare({"x": x, "out": out}, values, dtype("f32"), device="emulator").run()
    expected = reference("softmax", {"x": x}, **values)["out"]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LADDERS)
def test_every_rung_says_what_it_is(name: str) -> None:
    rungs = catalogue.rungs(name, libraries=False)
    assert [r.number for r in rungs] == list(range(1, len(rungs) + 1))
    for rung in rungs:
        assert rung.idea and rung.expect and rung.provenance, rung.full_name
    story = (FOLDER / name / "README.md").read_text()
    assert re.search(r"<!-- times -->.*<!-- /times -->", story, re.DOTALL)
    for rung in rungs:
        assert f"**{rung.name.partition('_')[2]}**" in story, rung.full_name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm", "softmax"])
def test_a_kernel_from_elsewhere_wants_a_header_and_nothing_else(name: str, tmp_path: Path) -> None:
    source = (FOREIGN / f"{name}_forward.cu").read_text()
    assert "rung" not in source and "Real" not in source
    header = (FOREIGN / f"{name}_forward.toml").read_text()
    path = tmp_path / f"{name}_forward.cu"
    path.write_text(f"/*---\n{header}---*/\n{source}")
    rung = catalogue.rung_from_file(catalogue.operation(name), path)
    assert isinstance(rung, CudaRung)
    report = check(rung, "f32", device="emulator")
    assert report.verdict == "ok", report.reason
    assert report.cases >= 1
