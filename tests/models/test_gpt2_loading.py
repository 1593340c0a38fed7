"""What rung.load takes, and what it says of what it cannot take."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gpt2_models as models
import rung
from rung.errors import RungError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST = "transformer.h.0.attn.c_attn.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a good model's folder, to be spoilt."""
    return Path(shutil.copytree(models.saved(), tmp_path / "model"))


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def same_as_before(folder: Path) -> None:
    ids = models.some_ids(9)
    found = rung.load(folder, dtype="float32", device="cpu").logits(ids)
    assert torch.equal(found, models.ours(models.saved()).logits(ids))


def refused(folder: Path | str, *words: str, **keywords: object) -> None:
    """Refused in one sentence that holds these words."""
    with pytest.raises(RungError) as caught:
        rung.load(folder, **{"device": "cpu", **keywords})
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


def test_names_without_prefix_old_masks_and_a_tied_head_are_accepted(folder: Path) -> None:
    tensors = {k.removeprefix("transformer."): t for k, t in load_file(folder / "model.safetensors").items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    same_as_before(folder)


def test_shards_are_accepted(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 3}-of-00003.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    same_as_before(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "missing")


@pytest.mark.parametrize("sharded", [False, True])
def test_bin_files_are_accepted(folder: Path, sharded: bool) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if sharded:
        torch.save(tensors, folder / "pytorch_model-1.bin")
        index = {"weight_map": dict.fromkeys(tensors, "pytorch_model-1.bin")}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    same_as_before(folder)


class Malicious:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_bin_file_never_runs_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"wte.weight": Malicious()}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "could run code", "safetensors")
    assert not (folder / "pwned").exists()


def test_an_old_bin_file_is_read_and_never_runs_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    tensors: dict[str, object] = dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    same_as_before(folder)
    tensors["wte.weight"] = Malicious()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    refused(folder, "pytorch_model.bin", "could run code")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious()))
    refused(folder, "pytorch_model.bin", "could run code")
    assert not (folder / "pwned").exists()


def test_tensors_without_names_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({1: torch.zeros(1)}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "named tensors")


def test_a_tensor_that_is_there_twice_is_named(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"ln_f.bias": torch.zeros(64)}))
    refused(folder, "model.safetensors", "'transformer.ln_f.bias'", "'ln_f.bias'", "twice")


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({FIRST: t[FIRST].to(torch.int8)}))
    refused(folder, "model.safetensors", FIRST, "int8", "quantized")


def test_an_index_without_shards_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    refused(folder, "model.safetensors.index.json", "no shard")


def test_a_truncated_bin_file_is_named(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    content = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(content[: len(content) // 2])
    refused(folder, "pytorch_model.bin", "cut off")


def test_half_precision_weights_are_accepted(folder: Path) -> None:
    exact = rung.load(folder, dtype="float32", device="cpu").logits([1, 2, 3])
    rewritten(folder, lambda t: t.update({k: v.half() for k, v in t.items()}))
    rounded = rung.load(folder, dtype="float32", device="cpu").logits([1, 2, 3])
    assert 0 < float((exact - rounded).abs().max()) < 0.1


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewritten(folder, lambda t: t.pop(FIRST))
    refused(folder, "model.safetensors", FIRST.removeprefix("transformer."), "missing")


def test_a_surplus_tensor_is_named(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({"transformer.h.3.ln_1.weight": torch.ones(64)}))
    refused(folder, "model.safetensors", "transformer.h.3.ln_1.weight", "no place")


def test_a_wrong_shape_is_named(folder: Path) -> None:
    rewritten(folder, lambda t: t.update({FIRST: t[FIRST].t().contiguous()}))
    refused(folder, "model.safetensors", FIRST, "(192, 64)", "(64, 192)")


def test_an_untied_model_needs_its_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    refused(folder, "lm_head.weight", "missing")


def test_a_truncated_file_names_the_first_tensor_that_was_cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1000])
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    end = len(content) - 1000 - 8 - length
    cut = [n for n, e in header.items() if n != "__metadata__" and e["data_offsets"][1] > end]
    with pytest.raises(RungError) as caught:
        rung.load(folder, device="cpu")
    assert any(name in str(caught.value) for name in cut) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 4) + b"nope", b"<html>" * 100],
    ids=["empty", "short", "endless header", "no JSON", "an error page"],
)
def test_a_foreign_file_under_the_right_name_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "model.safetensors", "not a safetensors file")


