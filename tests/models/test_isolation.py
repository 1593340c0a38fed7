"""What one text asks, samples or raises ends that text alone; torch's global state of the caller changes nothing."""

from __future__ import annotations

import ast
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt2_models as models
import rung
from rung.errors import RungError
from rung.models.batching.engine import BatchEngine, Stream
from rung.models.batching.text import Piece, Request
from rung.models.load import Model
from rung.models.options import Options, Prompt
from rung.models.sampling import Sampling

V, CONTEXT = 400, 256
SOURCE = Path(__file__).parents[2] / "src"
FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "arange", "rand", "randn", "linspace", "eye")


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(n_positions=CONTEXT))


def request_of(model: Model, ids: tuple[int, ...] = (5, 6), **how: Any) -> Request:
    sampling = Sampling(**{"temperature": 1.0, "top_p": 1.0, **how.pop("sampling", {})})
    return Request(Prompt("", ids), Options(sampling=sampling, **{"max_new_tokens": 30, **how}), seed=3)


def among(model: Model, poison: list[Request], others: int = 3) -> tuple[list[Piece], list[list[int]]]:
    """The last pieces of poison requests, and the tokens of others that run beside them."""
    stream = Stream(model.engine)
    for key in range(others):
        stream.submit(key, request_of(model, (7, 8, key), max_new_tokens=40))
    for key, request in enumerate(poison, others):
        stream.submit(key, request)
    tokens: dict[int, list[int]] = {key: [] for key in range(others)}
    ends: dict[int, Piece] = {}
    for key, piece in stream:
        if piece.last:
            ends[key] = piece
        if key < others:
            tokens[key] += [getattr(token, "token", token) for token in piece.tokens]
    assert all(ends[key].error is None for key in range(others)), ends[0].error
    return [ends[key] for key in range(others, others + len(poison))], list(tokens.values())


# ---- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 2.9e-39, 1e-7])
def test_a_tiny_temperature_is_greedy_and_ends_no_other_text(model: Model, temperature: float) -> None:
    _, alone = among(model, [])
    (end,), tokens = among(model, [request_of(model, sampling={"temperature": temperature})])
    assert end.error is None and tokens == alone
    how: dict[str, Any] = {"max_new_tokens": 20, "stop_tokens": ()}
    greedy = model.generate([[5, 6]], temperature=0, **how)[0].tokens
    assert model.generate([[5, 6]], temperature=temperature, **how)[0].tokens == greedy


@pytest.mark.parametrize("stops", [(400,), (100_000,), (-1,), (3, 400)])
def test_stop_tokens_outside_the_vocabulary_end_no_other_text(model: Model, stops: tuple[int, ...]) -> None:
    _, alone = among(model, [])
    (end,), tokens = among(model, [request_of(model, stop_tokens=stops, min_tokens=1)])
    assert tokens == alone and end.last
    assert model.generate([[5]], stop_tokens=stops, min_tokens=1, max_new_tokens=3, seed=1)[0].finish_reason


def test_an_error_while_a_text_begins_or_its_token_is_chosen_ends_that_text_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.models.sampling import Penalties

    real_init, real_apply = Penalties.__init__, Penalties.apply

    def broken_init(self: Any, sampling: Sampling, *more: Any) -> None:
        if sampling.repetition_penalty == 1.5:
            raise ValueError("not this one")
        real_init(self, sampling, *more)

    def broken_apply(self: Any, logits: torch.Tensor) -> torch.Tensor:
        if self.sampling.repetition_penalty == 1.7:
            raise ZeroDivisionError("nor this one")
        return real_apply(self, logits)

    monkeypatch.setattr(Penalties, "__init__", broken_init)
    monkeypatch.setattr(Penalties, "apply", broken_apply)
    poison = [request_of(model, sampling={"repetition_penalty": p}) for p in (1.5, 1.7)]
    _, alone = among(model, [])
    ends, tokens = among(model, poison)
    assert tokens == alone
    assert [bool(end.error) for end in ends] == [True, True]
    assert model.engine.load == (0, 0)


