"""GGUF files, written by llama.cpp's own package: what they hold is what Hugging Face's folder holds."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gpt2_models
import llama_models
import rung
from rung.errors import RungError
from rung.models import gguf as reader
from rung.models.family import read_config
from rung.models.rope import Rope
from rung.models.tokenizer import read_tokenizer

gguf = pytest.importorskip("gguf")
LLAMA3 = {**llama_models.LLAMA3, "original_max_position_embeddings": 8192}
CASES: dict[str, Any] = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "mistral": ("mistral", {"sliding_window": 16}),
    "gemma3": ("gemma3_text", {
        "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    }),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-4, "sliding_window": None}),
}  # fmt: skip
MATRICES = {"f32": 0, "q8": 8, "q4": 2}  # formats of matrices


def folder_of(kind: str, fields: dict[str, Any]) -> Path:
    return gpt2_models.saved(**fields) if kind == "gpt2" else llama_models.saved(kind, **fields)


def write(folder: Path, path: Path, format: int = 0, *, tokens: bool = True, **changed: Any) -> dict[str, np.ndarray]:
    """A folder's model as llama.cpp's converter writes it; its matrices as they are there, by Hugging Face's names."""
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    architecture = {"mistral": "llama", "gemma3_text": "gemma3"}.get(kind, kind)
    parsed = read_config(folder / "config.json")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(parsed.context)
    writer.add_embedding_length(parsed.C)
    writer.add_block_count(parsed.layers)
    writer.add_feed_forward_length(parsed.F)
    writer.add_head_count(parsed.NH)
    if kind in ("gpt2", "starcoder2"):
        writer.add_layer_norm_eps(parsed.eps)
    else:
        writer.add_layer_norm_rms_eps(parsed.eps)
    if kind != "gpt2":
        writer.add_head_count_kv(parsed.NKV)
        writer.add_key_length(parsed.HS)
        assert parsed.rope is not None
        writer.add_rope_freq_base(parsed.rope.base)
        if parsed.window:
            writer.add_sliding_window(parsed.window)
        if parsed.rope.kind == "llama3":
            plain, scaled = (rope.angles(parsed.HS, 2)[1] for rope in (Rope(parsed.rope.base), parsed.rope))
            writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if tokens:
        add_tokens(writer, folder)
    for name, value in changed.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), parsed.layers)
    stored: dict[str, np.ndarray] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        here = names.get_name(name, (".weight", ".bias"))
        data = (tensor.T if kind == "gpt2" and ".c_" in name and tensor.dim() == 2 else tensor).contiguous()
        heads = {"attn_q": parsed.NH, "attn_k": parsed.NKV}.get(here.split(".")[-2], 0) if architecture == "llama" else 0
        if kind == "gemma3_text" and name.endswith("norm.weight"):
            data = data + 1
        if heads:
            data = data.view(heads, 2, -1, *data.shape[1:]).transpose(1, 2).reshape(data.shape)
        array = data.float().contiguous().numpy()
        to = gguf.GGMLQuantizationType(format if tensor.dim() == 2 and "pos" not in here else 0)
        raw = gguf.quantize(array, to)
        stored[name] = gguf.dequantize(raw, to)
        writer.add_tensor(here, raw, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def add_tokens(writer: Any, folder: Path) -> None:
    table = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(table["model"]["vocab"], key=table["model"]["vocab"].get)
    added = {one["id"]: one["content"] for one in table["added_tokens"]}
    tokens += [added[id] for id in range(len(tokens), len(tokens) + len(added)) if id in added]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if id in added else 1 for id in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in table["model"]["merges"]])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")


@pytest.mark.parametrize("case", CASES)
def test_logits_tokens_and_ends_are_the_folders(case: str, tmp_path: Path) -> None:
    folder = folder_of(*CASES[case])
    write(folder, tmp_path / "model.gguf")
    right, found = (rung.load(one, dtype="float32", device="cpu") for one in (folder, tmp_path / "model.gguf"))
    ids = gpt2_models.some_ids(20)
    assert torch.equal(found.logits(ids), right.logits(ids))
    assert found.tokenizer.encode(gpt2_models.TEXT) == right.tokenizer.encode(gpt2_models.TEXT)
    assert found.config.window == right.config.window and found.config.eos == (399,)