@pytest.mark.parametrize("entry", [{}, {"data_offsets": [0], "shape": [1], "dtype": "F32"}, 7])
def test_a_broken_entry_of_the_header_is_named(folder: Path, entry: object) -> None:
    header = json.dumps({"wte.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refused(folder, "model.safetensors", "'wte.weight'", "broken")


def test_a_header_that_contradicts_itself_names_the_tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["transformer.ln_f.bias"]["dtype"] = "F64"
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    refused(folder, "model.safetensors", "cannot be read")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bert"}, ["'bert'", "gpt2"]),
        ({"model_type": None}, ["None", "gpt2"]),
        ({"activation_function": "swish"}, ["'swish'", "gelu_new"]),
        ({"n_head": 7}, ["64", "7", "multiple"]),
        ({"n_layer": 0}, ["n_layer", "0"]),
        ({"vocab_size": "many"}, ["vocab_size", "'many'"]),
        ({"add_cross_attention": True}, ["cross attention"]),
        ({"activation_function": ["gelu"]}, ["['gelu']", "gelu_new"]),
        ({"layer_norm_epsilon": "small"}, ["layer_norm_epsilon", "'small'"]),
        ({"layer_norm_epsilon": -1e-5}, ["layer_norm_epsilon", "-1e-05"]),
        ({"eos_token_id": "end"}, ["eos_token_id", "'end'"]),
        ({"scale_attn_weights": "false"}, ["scale_attn_weights", "'false'"]),
        ({"n_layer": 10**9}, ["model.safetensors", "1,000,000,000"]),
    ],
)
def test_a_config_that_is_no_gpt2s_is_refused(
    folder: Path, change: dict[str, object], words: list[str]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    refused(folder, "config.json", *words)


def test_missing_and_foreign_files_are_named(folder: Path) -> None:
    refused(folder / "nowhere", "nowhere", "no folder")
    refused(folder / "config.json", "is a file")
    (folder / "model.safetensors").unlink()
    refused(folder, "holds no weights")
    (folder / "config.json").write_text("{")
    refused(folder, "config.json", "JSON")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json", "JSON object")
    (folder / "config.json").unlink()
    refused(folder, "config.json", "missing")


def test_a_tokenizer_is_read_from_either_form(folder: Path) -> None:
    whole = rung.load(folder, device="cpu").tokenizer
    (folder / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(models.tokenizer_file().parent / name, folder)
    parts = rung.load(folder, device="cpu").tokenizer
    for text in (models.TEXT, " leading\n\n  spaces \t", "a<|endoftext|>b", "naïve 🐉", ""):
        ids = whole.encode(text)
        assert parts.encode(text) == ids
        assert whole.decode(ids) == parts.decode(ids) == text
    assert whole.token("<|endoftext|>") in whole.encode("a<|endoftext|>b")


def test_a_missing_or_broken_tokenizer_is_reported_when_text_is_given(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(RungError, match=r"tokenizer.json cannot be read as a tokenizer"):
        rung.load(folder, device="cpu").generate("Hello")
    (folder / "tokenizer.json").unlink()
    model = rung.load(folder, device="cpu")
    with pytest.raises(RungError, match="has no tokenizer"):
        model.generate("Hello")
    assert len(model.generate([[1, 2, 3]], max_new_tokens=4)[0].tokens) == 4


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache on disk, holding gpt2 as it looks after a download, with no way out to the network."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    home = cache / "models--openai-community--gpt2"
    shutil.copytree(models.saved(), home / "snapshots" / COMMIT)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def test_a_model_that_was_downloaded_is_found_offline(hub: Path) -> None:
    model = rung.load("gpt2", offline=True, dtype="float32", device="cpu")
    assert COMMIT in str(model.folder)
    assert model.tokenizer.decode(model.tokenizer.encode("Once")) == "Once"
    assert rung.load("gpt2", offline=True, revision=COMMIT, device="cpu").folder == model.folder
    refused("gpt2", "'gpt2'", "offline", offline=True, revision="other")


def test_offline_by_environment_is_respected(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert rung.load("gpt2", device="cpu").folder.name == COMMIT
    refused("gpt2-xl", "'gpt2-xl'", "offline", "(inner)")


def test_an_unknown_model_is_refused_in_one_sentence(hub: Path) -> None:
    refused("no-such-model", "'no-such-model'", "offline", offline=True)
    refused("what is this?", "'what is this?'", "neither a folder nor an id")
    refused("./no-such-folder", "there is no folder")


def test_settings_that_do_not_exist_are_refused() -> None:
    refused("inner", "'tpu'", "cpu", device="tpu")
    refused("inner", "'int4'", "int8", dtype="int4")
    refused("inner", "float16", "cpu", dtype="float16")
    refused("inner", "'quickest'", "plan", plan="quickest")
    refused("inner", "runs no rungs", kernels={"gelu": "2"})
    refused("inner", "'dropout'", device="emulator", kernels={"dropout": "1"})
    refused("inner", "threads", threads=0)


def test_loading_a_model_inside_the_package_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def no_network(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    model = rung.load(device="cpu")
    text = model.generate("Once upon a time", temperature=0, max_new_tokens=20).text
    assert len(text.split()) > 8
