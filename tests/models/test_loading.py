"""Weights that travel while others are read and computed with are the weights that plain loading gives, bit by bit."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_gpu_prefill import CAPACITY, UNEQUAL, assert_transformers, state

import gpt2_models as models
import gpuless
import rung
from rung.errors import RungError
from rung.models.cpu.plan import CpuPlan
from rung.models.family import read_config
from rung.models.gpu import engine as gpu_engine
from rung.models.gpu import loading
from rung.models.gpu.batched_prefill import Prefill
from rung.models.gpu.device_copy import AtOnce, Mark
from rung.models.gpu.engine import GpuPlan, GpuSteps
from rung.models.gpu.loading import Arrival, Piece, arrival, pieces
from rung.models.load import Model
from rung.models.plan import TorchPlan
from rung.models.tensors import open_tensors
from rung.models.transformer import Transformer
from rung.models.weights import as_weights, empty_operands, read_weights, stack, tensor_reader
from rung.operation import Tensors
from rung.rungs.base import Device
from written import written

CPU = torch.device("cpu")
emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def plainly(folder: Path, dtype: torch.dtype, where: torch.device = CPU) -> Tensors:
    """The operands as they are made without any of this."""
    config, plan = read_config(folder / "config.json"), TorchPlan(where, dtype, dtype)
    return stack(read_weights(folder, config, plan.matrix, plan.vector), dtype, where)


def overlapped(folder: Path, dtype: torch.dtype, where: torch.device = CPU) -> Arrival:
    found = arrival(folder, read_config(folder / "config.json"), dtype, where)
    assert found is not None
    return found


def loaded(folder: Path, at_once: bool, device: Device = "emulator") -> Model:
    """A model by the plan best, its weights computed with while others arrive, or after all have."""
    config, plan = read_config(folder / "config.json"), GpuPlan(device, "float32", {}, overlapped=at_once)
    return Model(Transformer(config, plan.read(folder, config), plan), folder, str(folder), 0.0)


def assert_same_bits(found: Tensors, right: Tensors) -> None:
    assert found.keys() == right.keys()
    for name, tensor in right.items():
        assert found[name].dtype == tensor.dtype and found[name].is_contiguous(), name
        assert torch.equal(found[name], tensor), name
    assert (found["head_w"] is found["wte"]) == (right["head_w"] is right["wte"])


def stored_as(folder: Path, dtype: torch.dtype, to: Path) -> Path:
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    save_file({n: t.to(dtype).contiguous() for n, t in tensors.items()}, to / "model.safetensors")
    return to


# ---- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_operands_are_those_of_plain_loading(
    tmp_path: Path, compute: torch.dtype, stored: torch.dtype, one_by_one: bool
) -> None:
    folder = stored_as(models.saved(), stored, tmp_path / "model")
    found = overlapped(folder, compute)
    found.start(overlapped=not one_by_one)
    found.finish()
    assert_same_bits(found.operands, plainly(folder, compute))


@pytest.mark.parametrize("slot", [1000, 4096])
def test_tensors_go_through_buffers_smaller_than_they_are(monkeypatch: pytest.MonkeyPatch, slot: int) -> None:
    monkeypatch.setattr(loading, "SLOT", slot)
    found = overlapped(models.saved(), torch.bfloat16)
    found.start()
    found.finish()
    assert_same_bits(found.operands, plainly(models.saved(), torch.bfloat16))


def test_a_head_of_its_own_and_wider_layers() -> None:
    folder = models.saved(tie_word_embeddings=False, n_inner=96)
    found = overlapped(folder, torch.float32)
    found.start()
    found.finish()
    assert_same_bits(found.operands, plainly(folder, torch.float32))


def test_shards_are_read_as_well(tmp_path: Path) -> None:
    whole = load_file(models.saved() / "model.safetensors")
    names = sorted(whole)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({n: whole[n].contiguous() for n in part}, tmp_path / f"part{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"part{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(models.saved() / "config.json", tmp_path)
    found = overlapped(tmp_path, torch.float32)
    found.start()
    found.finish()
    assert_same_bits(found.operands, plainly(models.saved(), torch.float32))


def test_the_model_sees_the_operands_themselves() -> None:
    config = read_config(models.saved() / "config.json")
    operands = empty_operands(config, torch.float32, CPU)
    weights = as_weights(operands, config)
    assert weights.nbytes() == sum({t.data_ptr(): t.nbytes for t in operands.values()}.values())
    assert weights.head is weights.wte
    assert weights.layers[2].fc.weight.data_ptr() == operands["fc_w"][2].data_ptr()


# ---- what waits, and what does not ----------------------------------------------------------------------------------


class Halting(AtOnce):
    """Stops before the given copy until it is let go on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left, self.go_on, self.stopped = at, threading.Event(), threading.Event()

    def mark(self) -> Mark:
        self.left -= 1
        if self.left == 0:
            self.stopped.set()
            assert self.go_on.wait(60)
        return super().mark()


