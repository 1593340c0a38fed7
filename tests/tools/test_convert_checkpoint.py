"""nanoGPT's and llm.c's checkpoints: written here in their formats, loaded, and compared with transformers."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import rung
from convert_checkpoint import convert, main
from gpt2_models import reference, saved, some_ids, tokenizer_file
from rung import RungError
from rung.models.load import Model

ROOT = Path(__file__).parents[2]
MATRICES = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def state_of(folder: Path, prefix: str = "transformer.") -> dict[str, torch.Tensor]:
    """A transformers model's weights as nanoGPT names and lays them out."""
    state = {}
    for name, tensor in reference(folder).transformer.state_dict().items():
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            state[prefix + name] = tensor.t().contiguous() if name.endswith(MATRICES) else tensor
    return state


def nanogpt(path: Path, folder: Path, prefix: str = "transformer.", **changes: object) -> Path:
    shape = {"n_layer": 3, "n_head": 4, "n_embd": 64, "block_size": 64, "bias": True, "vocab_size": 400, "dropout": 0.0}
    state = state_of(folder, prefix)
    state[prefix.removesuffix("transformer.") + "lm_head.weight"] = state[prefix + "wte.weight"]
    saved_as = {"model": state, "model_args": shape, "iter_num": 7, "best_val_loss": torch.tensor(1.0), "config": {}}
    torch.save({**saved_as, **changes}, path)
    return path


def llmc(path: Path, folder: Path, version: int = 3, cut: int = 0) -> Path:
    state = state_of(folder, "")
    parts = [torch.cat([state["wte.weight"], torch.zeros(48, 64)]), state["wpe.weight"]]
    for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"):  # fmt: skip
        parts += [state[f"h.{i}.{name}"] for i in range(3)]
    parts += [state["ln_f.weight"], state["ln_f.bias"]]
    flat = torch.cat([p.flatten() for p in parts])
    body = flat.numpy().tobytes() if version == 3 else flat.bfloat16().view(torch.int16).numpy().tobytes()
    header = np.zeros(256, dtype="<i4")
    header[:8] = [20240326, version, 64, 400, 3, 4, 64, 448]
    path.write_bytes((header.tobytes() + body)[: -cut or None])
    return path


def load(checkpoint: Path, **options: str) -> Model:
    """The model of a checkpoint, through the folder that the tool writes."""
    folder = checkpoint.parent / "converted"
    convert(checkpoint, folder)
    return rung.load(folder, device="cpu", **options)


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    return reference(folder)(torch.tensor([ids])).logits[0].detach()


@pytest.mark.parametrize("prefix", ["transformer.", "_orig_mod.transformer."])
def test_nanogpts_checkpoint_gives_transformers_logits(tmp_path: Path, prefix: str) -> None:
    folder, ids = saved(activation_function="gelu"), some_ids(30)
    model = load(nanogpt(tmp_path / "ckpt.pt", folder, prefix), dtype="float32")
    torch.testing.assert_close(model.logits(ids), logits(folder, ids), rtol=1e-4, atol=1e-4)


def test_nanogpt_without_biases(tmp_path: Path) -> None:
    folder = saved(activation_function="gelu")
    state = {k: v for k, v in state_of(folder).items() if not k.endswith(".bias")}
    shape = {"n_layer": 3, "n_head": 4, "n_embd": 64, "block_size": 64, "bias": False, "vocab_size": 400}
    path = nanogpt(tmp_path / "ckpt.pt", folder, model=state, model_args=shape)
    weights = load(path, dtype="float32").transformer.weights
    assert all(not linear.bias.any() for linear in weights.linears()) and not weights.ln_f.bias.any()


@pytest.mark.parametrize(("version", "slack"), [(3, 1e-4), (5, 0.2)])
def test_llmcs_checkpoint_gives_transformers_logits(tmp_path: Path, version: int, slack: float) -> None:
    folder, ids = saved(), some_ids(30)
    model = load(llmc(tmp_path / "gpt2.bin", folder, version), dtype="float32")
    assert model.config.vocabulary == 400
    torch.testing.assert_close(model.logits(ids), logits(folder, ids), rtol=slack, atol=slack)


def test_a_converted_folder_is_transformers_to_read(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    convert(llmc(tmp_path / "gpt2.bin", saved()), tmp_path / "folder")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "folder")
    ids = some_ids(20)
    torch.testing.assert_close(theirs(torch.tensor([ids])).logits[0], logits(saved(), ids), rtol=1e-4, atol=1e-4)


def test_the_tokenizer_beside_a_checkpoint_comes_along(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "ckpt.pt", saved())
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file().read_bytes())
    assert (tokenizer := load(path).tokenizer).decode(tokenizer.encode("a dragon")) == "a dragon"


