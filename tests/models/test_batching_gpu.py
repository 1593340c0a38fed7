"""Slots of the decode engine, its kernels emulated: each text is what it is alone, whoever joins, leaves or moves."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batching import together

import gpt2_models as models
from rung.errors import RungError
from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Request, Text
from rung.models.gpu import launched, session_table
from rung.models.gpu import slots as slots_module
from rung.models.gpu.batched_prefill import PASS, bucket, passes, shapes
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.slots import GpuBackend
from rung.models.load import Model
from rung.models.options import Completion, Options, Prompt
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights

SHAPE = {"n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 400, "n_positions": 32}


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(**SHAPE))


@pytest.fixture(scope="module")
def weights(model: Model) -> Any:
    return read_weights(model.folder, model.config, lambda w: Linear(w.float().clone()), lambda v: v.float().clone())


def backend(
    model: Model, weights: Any, slots: int, dtype: str = "float32", rung: str | None = "dependent_launch"
) -> GpuBackend:
    engine = GpuSteps(model.config, weights, dtype, "emulator", rung=rung, graph=False)
    return GpuBackend(model.transformer, engine, slots, exact=engine.real.name == "f32")


def request(length: int, new: int, sample: int = 0, **how: Any) -> Request:
    options = {name: how.pop(name) for name in list(how) if name in Options.__dataclass_fields__}
    sampling = Sampling(**{"temperature": 0.0, **how})
    return Request(
        Prompt("", tuple(models.some_ids(length, 400, seed=length))),
        Options(sampling=sampling, max_new_tokens=new, **options), seed=11, sample=sample,
    )  # fmt: skip


def on_cpu(model: Model, requests: Request) -> Completion:
    return together(model.engine, [requests])[0]


MANY = [
    request(5, 4, temperature=0.9),
    request(3, 6, logprobs=True, top_logprobs=2),
    request(17, 3, temperature=1.2, top_k=20),
    request(5, 5, temperature=0.9, sample=1),
    request(4, 4, temperature=0.8, repetition_penalty=1.5, frequency_penalty=0.5, logprobs=True),
    request(30, 9),  # no place is left after three
    request(32, 2),
    request(6, 0, prompt_logprobs=2),
    request(6, 2, prompt_logprobs=2),
]


def test_texts_in_slots_are_the_cpus(model: Model, weights: Any) -> None:
    engine = BatchEngine(lambda: backend(model, weights, 3), model.tokenizer)
    for found, requests in zip(together(engine, MANY), MANY, strict=True):
        expected = on_cpu(model, requests)
        assert (found.tokens, found.text, found.finish_reason) == (
            expected.tokens,
            expected.text,
            expected.finish_reason,
        )
        assert (found.logprobs or []) == pytest.approx(expected.logprobs or [], abs=1e-4)
        for ours, theirs in zip(found.prompt_logprobs or [], expected.prompt_logprobs or [], strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4) and ours.top[0][0] == theirs.top[0][0]


def test_a_text_has_the_same_bits_alone_and_among_others(model: Model, weights: Any) -> None:
    requests = [request(n, 4, logprobs=True, temperature=1.0) for n in (4, 9, 6)]
    among = together(BatchEngine(lambda: backend(model, weights, 3), None), requests)
    shared = BatchEngine(lambda: backend(model, weights, 3), None)
    assert [together(shared, [one])[0] for one in requests] == among


def test_equal_prompts_are_read_once_and_continued_apart(model: Model, weights: Any) -> None:
    samples = [request(9, 4, sample, logprobs=True, temperature=1.5) for sample in range(4)]
    changed = request(9, 4, 5, logit_bias=((17, 1000.0),), logprobs=True)
    one, texts = backend(model, weights, 8), [*samples, request(6, 3), changed]
    for slot, asked in enumerate(texts):
        one.begin(slot, Text(asked, None))
    tokens = written(one, dict(enumerate(Text(asked, None) for asked in texts)))
    assert one.clock.passes == 2 and one.clock.padded_tokens == 2 * bucket(9, one.context)
    assert one.clock.prompt_tokens == 5 * 9 + 6
    apart = backend(model, weights, 8)
    alone = [together(BatchEngine(lambda: apart, None), [asked])[0].tokens for asked in texts]
    assert [tokens[slot] for slot in range(len(texts))] == alone
    assert len({tuple(found) for found in alone[:4]}) > 1 and alone[-1] == [17] * 4


@pytest.mark.slow
def test_a_run_of_few_texts_has_a_session_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "OWN", 1)
    model = models.ours(models.saved(**{**SHAPE, "n_positions": 256}))
    weights = read_weights(model.folder, model.config, lambda w: Linear(w.float().clone()), lambda v: v.float().clone())
    one = backend(model, weights, 4)
    for length, reach in ((5, 9), (63, 67), (5, 0)):
        asked = request(length, 4, temperature=1.0)
        own = replace(asked, rows=1, reach=reach)
        assert together(BatchEngine(lambda: one, None), [own])[0].tokens == on_cpu(model, asked).tokens
    assert list(one._sessions.opened) == [(1, 128), (1, 256)]  # the one used last, and one that any text fits into


@pytest.mark.slow
def test_texts_move_into_more_rows_and_back(model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "ROWS", (1, 4))
    one = backend(model, weights, 4)
    one._exact = False  # as in 16 bits, with kernels whose rows are independent
    moved: list[int] = []
    move = one._sessions.move
    monkeypatch.setattr(one._sessions, "move", lambda rows, reach: (moved.append(rows), move(rows, reach))[1])
    requests = [request(5, 27, temperature=1.0, frequency_penalty=0.3), *(request(4 + i, 3) for i in range(3))]
    engine = BatchEngine(lambda: one, None)
    first = engine.submit(requests[0], lambda piece: pieces.append(piece))
    pieces: list[Any] = []
    while len(pieces) < 3 and not first.ended:
        time.sleep(0.01)
    rest = together(engine, requests[1:])
    while not first.ended:
        time.sleep(0.01)
    assert [token for piece in pieces for token in piece.tokens] == on_cpu(model, requests[0]).tokens
    assert [c.tokens for c in rest] == [on_cpu(model, one).tokens for one in requests[1:]]
    assert moved == [1, 4, 1]


def test_stops_are_each_texts_own(model: Model, weights: Any) -> None:
    free = on_cpu(model, request(8, 8))
    stop = free.tokens[3]
    requests = [
        request(8, 8, stop_tokens=(stop,)),
        request(8, 8, stop_tokens=(stop,), min_tokens=6),
        request(8, 8, stop=(free.text[4:6],)),
        request(8, 8),
        request(8, 8, stop_tokens=(free.tokens[0],)),
    ]
    engine = BatchEngine(lambda: backend(model, weights, 3), model.tokenizer)
    for found, one in zip(together(engine, requests), requests, strict=True):
        expected = on_cpu(model, one)
        assert (found.tokens, found.text, found.finish_reason) == (
            expected.tokens,
            expected.text,
            expected.finish_reason,
        )


def test_a_text_slides_on_when_its_context_is_full(model: Model, weights: Any) -> None:
    requests = [request(28, 9, slide=True, temperature=1.0), request(4, 5)]
    found = together(BatchEngine(lambda: backend(model, weights, 2), None), requests)
    assert [c.tokens for c in found] == [on_cpu(model, one).tokens for one in requests]


def test_more_stop_tokens_than_a_step_looks_for_are_refused_by_themselves(model: Model, weights: Any) -> None:
    engine = BatchEngine(lambda: backend(model, weights, 2), None)
    with pytest.raises(RungError, match="stop tokens"):
        together(engine, [request(4, 2, stop_tokens=tuple(range(65)))])
    assert together(engine, [request(4, 2)])[0].tokens == on_cpu(model, request(4, 2)).tokens


def test_a_gpu_behind_a_fork_is_refused_in_one_sentence(model: Model, weights: Any) -> None:
    engine = GpuSteps(model.config, weights, "float32", "emulator", rung="dependent_launch", graph=False)
    engine.device, engine._pid = "cuda", engine._pid + 1
    with pytest.raises(RungError, match="after a fork"):
        engine.few_rows()
    with pytest.raises(RungError, match="after a fork"):
        engine.open(1)


def test_threads_that_write_whole_batches_do_not_meet(model: Model) -> None:
    emulated = models.rung.load(
        model.folder, device="emulator", dtype="float32", plan="best", kernels={"decode": "dependent_launch"}
    )
    emulated.plan.engine._graph = False  # type: ignore[attr-defined]
    prompts = [models.some_ids(n, 400, seed=n) for n in (3, 5, 7, 9)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda p: emulated.generate([p], temperature=0, max_new_tokens=4)[0].tokens, prompts))
    assert found == [model.generate([p], temperature=0, max_new_tokens=4)[0].tokens for p in prompts]
    torch.set_num_threads(2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 1024), max_size=30), st.sampled_from((1, 4, 32)))
def test_passes_read_each_prompt_once_at_no_more_cost_than_alone(lengths: list[int], most: int) -> None:
    found = passes(lengths, 1024, most)
    assert sorted(i for _, _, which in found for i in which) == list(range(len(lengths)))
    for rows, length, which in found:
        assert (rows, length) in shapes(1024, most) and rows <= most
        assert 1 <= len(which) <= rows and all(lengths[i] <= length for i in which)
    cost = sum(PASS + rows * length for rows, length, _ in found)
    assert cost <= sum(PASS + bucket(n, 1024) for n in lengths)


def test_prompts_of_unlike_lengths_are_read_together_where_that_is_less_work() -> None:
    assert passes([500, 20], 1024) == [(1, 512, [0]), (1, 32, [1])]
    assert passes([500, 20, 480], 1024) == [(4, 512, [0, 2, 1])]
    assert passes([500, 20, 480, 400, 300], 1024) == [(4, 512, [0, 2, 3, 4]), (1, 32, [1])]
    assert passes([60, 20, 10], 1024) == [(4, 64, [0, 1, 2])]


def test_a_row_is_free_as_soon_as_the_last_step_of_its_text_is_launched(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(model, weights, 1)
    monkeypatch.setattr(one, "postprocess", lambda wait: [])  # the GPU has done nothing yet
    texts = [Text(request(5, 3), None), Text(request(7, 3), None)]
    for slot, text in enumerate(texts):
        assert one.free_slots == 1
        one.begin(slot, text)
        assert one.free_slots == 0
        with torch.inference_mode():
            one.turn()
    monkeypatch.undo()
    tokens: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, tokens.values())) < 6:
        with torch.inference_mode():
            for fresh in one.turn():
                tokens[fresh.slot] += list(fresh.tokens)
    assert tokens == {slot: on_cpu(model, text.request).tokens for slot, text in enumerate(texts)}


def written(one: GpuBackend, texts: dict[int, Text]) -> dict[int, list[int]]:
    """The tokens that each slot's text gets from here to its end."""
    tokens: dict[int, list[int]] = {slot: [] for slot in texts}
    with torch.inference_mode():
        while one._launches or one._sessions.busy or one._waiting:
            for fresh in one.turn():
                tokens[fresh.slot] += list(fresh.tokens)
    return tokens


