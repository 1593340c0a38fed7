"""On a GPU whose blocks get 99 KB of shared memory what does not fit is refused, and something else serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pretended_gpu import pretend
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.models.folders import INNER
from rung.models.gpu import token_sampler
from rung.models.gpu.engine import GpuSteps
from rung.models.load import load
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights
from rung.rungs import catalogue
from rung.rungs.base import Prepared
from rung.rungs.cuda import CudaRung
from written import written

F32 = DTYPES["f32"]
VOCABULARY = 50257


def refusal(name: str, dims: dict[str, Any]) -> str | None:
    rung = catalogue.find(name)
    return rung.refusal(rung.operation.complete(dims), F32, device="cuda")


def test_what_shared_memory_cannot_hold_is_refused_before_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 8, 6)
    dims = {"B": 1, "V": VOCABULARY}
    for name, wants in (("01_bisection", VOCABULARY * 4), ("02_candidates", VOCABULARY * 4 + 2048 * 8)):
        refusals = str(refusal(f"sample/{name}", dims))
        assert refusals.startswith(f"sample/{name} does not fit this GPU (sample: a block needs {wants} bytes")
        assert "sm_86 has 101376" in refusals
    assert refusal("sample/02", {"B": 1, "V": 4000}) is None
    rung = catalogue.find("sample/02")
    with pytest.raises(RungError, match=r"\); sample/04_groups would do\."):
        rung.admit({}, rung.operation.complete(dims), F32, None, "cuda")
    pretend(monkeypatch, 9, 0)
    assert refusal("sample/02", dims) is None


def test_a_gpu_that_is_in_no_table_is_left_to_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 19, 0)
    assert refusal("sample/02", {"B": 1, "V": VOCABULARY}) is None


@pytest.mark.parametrize(("capability", "served"), [((7, 5), "03"), ((8, 6), "03"), ((8, 9), "03"), ((9, 0), "05")])
def test_tokens_are_sampled_by_a_rung_that_fits(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], served: str
) -> None:
    pretend(monkeypatch, *capability)
    chosen: list[str] = []

    def prepare(self: CudaRung, *_: Any, **__: Any) -> Prepared:
        chosen.append(self.name)
        return Prepared(self, lambda: None, {})

    monkeypatch.setattr(CudaRung, "prepare", prepare)
    state = {"logits": torch.zeros(1, 8), "steps": torch.zeros(1), "next": torch.zeros(1)}
    token_sampler.TokenSampler(state, 1, VOCABULARY, "cuda").prepare()
    assert [name[:2] for name in chosen] == [served]


@pytest.mark.slow
def test_text_is_sampled_alike_with_the_vocabulary_in_memory() -> None:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    engine = GpuSteps(model.config, weights, "float32", "emulator", rung="6", sample="in_memory")
    given = [list(model.tokenizer.encode("The king"))]
    for how in ({"temperature": 1.2, "top_p": 0.8}, {"temperature": 0.9, "top_k": 30, "presence_penalty": 0.5}):
        (theirs,) = model.generate(given, max_new_tokens=5, stop_tokens=(), seed=9, **how)  # type: ignore[call-overload]
        ours = list(written(engine, given, [5], sampling=Sampling(**how), seed=9))  # type: ignore[arg-type]
        assert [token for (token,) in ours] == list(theirs.tokens)


@pytest.mark.parametrize("capability", [(7, 5), (8, 6)])
def test_some_rung_of_decode_fits(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    pretend(monkeypatch, *capability)
    dims = catalogue.operation("decode").shapes["gpt2"]
    refusals = {name: refusal(f"decode/{name}", dims) for name in ("6", "5", "3")}
    assert "does not fit" in str(refusals["6"]) or "sm >= 80" in str(refusals["6"])
    assert None in refusals.values()