@pytest.mark.parametrize("format", MATRICES)
def test_blocks_of_weights_are_what_the_package_makes_of_them(format: str, tmp_path: Path) -> None:
    folder = folder_of("qwen2", {})
    stored = write(folder, tmp_path / "model.gguf", MATRICES[format])
    weights = rung.load(tmp_path / "model.gguf", dtype="float32", device="cpu").transformer.weights
    assert torch.equal(weights.layers[1].mlp_proj.weight, torch.from_numpy(stored["model.layers.1.mlp.down_proj.weight"]))
    text = rung.load(tmp_path / "model.gguf", dtype="int8", device="cpu").generate("Once", temperature=0, max_new_tokens=4)
    assert len(text.tokens) == 4


def test_sentencepiece_is_divided_as_by_its_folders_tokenizer(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["\u2581", "O", "n", "c", "e", "u", "p", "o", "\u2581u", "on", "pon", "\u2581upon", "\u2581O", "ce", "nce", "\u2581Once", "po"]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*pieces, *words])
    writer.add_token_scores([0.0] * len(pieces) + [-float(len(words) - i) for i in range(len(words))])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(words)])
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields, _ = reader._header(tmp_path / "model.gguf")
    made = reader._tokenizer(tmp_path / "model.gguf", fields)
    made.save(str(tmp_path / "tokenizer.json"))
    found = read_tokenizer(tmp_path)
    names = [found._tokenizer.id_to_token(id) for id in found.encode("Once upon \u00e9", begin=True)]
    assert names == ["<s>", "\u2581Once", "\u2581upon", "\u2581", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("Once upon \u00e9")) == " Once upon \u00e9"


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
def test_texts_are_divided_as_the_models_do(pre: str, tmp_path: Path) -> None:
    # Every character is a token of its own: where digits and words are divided shows in the divisions alone.
    fields = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.token_type": np.array([1]), "tokenizer.ggml.merges": [],
    }  # fmt: skip
    made = reader._tokenizer(tmp_path, fields)
    words = [word for word, _ in made.pre_tokenizer.pre_tokenize_str("It's 12345 x\n\n")]
    digits = {"smollm": list("12345"), "llama-bpe": ["123", "45"], "qwen2": list("12345")}[pre]
    assert [word for word in words if word.isdigit()] == digits


def test_a_tokenizer_beside_the_file_comes_first(tmp_path: Path) -> None:
    write(folder_of("qwen2", {}), tmp_path / "model.gguf", tokens=False)
    with pytest.raises(RungError, match="no tokenizer"):
        rung.load(tmp_path / "model.gguf", device="cpu").generate("Once")
    (tmp_path / "tokenizer.json").write_bytes(gpt2_models.tokenizer_file().read_bytes())
    assert rung.load(tmp_path / "model.gguf", device="cpu").generate("Once", max_new_tokens=2).tokens


@pytest.mark.parametrize("fault", ["kind", "end"])
def test_a_broken_field_is_named(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(folder_of("qwen2", {}), path)
    name, raw = b"tokenizer.ggml.merges", path.read_bytes()
    at = raw.index(name) + len(name)
    path.write_bytes(raw[: at + 9] if fault == "end" else raw[:at] + (99).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(RungError, match=name.decode()):
        rung.load(path, device="cpu")


def test_too_little_memory_is_not_the_files_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    write(folder_of("qwen2", {}), path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("rung.models.tensors.mmap.mmap", full)
    with pytest.raises(MemoryError):
        rung.load(path, device="cpu", dtype="float32")


@pytest.mark.parametrize("fault", ["cut", "header", "architecture", "layers", "heads", "endless"])
def test_a_broken_file_is_one_sentence(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    changed = {"layers": {"block_count": 1 << 30}, "heads": {"attention.head_count": 3}}.get(fault, {})
    if changed:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf.GGUFWriter, f"add_{'block' if fault == 'layers' else 'head'}_count", lambda *given: None)
            write(folder_of("qwen2", {}), path, **changed)
    else:
        write(folder_of("qwen2", {}), path)
    raw = path.read_bytes()
    raw = {
        "cut": raw[: len(raw) // 2], "header": raw[:100], "architecture": raw.replace(b"qwen2", b"qwen9"),
        "endless": raw[:24] + (4).to_bytes(8, "little") + b"name" + (9).to_bytes(4, "little") + bytes(4) + b"\xff" * 8,
    }.get(fault, raw)  # fmt: skip
    path.write_bytes(raw)
    with pytest.raises(RungError):
        rung.load(path, device="cpu")