def test_a_full_text_may_be_seen_after_the_others_moved_into_fewer_rows(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "ROWS", (1, 4))
    one = backend(model, weights, 4)
    one._exact = False
    monkeypatch.setattr(one, "postprocess", lambda wait: [])
    texts = {slot: Text(request(n, 20), None) for slot, n in enumerate([29, 29, 29, 5])}
    with torch.inference_mode():
        for slot, text in texts.items():
            one.begin(slot, text)
            if slot >= 2:  # the last text comes later than the three that fill their contexts
                one._since = 1 << 20
                one.turn()
        while len(one._sessions.current.rows if one._sessions.current else ()) != 1:
            one.turn()
            assert len(one._launches) < 20
    monkeypatch.undo()
    assert written(one, texts) == {slot: on_cpu(model, text.request).tokens for slot, text in texts.items()}


def test_a_text_that_leaves_and_comes_back_gets_no_tokens_of_before(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(model, weights, 1)
    monkeypatch.setattr(one, "postprocess", lambda wait: [])
    text = Text(request(5, 9), None)
    one.begin(0, text)
    with torch.inference_mode():
        one.turn()
    assert one._launches
    one.end(0)
    one.begin(0, text)  # as where drafts are tried and given up
    monkeypatch.undo()
    assert written(one, {0: text}) == {0: on_cpu(model, text.request).tokens}


@pytest.mark.parametrize("ahead", [7, 20])
def test_steps_are_launched_before_those_ahead_are_done(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    one = backend(model, weights, 1)
    one._per_step = slots_module.AHEAD_SECONDS / (ahead + 0.5)
    monkeypatch.setattr(one, "postprocess", lambda wait: [])
    one.begin(0, Text(request(3, 28), None))
    with torch.inference_mode():
        one.turn()
        one._launches.clear()
        one._sessions.open(1).session._published -= ahead // 2  # half of them are left
        before = one.clock.steps
        one._launch()
    assert ahead // 2 < ahead // 2 + one.clock.steps - before <= ahead


@pytest.mark.parametrize("texts", [4, 5])
def test_tokens_of_many_texts_are_taken_launch_by_launch(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    monkeypatch.setattr(slots_module, "FEW_TEXTS", 4)
    session = backend(model, weights, 8)._sessions.open(8).session
    session.enqueued, session._published[0] = 8, 3  # the GPU has ended three of eight steps
    row = launched.RunningText(0, Text(request(3, 9), None), slots_module._draw(Text(request(3, 9), None), 300), 3, 0)
    note = launched.StepLaunch(session, 0, 8, [row] * texts + [None] * (8 - texts), texts > 4)
    early = note.take()
    session._published[0] = 8
    whole = note.take()
    assert (early is None) == (texts > 4)
    assert whole is not None and note.steps == 0
    assert {len(tokens) for _, tokens, *_ in whole} == {8 if early is None else 5}


def test_prompts_are_gathered_while_rows_are_busy(model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = backend(model, weights, 8)
    monkeypatch.setattr(slots_module, "MOST_AHEAD", 2)
    one._per_step = 1e-9
    for slot in range(3):
        one.begin(slot, Text(request(5, 20, slot), None))
    with torch.inference_mode():
        one.turn()
        one.begin(3, Text(request(9, 20), None))
        one.turn()
        assert len(one._waiting) == 1  # steps have hardly begun since the last prompts
        one._per_step = 1.0
        one.turn()
        assert not one._waiting


def test_a_warm_backend_has_what_any_text_needs(model: Model, weights: Any) -> None:
    one = backend(model, weights, 2)
    one.warm()
    sessions, readers = dict(one._sessions.opened), dict(one._readers)
    assert {(1, 16, None), (1, 32, None)} == set(readers)
    requests = [request(5, 4), request(30, 2)]
    assert [c.tokens for c in together(BatchEngine(lambda: one, None), requests)] == [
        on_cpu(model, r).tokens for r in requests
    ]
    assert (one._sessions.opened, one._readers) == (sessions, readers)


# ---- on a GPU ---------------------------------------------------------------------------------------------------------


on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GPU_SHAPE = {"n_embd": 128, "n_head": 2, "n_layer": 2, "vocab_size": 400, "n_positions": 256}


def gpu_backend(dtype: str, slots: int) -> GpuBackend:
    gpu_model = models.rung.load(models.saved(**GPU_SHAPE), device="cuda", dtype=dtype)
    one = backend_of(gpu_model.transformer, slots)
    assert isinstance(one, GpuBackend)
    one.warm()
    return one


@pytest.mark.parametrize("marks", [pytest.param(None, marks=on_gpu)])
def test_on_a_gpu_a_text_has_the_same_bits_alone_and_among_others(marks: None) -> None:
    one = gpu_backend("float32", 8)
    requests = [request(3 + 7 * i, 20 + i, sample=i, temperature=1.0, logprobs=i % 3 == 0) for i in range(30)]
    requests += [request(5, 9, frequency_penalty=0.5, temperature=0.7), request(90, 166, stop_tokens=(7,))]
    shared = BatchEngine(lambda: one, None)
    among = together(shared, requests)
    assert [together(shared, [each])[0] for each in requests] == among


def admitted_without_waiting(one: GpuBackend, texts: list[Text]) -> set[int]:
    """The slots that wrote tokens, by turns that do not wait for the GPU."""
    found: set[int] = set()
    end = time.monotonic() + 30

    def turn() -> None:
        one.run(one.schedule()[1], time.perf_counter())
        found.update(new.slot for new in one.postprocess(wait=False))

    with torch.inference_mode():
        for slot, text in enumerate(texts):
            one.begin(slot, text)
            turn()
        while len(found) < len(texts) and time.monotonic() < end:  # prompts are gathered while others write
            turn()
    return found


def test_all_texts_are_admitted_while_others_write(model: Model, weights: Any) -> None:
    texts = [Text(request(3 + i, 9, sample=i), None) for i in range(6)]
    one = backend(model, weights, 6)
    one._exact = False
    assert admitted_without_waiting(one, texts) == set(range(6))


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=on_gpu)])
def test_on_a_gpu_nothing_is_waited_for_while_texts_are_admitted(dtype: str) -> None:
    one = gpu_backend(dtype, 16)
    texts = [Text(request(5 + 9 * i, 40, sample=i, temperature=float(i % 2)), None) for i in range(16)]
    torch.cuda.set_sync_debug_mode("error")  # type: ignore[no-untyped-call]
    try:
        written = admitted_without_waiting(one, texts)
    finally:
        torch.cuda.set_sync_debug_mode("default")  # type: ignore[no-untyped-call]
    assert written == set(range(16))


def test_step_counters_are_reset_also_while_texts_keep_coming(
    model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "LONGEST", 6)
    one = backend(model, weights, 2)
    requests = [request(3 + i, 5) for i in range(6)]
    assert together(BatchEngine(lambda: one, model.tokenizer), requests) == [on_cpu(model, r) for r in requests]
    assert one._sessions.opened and all(bank.session.enqueued <= 6 + 5 for bank in one._sessions.opened.values())


def test_a_bias_is_added_in_each_step(model: Model, weights: Any) -> None:
    requests = [
        request(5, 4, logit_bias=((17, 1000.0),)), request(4, 4), request(5, 4, temperature=0.9, logit_bias=((3, 2.0),))
    ]  # fmt: skip
    found = together(BatchEngine(lambda: backend(model, weights, 4), model.tokenizer), requests)
    assert [c.tokens for c in found] == [on_cpu(model, r).tokens for r in requests]
    assert found[0].tokens == [17] * 4


def test_a_prompt_whose_logits_are_not_finite_is_an_error(model: Model, weights: Any) -> None:
    broken = copy(weights)
    broken.ln_f = replace(weights.ln_f, weight=torch.full_like(weights.ln_f.weight, 3e38))
    with pytest.raises(RungError, match="finite"):
        together(BatchEngine(lambda: backend(model, broken, 2), model.tokenizer), [request(5, 3)])


def test_what_draws_tokens_is_compiled_for_the_first_text_that_needs_it(model: Model, weights: Any) -> None:
    one = backend(model, weights, 2)
    engine = BatchEngine(lambda: one, None)
    for temperature, prepared in ((0.0, False), (1.0, True)):
        asked = request(5, 3, temperature=temperature)
        assert together(engine, [asked])[0].tokens == on_cpu(model, asked).tokens
        choices = [*(first.choice for first in one._firsts.values()), *(b.session.choice for b in one._sessions.opened.values())]
        assert all((choice._sample is not None) == prepared for choice in choices)


def test_a_text_whose_logits_are_no_numbers_ends_alone(model: Model, weights: Any) -> None:
    one = backend(model, weights, 3)
    one._engine.operands["wpe"][20:] = torch.nan  # only the longest text gets there
    asked = [request(n, 6, logprobs=True) for n in (18, 4, 6)]
    texts = {slot: Text(r, None) for slot, r in enumerate(asked)}
    for slot, text in texts.items():
        one.begin(slot, text)
    errors: dict[int, str] = {}
    counts = dict.fromkeys(texts, 0)
    with torch.inference_mode():
        while one._launches or one._sessions.busy or one._waiting:
            for new in one.turn():
                if new.error is not None and new.slot not in errors:
                    errors[new.slot] = new.error
                    one.end(new.slot)
                counts[new.slot] += len(new.tokens)
    assert list(errors) == [0] and (counts[1], counts[2]) == (6, 6)