def test_nanogpts_characters_become_a_tokenizer(tmp_path: Path) -> None:
    letters = "\n abcdefghijklmnopqrstuvwxyz.!"
    (tmp_path / "meta.pkl").write_bytes(
        pickle.dumps(
            {"vocab_size": 30, "stoi": {c: i for i, c in enumerate(letters)}, "itos": dict(enumerate(letters))}
        )
    )
    tokenizer = load(nanogpt(tmp_path / "ckpt.pt", saved()), dtype="float32").tokenizer
    assert tokenizer.encode("a big\ndog.") == [letters.index(c) for c in "a big\ndog."]
    assert tokenizer.decode(tokenizer.encode("a big\ndog.")) == "a big\ndog."


class Evil:
    def __reduce__(self):
        return (open, ("/tmp/rung-was-here", "w"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.save({"model": {}}, p), "no 'model' and 'model_args'"),
        (lambda p: torch.save([1, 2], p), "no 'model' and 'model_args'"),
        (lambda p: torch.save({"model": {}, "model_args": {"n_layer": 2}}, p), "lack"),
        (lambda p: nanogpt(p, saved(), model={}), "no weights|lacks the tensor|fewer tensors"),
        (lambda p: torch.save({"model": Evil(), "model_args": {}}, p), "could run code"),
        (lambda p: p.write_bytes(b"PK\x03\x04nonsense"), "cut off"),
        (lambda p: p.write_bytes(b"hello"), "cut off|no PyTorch|neither"),
        (lambda p: p.write_bytes(struct.pack("<ii", 20240326, 4)), "version 4"),
        (lambda p: llmc(p, saved(), cut=100), "header requires"),
    ],
)
def test_what_is_no_checkpoint_is_reported_in_a_sentence(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "ckpt.pt"
    make(path)
    with pytest.raises(RungError, match=message):
        load(path)
    assert not Path("/tmp/rung-was-here").exists()


def test_the_command_line_converts(tmp_path: Path, capsys) -> None:
    path = llmc(tmp_path / "gpt2.bin", saved())
    for code, message in ((0, "3 layers"), (2, "not empty")):
        assert main([str(path), str(tmp_path / "out")]) == code
        output = capsys.readouterr()
        assert message in output.out + output.err
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "gpt2"


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = llmc(tmp_path / "gpt2.bin", saved())
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/convert_checkpoint.py"), str(path), str(tmp_path / "out")],
        capture_output=True, text=True, preexec_fn=full, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


# ---- checkpoints ----------------------------------------------------------------------------------------------------

SHAPE = {"vocab_size": 4, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 8, "bias": False}


def checkpoint(path: Path, shape: dict[str, object] | None = None, **tensors: object) -> Path:
    state: dict[str, object] = {"wte.weight": torch.randn(4, 8), "wpe.weight": torch.randn(8, 8)}
    state["ln_f.weight"] = torch.ones(8)
    for name, size in {
        "ln_1": (8,), "attn.c_attn": (24, 8), "attn.c_proj": (8, 8), "ln_2": (8,), "mlp.c_fc": (32, 8),
        "mlp.c_proj": (8, 32),
    }.items():  # fmt: skip
        state[f"h.0.{name}.weight"] = torch.randn(*size)
    torch.save({"model_args": SHAPE | (shape or {}), "model": state | tensors}, path)
    return path


@pytest.mark.parametrize(
    ("shape", "tensors"),
    [
        *(({"vocab_size": odd}, {}) for odd in ("x", None, [1], float("nan"), torch.zeros(3), True)),
        ({"n_layer": 10**8}, {}),
        ({}, {"h.0.attn.c_attn.weight": torch.eye(8).to_sparse()}),
        ({}, {"h.0.attn.c_attn.weight": torch.zeros(24, 8, device="meta")}),
        ({}, {"h.0.attn.c_attn.weight": torch.zeros(1, 1).expand(2**40, 2**10)}),
        ({}, {"h.0.attn.c_attn.weight": [1]}),
    ],
)
def test_a_checkpoint_of_nonsense_is_a_sentence(
    tmp_path: Path, shape: dict[str, object], tensors: dict[str, object]
) -> None:
    with pytest.raises(RungError, match=r"ckpt\.pt"):
        load(checkpoint(tmp_path / "ckpt.pt", shape, **tensors))


@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps({"stoi": {"O": odd, "n": 1}}) for odd in (-1, 2**40, True, 77, 1, None)),
        pickle.dumps({"stoi": {}}), pickle.dumps([1]), b"", b"\x80\x02}]K\x01s.", b"\x80\x02}r\x00\x00\x00\x06.",
        b"\x80\x02}r\xff\xff\xff\x7f.", b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f", bytes(2 << 20),
    ],
)  # fmt: skip
def test_a_table_of_characters_of_nonsense_is_a_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "meta.pkl").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RungError, match=r"meta\.pkl"):
        load(checkpoint(tmp_path / "ckpt.pt"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_download_that_broke_off_is_seen_by_its_holes(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "ckpt.pt")
    os.truncate(path, 8 << 30)
    with pytest.raises(RungError, match="are there; fetch it again"):
        load(path)