def test_layers_that_have_arrived_can_be_used_while_later_ones_travel() -> None:
    folder = models.saved()
    config = read_config(folder / "config.json")
    operands = empty_operands(config, torch.float32, CPU)
    groups = pieces(tensor_reader(open_tensors(folder), config), config, operands)
    right = plainly(folder, torch.float32)
    for tensor in operands.values():
        tensor.fill_(torch.nan)
    copies = sum(len(group) for group in groups[:2])
    transport = Halting(2 * copies + 2 + 3)  # two marks a copy and one a group; stops inside the second layer
    found = Arrival(operands, groups, transport)
    found.start()
    found.wait(1)
    assert transport.stopped.wait(60)
    assert torch.equal(operands["wte"], right["wte"]) and torch.equal(operands["fc2_w"][0], right["fc2_w"][0])
    assert operands["fc2_w"][1].isnan().all() and not found.finished
    transport.go_on.set()
    found.finish()
    assert_same_bits(operands, right)


class Lazy(Arrival):
    """Brings a group when it is asked for; until then it is NaN."""

    def start(self, *, overlapped: bool = True) -> None:
        self.asked: list[int] = []
        for tensor in self.operands.values():
            tensor.fill_(torch.nan)

    def wait(self, group: int) -> None:
        self.asked.append(group)
        for piece in (p for g in self._groups[: group + 1] for p in g):
            piece.target.copy_(piece.source.t() if piece.turned else piece.source)


def test_a_prompt_asks_for_each_layer_before_it_reads_it() -> None:
    folder = models.saved()
    config, tensors = state(folder, torch.float32, len(UNEQUAL))
    operands = empty_operands(config, torch.float32, CPU)
    found = Lazy(operands, pieces(tensor_reader(open_tensors(folder), config), config, operands), AtOnce())
    found.start()
    prefill = Prefill(
        config, {**tensors, **operands, "wpe": operands["wpe"][:CAPACITY]}, len(UNEQUAL), CAPACITY
    )
    prefill.arrival = found
    prefill.run(UNEQUAL)
    assert_transformers(tensors, folder, UNEQUAL)
    assert found.asked[:-1] == [0, 1, 2, 3, 4]  # the embeddings, three layers, the end; then it is finished
    assert found.finished and prefill.arrival is None


def test_the_time_line_has_every_tensor_read_and_then_copied() -> None:
    found = overlapped(models.saved(), torch.bfloat16)
    found.start()
    found.finish()
    spans = found.timeline
    for what in ("read", "copy"):
        own = [s for s in spans if s.what == what]
        assert {s.name for s in own} == {n.removeprefix("transformer.") for n in _stored_names(models.saved())}
        assert all(0 <= s.begin <= s.end for s in own)
        assert all(a.end <= b.begin for a, b in itertools.pairwise(own))
    reads, copies = ([s for s in spans if s.what == what] for what in ("read", "copy"))
    assert all(r.end <= c.begin for r, c in zip(reads, copies, strict=True))


def _stored_names(folder: Path) -> set[str]:
    return set(open_tensors(folder)[0].shapes) - {"lm_head.weight"}


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_an_error_of_the_loader_reaches_the_waiting_thread() -> None:
    broken = Piece("wte.weight", torch.ones(4, 8), torch.empty(3, 3), turned=True)
    found = Arrival({"wte": broken.target}, [[broken], []], AtOnce())
    found.start()
    with pytest.raises(RuntimeError, match="size"):
        found.wait(1)


