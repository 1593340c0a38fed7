"""Beginnings of prompts that a GPU's slots keep: the rest is read after them, and the texts are what they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_batching import together

import gpt2_models
import llama_models
import rung
from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Request, Text
from rung.models.gpu.beginnings import LEAST, Beginnings
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.slots import GpuBackend
from rung.models.load import Model
from rung.models.options import Options, Prompt
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights

FOLDERS = {
    "gpt2": lambda: gpt2_models.saved(n_embd=32, n_head=2, n_layer=2, vocab_size=400, n_positions=512),
    "llama": lambda: llama_models.saved(max_position_embeddings=512, num_hidden_layers=2),
    "window": lambda: llama_models.saved(
        "mistral", max_position_embeddings=512, sliding_window=40, num_hidden_layers=2
    ),
    "gemma3": lambda: llama_models.saved(
        "gemma3_text", max_position_embeddings=512, head_dim=16, num_hidden_layers=2, sliding_window=40,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
DEVICES = ("emulator", pytest.param("cuda", marks=pytest.mark.gpu))
BEGINNING = tuple(gpt2_models.some_ids(200, 400, seed=1))


def backend(model: Model, device: Any, slots: int = 8) -> GpuBackend:
    """Slots in float32, so that texts can be compared, with what slots in 16 bits keep."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    weights = read_weights(model.folder, model.config, lambda w: Linear(w.float().clone()), lambda v: v.float().clone())
    engine = GpuSteps(model.config, weights, "float32", device, graph=device == "cuda")
    return GpuBackend(model.transformer, engine, slots, exact=False)


def request(ids: tuple[int, ...], new: int = 4, **how: Any) -> Request:
    return Request(Prompt("", ids), Options(sampling=Sampling(temperature=0), max_new_tokens=new, **how), 3)


def after(*lengths: int) -> list[tuple[int, ...]]:
    """Prompts that begin alike."""
    return [(*BEGINNING, *gpt2_models.some_ids(n, 400, seed=n)) for n in lengths]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", FOLDERS)
def test_prompts_of_one_turn_read_their_beginning_once(kind: str, device: str) -> None:
    model = rung.load(FOLDERS[kind](), device="cpu", dtype="float32")
    prompts = after(9, 30, 61, 5, 100)
    expected = [model.generate([p], temperature=0, max_new_tokens=4)[0] for p in prompts]
    one = backend(model, device)
    for slot, prompt in enumerate(prompts):
        one.begin(slot, Text(request(prompt, logprobs=True), None))
    found: dict[int, list[int]] = {slot: [] for slot in range(len(prompts))}
    with torch.inference_mode():
        while one._launches or one._sessions.busy or one._waiting:
            for new in one.turn():
                found[new.slot] += new.tokens
    assert [found[slot] for slot in range(len(prompts))] == [list(c.tokens) for c in expected]
    assert one.clock.shared_tokens == 4 * 192
    assert one.clock.passes == 4 and one.clock.padded_tokens < 4 * 256  # the first prompt, and rests of three lengths


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_later_prompt_reads_what_is_new(device: str) -> None:
    model = rung.load(FOLDERS["llama"](), device="cpu", dtype="float32")
    one = backend(model, device)
    engine = BatchEngine(lambda: one, model.tokenizer)
    told = list(after(9)[0])
    for _ in range(3):  # turns of a conversation
        asked = request(tuple(told), 20, logprobs=True)
        (ours,), (theirs,) = together(engine, [asked]), together(model.engine, [asked])
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
        told += [*ours.tokens, *gpt2_models.some_ids(30, 400, seed=len(told))]
    assert one.clock.shared_tokens == 192 + 256  # whole pages of 209 and 259 tokens
    equal = together(engine, [asked])[0]  # the whole prompt is there; one page is read again for its logits
    assert equal.tokens == ours.tokens and equal.logprobs == pytest.approx(ours.logprobs, abs=1e-3)


def test_nothing_is_kept_of_short_prompts_or_where_bits_are_promised() -> None:
    model = rung.load(FOLDERS["llama"](), device="cpu", dtype="float32")
    short, exact = backend(model, "emulator"), backend(model, "emulator")
    exact._exact = True
    together(BatchEngine(lambda: short, None), [request(BEGINNING[:LEAST], 2)])
    together(BatchEngine(lambda: exact, None), [request(p, 2) for p in after(9, 30)])
    assert short._beginnings is exact._beginnings is None
    assert short.clock.shared_tokens == exact.clock.shared_tokens == 0


def test_what_lies_behind_a_prompt_in_memory_is_not_its_own() -> None:
    model = rung.load(FOLDERS["llama"](), device="cpu", dtype="float32")
    one, asked = backend(model, "emulator"), [request(p, 3) for p in after(9, 30, 61)]
    first = [c.tokens for c in together(BatchEngine(lambda: one, None), asked)]
    assert one._beginnings is not None
    for memory in one._beginnings.caches:
        with torch.inference_mode():
            memory.fill_(torch.nan)
    assert [c.tokens for c in together(BatchEngine(lambda: one, None), asked)] == first


class _Pages:
    """Which tokens' keys and values each page has."""

    def __init__(self, engine: GpuSteps) -> None:
        self.kept = Beginnings(engine)
        self.pages: dict[int, tuple[int, ...]] = {}

    def read(self, windows: list[tuple[int, ...]]) -> int:
        """The tokens that are read by themselves."""
        readings, total = self.kept.plan(windows), 0
        for number in sorted({r.after for r in readings}):
            now = [r for r in readings if r.after == number]
            for r in now:
                for at, page in enumerate(r.pages[: r.known]):
                    assert self.pages[page] == r.window[: (at + 1) * 32]
            for r in now:
                total += len(r.rest)
                for at in range(r.found, len(r.pages)):
                    self.pages[r.pages[at]] = r.window[: (at + 1) * 32]
        self.kept.done(readings)
        return total


@pytest.mark.parametrize("room", (64, 640, 4096))
def test_pages_have_what_their_prompts_begin_with(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.models.gpu.beginnings.TOKENS", room)
    model = rung.load(FOLDERS["llama"](), device="cpu", dtype="float32")
    pages, random = _Pages(backend(model, "emulator")._engine), torch.Generator().manual_seed(room)

    def number(most: int) -> int:
        return int(torch.randint(most, (1,), generator=random))

    said: list[tuple[int, ...]] = [BEGINNING]
    for _ in range(60):
        windows = []
        for _ in range(1 + number(6)):
            before = said[number(len(said))]
            more = gpt2_models.some_ids(1 + number(150), 400, seed=number(1 << 30))
            windows.append((*before[: number(len(before) + 1)], *more)[:512])
        read = pages.read(list(dict.fromkeys(windows)))
        assert 0 < read <= sum(map(len, windows))
        said = [*said, *windows][-12:]
    last = (*said[-1][:400], 5)
    pages.read([last])
    if room == 4096 and len(last) > LEAST:  # nothing was given up since
        assert pages.read([last]) <= 32