def test_prompts_without_a_seed_have_independent_texts(model: Model) -> None:
    how: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 24, "stop_tokens": ()}
    found = model.generate([[5, 6, 7]] * 4, num_samples=2, **how)
    assert len({tuple(c.tokens) for c in found}) == 8
    for c in found:  # each can be written again
        again = model.generate([[5, 6, 7]], num_samples=2, seed=c.seed, **how)[c.sample]
        assert again.tokens == c.tokens
    seeded = model.generate([[5, 6, 7]] * 2, seed=9, **how)
    assert seeded[0].tokens == seeded[1].tokens  # with a seed: common random numbers


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(temperature: float, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in models.saved(n_positions=CONTEXT).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.ln_f.weight"][:] = 3e38  # finite, but the logits are not
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    broken = rung.load(tmp_path, dtype="float32", device="cpu")
    with pytest.raises(RungError, match="finite"):
        broken.generate([[5, 6]], temperature=temperature, max_new_tokens=4)
    with pytest.raises(RungError, match="finite"):
        broken.generate([[5, 6]], temperature=temperature, max_new_tokens=4, logprobs=True)


@pytest.mark.parametrize(
    "how",
    [
        {"stop": None}, {"stop": 5}, {"stop": [None]}, {"stop_tokens": ["a"]}, {"stop_tokens": 5.0}, {"logprobs": "no"},
        {"echo": 1}, {"temperature": True}, {"seed": True}, {"max_new_tokens": 2.0}, {"logit_bias": {"a": 1}},
        {"logit_bias": {400: 1.0}}, {"logit_bias": {5: float("nan")}}, {"num_samples": "2"},
    ],
)  # fmt: skip
def test_options_of_a_wrong_type_are_an_error_in_one_sentence(model: Model, how: dict[str, Any]) -> None:
    with pytest.raises(RungError):
        model.generate([[5]], **{"max_new_tokens": 2, **how})


def test_prompts_and_texts_of_a_wrong_type_are_an_error_in_one_sentence(model: Model) -> None:
    for prompts in ([[5.0, 6.0]], [5, 6], [b"a"], [[None]], torch.tensor([5, 6])):
        with pytest.raises(RungError):
            model.generate(prompts, max_new_tokens=2)
    assert model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, seed=1)[0].prompt_tokens == 2
    for texts, how in ((None, {}), (["a b c"], {"stride": 1.5}), (["a b c"], {"context": "8"})):
        with pytest.raises(RungError):
            model.score(texts, **how)
    with pytest.raises(RungError):
        model.embed([])


def test_a_model_is_neither_copied_nor_pickled(model: Model) -> None:
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RungError):
            attempt(model)


def test_a_bias_forbids_and_forces_tokens(model: Model) -> None:
    how: dict[str, Any] = {"max_new_tokens": 5, "stop_tokens": ()}
    assert model.generate([[5]], logit_bias={17: 1000}, seed=1, **how)[0].tokens == [17] * 5
    greedy = model.generate([[5]], temperature=0, **how)[0].tokens[0]
    assert model.generate([[5]], temperature=0, logit_bias={greedy: -1000}, **how)[0].tokens[0] != greedy


def test_samples_share_the_prefill_of_a_prompt_whose_log_probabilities_are_asked_for(model: Model) -> None:
    ids = models.some_ids(100, V)
    run = model.run([ids], num_samples=5, prompt_logprobs=1, max_new_tokens=1, seed=2)
    for _ in run:
        pass
    assert run.stats.prompt_tokens == len(ids)
    first, *others = [c.prompt_logprobs for c in run.completions]
    assert first is not None and len(first) == len(ids) and all(other == first for other in others)


def test_a_shared_beginning_is_read_once_and_changes_no_bit(model: Model) -> None:
    beginning = models.some_ids(200, V, seed=3)
    prompts = [[*beginning, *models.some_ids(20, V, seed=i)] for i in range(4)]
    how: dict[str, Any] = {"max_new_tokens": 6, "seed": 1, "logprobs": True}
    fresh = [BatchEngine(model.engine._backend_of, model.tokenizer) for _ in prompts]
    expected = []
    for engine, prompt in zip(fresh, prompts, strict=True):
        run = model.run([prompt], **how)
        run._engine = engine
        list(run)
        expected.append(run.completions[0])
    one = fresh[0]
    for prompt, alone in zip(prompts[1:], expected[1:], strict=True):
        before = one.clock.prompt_tokens
        run = model.run([prompt], **how)
        run._engine = one
        list(run)
        assert run.completions[0] == alone
        assert one.clock.prompt_tokens - before == len(prompt) - 200


# ---- the engine's thread --------------------------------------------------------------------------------------------


