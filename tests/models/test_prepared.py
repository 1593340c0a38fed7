"""Weights kept in the form in which they are used, and contexts made less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpt2_models
import llama_models
import rung
from rung.cli import main
from rung.errors import RungError


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_a_model_in_eight_bits_is_converted_once_for_each_state_of_its_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.models import weights

    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    source = gpt2_models.saved() if kind == "gpt2" else llama_models.saved(kind)
    folder = tmp_path / "model"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    converted = list[torch.Tensor]()
    usual = weights.to_int8
    monkeypatch.setattr("rung.models.plan.to_int8", lambda w: converted.append(w) or usual(w))
    first, ids = rung.load(folder, dtype="int8", device="cpu"), gpt2_models.some_ids(12)
    count = len(converted)
    again = rung.load(folder, dtype="int8", device="cpu")
    assert count and len(converted) == count and torch.equal(again.logits(ids), first.logits(ids))
    (kept,) = (tmp_path / "cache" / "weights").glob("*.weights")
    kept.write_bytes(kept.read_bytes()[:-1])  # cut off
    assert torch.equal(rung.load(folder, dtype="int8", device="cpu").logits(ids), first.logits(ids))
    assert len(converted) == 2 * count
    (folder / "config.json").touch()
    rung.load(folder, dtype="int8", device="cpu")
    assert len(converted) == 3 * count


def test_a_small_model_is_read_once_whatever_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    folder, ids = tmp_path / "model", gpt2_models.some_ids(12)
    folder.mkdir()
    for file in gpt2_models.saved().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "left").symlink_to(tmp_path / "nowhere")
    first = rung.load(folder, dtype="bfloat16", device="cpu")
    monkeypatch.setattr("rung.models.weights.open_tensors", lambda folder: pytest.fail("the files were read again"))
    again = rung.load(folder, dtype="bfloat16", device="cpu")
    assert torch.equal(again.logits(ids), first.logits(ids))
    texts = [model.generate([ids], temperature=0, max_new_tokens=5)[0].tokens for model in (first, again)]
    assert texts[0] == texts[1]


def test_a_context_is_made_less(capsys: pytest.CaptureFixture[str]) -> None:
    folder = llama_models.saved("llama")
    whole, less = (rung.load(folder, dtype="float32", device="cpu", context=n) for n in (None, 32))
    ids = gpt2_models.some_ids(20)
    assert less.config.context == 32 and torch.equal(less.logits(ids), whole.logits(ids))
    assert less.generate([ids], max_new_tokens=40)[0].finish_reason == "context"
    for model, context in ((folder, 97), (gpt2_models.saved(), 16)):
        with pytest.raises(RungError):
            rung.load(model, device="cpu", context=context)
    with pytest.raises(SystemExit) as ended:
        main(["generate", "Once", "--model", str(folder), "--context", "32", "-n", "2", "-t", "0", "--dtype", "float32"])
    assert ended.value.code == 0
