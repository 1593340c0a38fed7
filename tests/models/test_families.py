"""A family in a folder outside of the package: found by the model_type of config.json, it writes, scores and serves."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import gpt2_models as models
import gpuless
import rung
from rung.errors import RungError
from rung.models import family
from rung.models.gpu import step_pass
from rung.models.operations import step_rungs
from rung.models.weights import in_file, weights_of

SIZES = {"width": 64, "context": 48, "vocabulary": 400, "heads": 4, "depth": 3}
PROMPT = [17, 300, 4, 250, 9]
emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")


EACH_ITS_OWN = {"windows": [None, 3, 5], "caps": [None, None, 0.5], "scale": 4.0}


@pytest.fixture(scope="module", params=[{}, EACH_ITS_OWN], ids=["all alike", "each layer its own"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model of the family, whose folder is outside of the package."""
    home = tmp_path_factory.mktemp("families")
    shutil.copytree(Path(__file__).parents[1] / "families" / "reordered", home / "reordered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNG_FAMILIES", str(home))
        saved = tmp_path_factory.mktemp("model")
        fields = {"model_type": "reordered", **SIZES, **request.param}
        (saved / "config.json").write_text(json.dumps(fields))
        tensors = in_file(weights_of(family.parse_config(fields, "here"), "cpu", seed=3))
        save_file(
            {name: tensor * (1 if "norm" in name else 4) for name, tensor in tensors.items()},
            saved / "model.safetensors",
        )
        shutil.copy(models.tokenizer_file(), saved / "tokenizer.json")
        yield saved


def expected(folder: Path, ids: list[int]) -> torch.Tensor:
    """Logits (T, V) in float64, from the file alone."""
    from safetensors.torch import load_file

    t = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    width, heads, T = SIZES["width"], SIZES["heads"], len(ids)
    fields = json.loads((folder / "config.json").read_text())
    windows, caps = (fields.get(name, [None] * SIZES["depth"]) for name in ("windows", "caps"))
    behind = torch.arange(T)[:, None] - torch.arange(T)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (width,), t[f"{name}.weight"], t[f"{name}.bias"], 1e-5)

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    x = t["tokens"][ids] * fields.get("scale", 1.0) + t["positions"][:T]
    for i in range(SIZES["depth"]):
        n = norm(x, f"blocks.{i}.norm")
        q, k, v = product(n, f"blocks.{i}.keys").view(T, 3, heads, width // heads).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / (width // heads) ** 0.5
        if caps[i]:
            scores = caps[i] * torch.tanh(scores / caps[i])
        scores.masked_fill_((behind < 0) | (behind >= (windows[i] or T)), -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(0, 1).reshape(T, width)
        h = F.gelu(product(n, f"blocks.{i}.up"), approximate="tanh")
        x = x + product(y, f"blocks.{i}.mixed") + product(h, f"blocks.{i}.down")
    return norm(x, "norm") @ t["head"].T


def greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    text = list(ids)
    for _ in range(count):
        text.append(int(expected(folder, text)[-1].argmax()))
    return text[len(ids) :]


def assert_right(model: rung.Model, folder: Path, count: int) -> None:
    """Logits, greedy text alone and in company, and scores."""
    found, right = model.logits(PROMPT).double(), expected(folder, PROMPT)
    assert (found - right).norm() / right.norm() < 1e-5
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, 77, 78]]
    written = model.generate(prompts, max_new_tokens=count, temperature=0)
    assert [c.tokens for c in written] == [greedy(folder, ids, count) for ids in prompts]
    ids = models.some_ids(30, seed=4)
    logprobs = expected(folder, ids).log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])
    (score,) = model.score([ids], context=48, stride=48)
    assert score.logprob == pytest.approx(float(logprobs.sum()), rel=1e-5)


def test_it_writes_and_scores_on_a_cpu(folder: Path) -> None:
    model = rung.load(folder, dtype="float32", device="cpu")
    assert_right(model, folder, 12)
    assert model.generate([PROMPT], max_new_tokens=4, temperature=0)[0].tokens == greedy(folder, PROMPT, 4)
    for dtype in ("bfloat16", "int8"):
        found = rung.load(folder, dtype=dtype, device="cpu").logits(PROMPT).double()
        right = expected(folder, PROMPT)
        assert (found - right).norm() / right.norm() < 3e-2


@pytest.mark.slow
@emulated
def test_its_operations_run_on_rungs_and_whole_steps_are_made_of_them(folder: Path) -> None:
    for plan in ("fused", "best"):
        model = rung.load(folder, device="emulator", plan=plan, dtype="float32")
        assert_right(model, folder, 4)
    assert model.transformer.service.engine.latest.work.rung is None


@emulated
def test_a_norm_that_several_products_read_is_computed_by_each_or_once_for_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The emulator's own table has no products with norms.
    monkeypatch.setattr(step_pass, "step_rungs", lambda device, dtype, rows: step_rungs("cuda", dtype, rows))
    model = rung.load(folder, device="emulator", plan="best", dtype="bfloat16")
    prompts = [PROMPT, PROMPT[:2]]
    for prompt, text in zip(prompts, model.generate(prompts, max_new_tokens=3, temperature=0), strict=True):
        for at, token in enumerate(text.tokens):
            logits = expected(folder, [*prompt, *text.tokens[:at]])[-1]
            assert float(logits.max() - logits[token]) < 0.1 * float(logits.std())


@emulated
@pytest.mark.parametrize(
    "wrong", ["mul", "add_", "getitem", "view", "gelu", "cat", "rand_like", "item", "tolist", "eq", "add"]
)
def test_torch_may_not_touch_what_a_recorded_pass_reads(folder: Path, wrong: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    fields = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**fields, "wrong": wrong}))
    with pytest.raises(RungError, match="reordered calls torch"):
        rung.load(model, device="emulator", plan="best", dtype="float32").generate([PROMPT], max_new_tokens=1)


@pytest.mark.slow
def test_it_is_served(folder: Path) -> None:
    serving = pytest.importorskip("serving")
    with serving.running(folder, "other") as server:
        body = {"model": "other", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 0}
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            (choice,) = json.load(answer)["choices"]
    right = expected(folder, [*PROMPT, *greedy(folder, PROMPT, 6)]).log_softmax(-1)[len(PROMPT) - 1 : -1]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(right.amax(1).tolist(), abs=1e-4)


def test_other_types_are_refused_with_the_known_ones(folder: Path, tmp_path: Path) -> None:
    for kind in ("llama9", "../reordered", 7):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(RungError, match=r"gpt2.*reordered"):
            rung.load(tmp_path, device="cpu")


def test_a_folder_of_families_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_FAMILIES", str(tmp_path / "nowhere"))
    with pytest.raises(RungError, match="nowhere"):
        family.known()