def test_a_listener_that_raises_stops_neither_the_thread_nor_other_texts(model: Model) -> None:
    one = BatchEngine(model.engine._backend_of, model.tokenizer)
    for _ in range(4):
        calls = []

        def listener(piece: Piece, calls: list[Piece] = calls) -> None:
            calls.append(piece)
            raise KeyError("a listener's mistake")

        stream = Stream(one)
        stream.submit(0, request_of(model))
        one.submit(request_of(model), listener)
        assert [piece.error for _, piece in stream if piece.last] == [None]
        assert len(calls) >= 1
    until = time.monotonic() + 5
    while one.load != (0, 0) and time.monotonic() < until:
        time.sleep(0.01)
    assert one.load == (0, 0)


def test_ctrl_c_inside_generate_raises(model: Model) -> None:
    # A process that a shell started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        until = time.monotonic() + 10
        while model.engine.load[0] == 0 and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10):
                model.generate([[5]] * 8, max_new_tokens=200, stop_tokens=())
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert model.generate([[5]], max_new_tokens=3, stop_tokens=())[0].finish_reason == "length"


# ---- the caller's torch ---------------------------------------------------------------------------------------------

STATES = {
    "bfloat16": "torch.set_default_dtype(torch.bfloat16)",
    "float64": "torch.set_default_dtype(torch.float64)",
    "meta": "torch.set_default_device('meta')",
    "autocast": "torch.autocast('cpu', torch.bfloat16).__enter__()",
    "grad": "torch.set_grad_enabled(True)",
    "inference": "torch.inference_mode().__enter__()",
    "threads": "torch.set_num_threads(3)",
}
PROGRAM = """
import json, sys, torch, rung
def figures(model):
    ids, found = list(range(5, 45)), []
    for how in ({"temperature": 0}, {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.2, "top_k": 40},
                {"logprobs": True, "prompt_logprobs": 2, "seed": 5}):
        for c in model.generate([ids, ids[:3]], max_new_tokens=12, stop_tokens=(), **how):
            found.append([c.tokens, c.logprobs, str(c.prompt_logprobs)])
    found += [s.as_json() for s in (model.score("Once upon a time there was a king"), *model.score([ids]))]
    found.append(model.logits(ids).detach().to("cpu", torch.float64).sum().item())
    found.append(model.embed("Once upon a time").detach().to("cpu", torch.float64).sum().item())
    return json.dumps(found)
def state():
    return (torch.get_default_dtype(), str(torch.get_default_device()), torch.get_num_threads(),
            torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
first = rung.load(sys.argv[2], dtype="float32", device="cpu")
expected = figures(first)
exec(sys.argv[1])
before = state()
assert figures(first) == expected, "a model that was loaded before"
assert figures(rung.load(sys.argv[2], dtype="float32", device="cpu")) == expected, "a model that is loaded after"
assert state() == before, (before, state())
assert torch.is_inference_mode_enabled() or not first.logits([5, 6]).is_inference()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STATES))
def test_torchs_global_state_changes_nothing_and_is_left_as_it_was(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, STATES[name], str(models.saved(n_positions=CONTEXT))],
        capture_output=True, text=True, timeout=120, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


def test_every_tensor_of_the_models_package_names_its_dtype_and_device() -> None:
    """Native code and kernels write into these by address: a dtype or device from torch's global state would be a
    buffer of another size, or at no address."""
    found = []
    for file in sorted((SOURCE / "rung" / "models").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            if not (isinstance(owner, ast.Name) and owner.id == "torch" and node.func.attr in FACTORIES):
                continue
            given = {keyword.arg for keyword in node.keywords}
            if not {"dtype", "device"} <= given and None not in given:
                found.append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert not found


def test_a_model_is_freed_without_the_collector_which_has_little_to_walk_after_the_first_texts() -> None:
    one = rung.load(models.saved(n_positions=CONTEXT), dtype="float32", device="cpu")
    junk = [[number] for number in range(50_000)]  # as modules that are imported by the first text
    one.generate([[5, 6]] * 3, max_new_tokens=3)
    end = time.monotonic() + 20
    while len(gc.get_objects()) > 25_000 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(gc.get_objects()) < 25_000 < gc.get_freeze_count()
    held = [weakref.ref(part) for part in (one, one.engine, one.engine._backend, one.transformer)]
    held += [weakref.ref(one.transformer.weights.head.weight)]
    gc.disable()
    try:
        del one, junk
        while any(ref() is not None for ref in held) and time.monotonic() < end:
            time.sleep(0.05)
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()