def test_what_cannot_travel_is_loaded_plainly(tmp_path: Path) -> None:
    shutil.copy(models.saved() / "config.json", tmp_path)
    torch.save(load_file(models.saved() / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert arrival(tmp_path, read_config(tmp_path / "config.json"), torch.float32, CPU) is None
    odd = models.saved(n_embd=36)  # a layer's 72 bytes in 16 bits begin at no multiple of 32
    assert arrival(odd, read_config(odd / "config.json"), torch.bfloat16, CPU) is None


@pytest.mark.parametrize("at_once", [True, False])
def test_bad_files_are_refused_in_the_same_sentences(tmp_path: Path, at_once: bool) -> None:
    shutil.copytree(models.saved(), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {n: t.contiguous() for n, t in load_file(file).items()}
    last = next(n for n in tensors if n.endswith("ln_f.bias"))

    save_file({**tensors, last: tensors[last].to(torch.int8)}, file)
    with pytest.raises(RungError, match="holds int8, which are not weights without their scales"):
        loaded(tmp_path / "model", at_once)
    save_file({n: t for n, t in tensors.items() if n != last}, file)
    with pytest.raises(RungError, match=r"tensor 'ln_f\.bias' is missing, which config\.json requires"):
        loaded(tmp_path / "model", at_once)
    save_file({**tensors, last: tensors[last][1:]}, file)
    with pytest.raises(RungError, match=r"has shape \(63,\), but config.json requires \(64,\)"):
        loaded(tmp_path / "model", at_once)
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RungError, match="ends at byte"):
        loaded(tmp_path / "model", at_once)


# ---- the model ------------------------------------------------------------------------------------------------------


@emulated
@pytest.mark.parametrize("at_once", [True, False])
def test_text_and_logits_are_transformers(at_once: bool) -> None:
    folder, ids = models.saved(), models.some_ids(9)
    model = loaded(folder, at_once)
    assert list(model.generate([ids], max_new_tokens=3, temperature=0)[0].tokens) == models.reference_greedy(
        folder, ids, 3
    )
    first = loaded(folder, at_once).logits(ids)
    assert float((first - models.reference_logits(folder, ids)).abs().max()) < 1e-3


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("compute", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slot", [4096, 8 << 20])
def test_on_a_gpu_operands_are_those_of_plain_loading(
    monkeypatch: pytest.MonkeyPatch, compute: torch.dtype, slot: int
) -> None:
    monkeypatch.setattr(loading, "SLOT", slot)
    folder, where = models.saved(n_embd=256, n_layer=6), torch.device("cuda")
    right = plainly(folder, compute, where)
    for one_by_one in (False, True):
        found = overlapped(folder, compute, where)
        found.start(overlapped=not one_by_one)
        found.finish()
        assert_same_bits(found.operands, right)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_text_is_the_same_however_weights_came() -> None:
    folder, ids = models.saved(n_embd=256, n_layer=6), models.some_ids(20)
    right = models.reference_greedy(folder, ids, 30)
    for at_once in (True, False):
        model = loaded(folder, at_once, "cuda")
        for _ in range(2):  # the second prompt is read by the recording
            assert list(model.generate([ids], max_new_tokens=30, temperature=0)[0].tokens) == right
        logits = loaded(folder, at_once, "cuda").logits(ids).cpu()
        assert float((logits - models.reference_logits(folder, ids)).abs().max()) < 1e-2


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_a_prompt_is_read_while_layers_arrive() -> None:
    folder = models.saved(n_embd=256, n_layer=6)
    config = read_config(folder / "config.json")
    for _ in range(3):
        found = overlapped(folder, torch.float32, torch.device("cuda"))
        found.start()
        engine = GpuSteps(config, as_weights(found.operands, config), "float32", arrival=found)
        ids = models.some_ids(20)
        assert [s[0] for s in written(engine, [ids], [10])] == models.reference_greedy(folder, ids, 10)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_model_is_loaded_to_a_gpu_where_there_is_one(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def made(device: str, *_: object, **__: object) -> CpuPlan:
        asked.append(device)
        return CpuPlan("float32")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("rung.models.plans.driver", lambda: object())
    monkeypatch.setattr(gpu_engine, "GpuPlan", made)
    assert rung.load(models.saved()).plan.device.type == "cpu"
    assert asked == ["cuda"] * gpu


def test_a_file_that_is_read_is_not_held_besides_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"t{i}": torch.full((1 << 22,), float(i)) for i in range(8)}, path)  # 16 MB each
    (file,) = open_tensors(tmp_path)
    sums = [int(file.read(f"t{i}").max()) for i in range(8)]
    assert sums == list(range(8))
    lines = Path("/proc/self/smaps").read_text().splitlines()
    mapped = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    resident = sum(int(line.split()[1]) for i in mapped for line in lines[i : i + 6] if line.startswith("Rss:"))
    assert resident < 64 << 10  # KB
