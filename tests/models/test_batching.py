"""Texts through one engine: each is what it is alone, bit for bit, whoever else joins, leaves or fails."""

from __future__ import annotations

import asyncio
import cProfile
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import gpt2_models as models
import rung
from gpuless.base.processors import gpu_named
from rung.errors import RungError
from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine, Stream
from rung.models.batching.text import Backend, NewTokens, Piece, Request, Text, Transcript
from rung.models.generate import Run
from rung.models.load import Model
from rung.models.options import Completion, Options, Prompt
from rung.models.sampling import Sampling

V, CONTEXT = 400, 256


def loaded(dtype: str = "float32") -> Model:
    return models.ours(models.saved(n_positions=CONTEXT), dtype)


@pytest.fixture(scope="module")
def model() -> Model:
    return loaded()


@cache
def without_compiler() -> Model:
    plain = rung.load(models.saved(n_positions=CONTEXT), dtype="float32", device="cpu")
    plain.transformer.service = replace(plain.transformer.service, native=None)
    return plain


def engine(model: Model, slots: int) -> BatchEngine:
    return BatchEngine(lambda: backend_of(model.transformer, slots), model.tokenizer)


def some_request(dice: random.Random, prompts: list[tuple[int, ...]]) -> Request:
    """Any options at all, over a few prompts, short, long, and shared by several."""
    sampling = Sampling(
        temperature=dice.choice([0.0, 0.7, 1.3]),
        top_k=dice.choice([None, 5, 60]),
        top_p=dice.choice([1.0, 0.9]),
        min_p=dice.choice([0.0, 0.02]),
        repetition_penalty=dice.choice([1.0, 1.3]),
        frequency_penalty=dice.choice([0.0, 0.4]),
    )
    options = Options(
        sampling=sampling,
        max_new_tokens=dice.choice([1, 3, 12, 30]),
        min_tokens=dice.choice([0, 4]),
        stop=dice.choice([(), ("e",), (" the", "zz")]),
        stop_tokens=dice.choice([(), (17, 250), tuple(range(0, 400, 20))]),
        slide=dice.random() < 0.2,
        logprobs=True,
        top_logprobs=dice.choice([0, 3]),
        prompt_logprobs=dice.choice([None, None, 2]),
        priority=dice.choice([0, 0, 1]),
    )
    return Request(Prompt("", dice.choice(prompts)), options, seed=dice.randrange(100), sample=dice.randrange(3))


def alone(model: Model, request: Request) -> Completion:
    return together(engine(model, 1), [request])[0]


def together(engine: BatchEngine, requests: list[Request]) -> list[Completion]:
    stream, texts = Stream(engine), [Transcript(r) for r in requests]
    for key, request in enumerate(requests):
        stream.submit(key, request)
    for key, piece in stream:
        texts[key].add(piece)
    return [text.completion() for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float32 without a compiler", "bfloat16", "int8"])
def test_texts_and_log_probabilities_are_those_of_each_alone(dtype: str) -> None:
    model = without_compiler() if "without" in dtype else loaded(dtype)
    dice = random.Random(dtype)
    prompts = [tuple(models.some_ids(n, V, seed=n)) for n in (1, 2, 7, 9, 40, 129, 200, 256)]
    requests = [some_request(dice, prompts) for _ in range(40)]
    expected = [alone(model, request) for request in requests]
    assert len({c.finish_reason for c in expected}) == 3 and len({len(c.tokens) for c in expected}) > 4
    for slots in (3, 16):
        order = list(range(len(requests)))
        dice.shuffle(order)
        found = together(engine(model, slots), [requests[i] for i in order])
        for i, completion in zip(order, found, strict=True):
            assert completion == expected[i]  # floats included: to the last bit


def test_texts_that_come_and_go_at_random_times_are_those_of_each_alone(model: Model) -> None:
    dice = random.Random(7)
    prompts = [tuple(models.some_ids(n, V, seed=n)) for n in (3, 50, 140)]
    requests = [some_request(dice, prompts) for _ in range(24)]
    expected = [alone(model, request) for request in requests]
    shared, found = engine(model, 4), {}
    delays = [dice.random() * 0.03 for _ in requests]
    left = [dice.random() < 0.3 for _ in requests]

    def one(i: int) -> None:
        time.sleep(delays[i])
        stream, text = Stream(shared), Transcript(requests[i])
        stream.submit(0, requests[i])
        for _, piece in stream:
            text.add(piece)
            if left[i]:
                stream.cancel()
        found[i] = text.completion()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, range(24)))
    for i, completion in found.items():
        if completion.finish_reason == "interrupted":
            assert left[i] and completion.tokens == expected[i].tokens[: len(completion.tokens)]
        else:
            assert completion == expected[i]
    assert sum(c.finish_reason != "interrupted" for c in found.values()) >= left.count(False)


def test_eight_threads_write_what_one_writes(model: Model) -> None:
    prompts = [f"{word} upon a time" for word in ("Once", "Twice", "A wolf", "The pig")] * 8
    how: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0}
    expected = [model.generate(p, seed=i, **how).text for i, p in enumerate(prompts)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: model.generate(prompts[i], seed=i, **how).text, range(len(prompts))))
    assert found == expected


def a_thousand(of: Model, threads: int = 8, count: int = 1000) -> list[str]:
    """Texts of different lengths, sampled with seeds of their own."""
    prompts = [models.some_ids(1 + i % 17, V, seed=i) for i in range(count)]

    def one(i: int) -> str:
        (text,) = of.generate([prompts[i]], seed=i, temperature=1.0, max_new_tokens=1 + i % 7, stop_tokens=())
        return text.text

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "count"), [("float32", 1000), ("bfloat16", 200), ("int8", 200)])
def test_a_thousand_texts_of_eight_threads_are_each_as_alone(dtype: str, count: int) -> None:
    alone = a_thousand(loaded(dtype), 1, count)
    assert len(set(alone)) > count // 3
    began = time.monotonic()
    assert a_thousand(loaded(dtype), 8, count) == alone
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_behind_a_fork_eight_threads_write_as_before(model: Model) -> None:
    expected = a_thousand(model, count=64)  # whose threads the child does not have

    def child() -> bytes:
        return b"yes" if a_thousand(model, count=64) == expected else b"no"

    assert in_a_fork(child) == b"yes"
    assert a_thousand(model, count=64) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_thousand_texts_of_eight_threads_are_each_as_alone() -> None:
    on_gpu = rung.load(models.saved(n_positions=CONTEXT), dtype="float32", device="cuda")
    assert a_thousand(on_gpu) == a_thousand(on_gpu, threads=1)


def test_two_streams_in_one_thread_are_two_texts(model: Model) -> None:
    how: dict[str, Any] = {"max_new_tokens": 25, "temperature": 1.0, "seed": 3}
    streams = [model.stream(p, **how) for p in ("Once upon", "The wolf")]
    texts = ["", ""]
    for _ in range(40):
        for i, stream in enumerate(streams):
            texts[i] += next(stream, "")
    assert texts == [c.text for c in model.generate(["Once upon", "The wolf"], **how)]


def test_log_probabilities_of_a_prompt_are_the_models(model: Model) -> None:
    ids = models.some_ids(150, V)
    (completion,) = model.generate([ids], max_new_tokens=1, prompt_logprobs=4, top_logprobs=4, temperature=0)
    logprobs = completion.prompt_logprobs
    assert logprobs is not None and logprobs[0] is None and len(logprobs) == len(ids)
    expected = model.logits(ids)[:-1].log_softmax(-1)
    for position, (chosen, row) in enumerate(zip(logprobs[1:], expected, strict=True), 1):
        assert chosen is not None and chosen.token == ids[position]
        assert chosen.logprob == pytest.approx(float(row[ids[position]]), abs=1e-4)
        assert [p for _, p in chosen.top] == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
    assert completion.top_logprobs is not None and completion.top_logprobs[0][0][0] == completion.tokens[0]


def test_a_likeliest_token_has_the_float_of_the_likeliest(model: Model) -> None:
    greedy = model.generate([models.some_ids(20, V)], max_new_tokens=12, temperature=0)[0].tokens
    ids = [*models.some_ids(20, V), *greedy]
    (completion,) = model.generate([ids], max_new_tokens=0, prompt_logprobs=1)
    assert completion.tokens == [] and completion.finish_reason == "length"
    logprobs = completion.prompt_logprobs
    assert logprobs is not None
    assert all(chosen is not None and chosen.logprob == chosen.top[0][1] for chosen in logprobs[20:])


def test_no_stop_token_is_chosen_before_the_least_number_of_tokens(model: Model) -> None:
    everything = tuple(range(0, V, 2))
    for seed in range(5):
        how: dict[str, Any] = {"seed": seed, "temperature": 1.0, "max_new_tokens": 30, "stop_tokens": everything}
        (completion,) = model.generate([[5]], min_tokens=9, **how)
        assert len(completion.tokens) >= 9 and all(t % 2 for t in completion.tokens)
        assert len(model.generate([[5]], **how)[0].tokens) < 9


# ---- slots, order, cancellation -------------------------------------------------------------------------------------


class Counting(Backend):
    """Gives token 1 to every slot in each turn, and waits for a signal to continue."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots, self.context, self.held, self.begun = slots, CONTEXT, {}, []
        self.gate = threading.Semaphore(0)
        self.held: dict[int, Text]
        self.begun: list[int]
        self.turns: list[list[int]] = []

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.held)

    def begin(self, slot: int, text: Text) -> None:
        assert slot not in self.held
        self.held[slot] = text
        self.begun.append(text.request.seed)

    def turn(self) -> list[NewTokens]:
        self.gate.acquire()
        self.turns.append(list(self.held))
        return [NewTokens(slot, [1]) for slot in self.held]

    def end(self, slot: int) -> None:
        del self.held[slot]


@pytest.mark.parametrize("texts", [4, 60])
def test_a_token_costs_the_reader_the_same_however_many_texts_there_are(model: Model, texts: int) -> None:
    backend = Counting(texts)
    backend.gate.release(20)
    options = Options(sampling=Sampling(temperature=0), max_new_tokens=20, stop_tokens=())
    prompts = [Prompt("", (1,))] * texts
    run = Run(model.transformer, None, prompts, options, BatchEngine(lambda: backend, None))
    profile = cProfile.Profile()
    pieces = iter(run)
    next(pieces)
    profile.enable()
    for _ in pieces:
        pass
    profile.disable()
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls / (20 * texts) < 30
    assert [len(done.tokens) for done in run.completions] == [20] * texts
    assert len({len(turn) for turn in backend.turns}) == 1, "all begin in one turn"


def request_of(number: int, tokens: int = 1, priority: int = 0) -> Request:
    options = Options(sampling=Sampling(temperature=0), max_new_tokens=tokens, priority=priority)
    return Request(Prompt("", (1,)), options, seed=number)


def test_lower_priorities_are_admitted_first_and_equals_in_order() -> None:
    backend = Counting(1)
    one = BatchEngine(lambda: backend, None)
    stream = Stream(one)
    stream.submit(0, request_of(0))
    while not backend.begun:
        time.sleep(0.001)
    for number, priority in ((1, 5), (2, 0), (3, 5), (4, -1)):
        stream.submit(number, request_of(number, priority=priority))
    for _ in range(5):
        backend.gate.release()
    assert [key for key, _ in stream] == [0, 4, 2, 1, 3]


def test_a_cancelled_text_frees_its_slot_within_a_step() -> None:
    backend = Counting(1)
    one = BatchEngine(lambda: backend, None)
    pieces: list[Piece] = []
    first = one.submit(request_of(0, tokens=100), pieces.append)
    backend.gate.release(3)
    while len(pieces) < 3:
        time.sleep(0.001)
    done = threading.Event()
    one.submit(request_of(1), lambda piece: done.set())
    first.cancel()
    backend.gate.release(2)  # the step that was under way, and the next one's
    assert done.wait(5)
    assert pieces[-1].reason == "interrupted" and sum(len(p.tokens) for p in pieces) <= 4
    assert backend.begun == [0, 1] and one.load == (0, 0)


def test_a_text_that_waits_can_be_cancelled() -> None:
    backend = Counting(1)
    one = BatchEngine(lambda: backend, None)
    stream = Stream(one)
    stream.submit(0, request_of(0, tokens=2))
    pieces: list[Piece] = []
    waiting = one.submit(request_of(1), pieces.append)
    waiting.cancel()
    backend.gate.release(2)
    assert [piece.reason for _, piece in stream] == [None, "length"]
    assert [piece.reason for piece in pieces] == ["interrupted"] and backend.begun == [0]


def test_an_engine_that_fails_says_so_to_everyone_and_goes_on(model: Model) -> None:
    made: list[Backend] = []

    class Failing(Counting):
        def turn(self) -> list[NewTokens]:
            if len(made) == 1 and len(self.held) == 2:
                raise MemoryError("no more")
            if len(made) == 1:
                return []  # the second request may come later
            return [NewTokens(slot, [1]) for slot in self.held]

    def make() -> Backend:
        made.append(Failing(2))
        return made[-1]

    one = BatchEngine(make, None)
    stream = Stream(one)
    for number in range(3):
        stream.submit(number, request_of(number, tokens=3))
    ends = {key: piece for key, piece in stream if piece.last}
    assert "MemoryError: no more" in (ends[0].error or "") and ends[1].error == ends[0].error
    assert ends[2].reason == "length" and len(made) == 2


@pytest.mark.parametrize(("error", "others"), [(RungError, "length"), (ValueError, "length")])
def test_texts_admitted_with_one_that_cannot_begin_go_on(
    error: type[Exception], others: str | None
) -> None:
    class Refusing(Counting):
        def begin(self, slot: int, text: Text) -> None:
            if text.request.seed == 1:
                raise error("not this one")
            super().begin(slot, text)

        def turn(self) -> list[NewTokens]:
            self.gate.release()
            return super().turn()

    submitted = threading.Event()

    def make() -> Backend:
        submitted.wait()
        return Refusing(4)

    stream = Stream(BatchEngine(make, None))
    for number in range(4):
        stream.submit(number, request_of(number))
    submitted.set()
    ends = {key: piece for key, piece in stream if piece.last}
    assert set(ends) == set(range(4)) and "not this one" in (ends[1].error or "")
    assert {ends[key].reason for key in (0, 2, 3)} == {others}


@pytest.mark.parametrize(("visible", "names"), [("", ["0", "1"]), ("4,5", ["4", "5"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])])
def test_a_worker_sees_a_gpu_that_its_parent_may_use(visible: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu_named(index) for index in range(2)] == names


def test_a_backend_that_cannot_be_made_is_an_error_in_one_sentence(model: Model) -> None:
    def make() -> Backend:
        raise RungError("there is no memory for keys and values; use a smaller model.")

    with pytest.raises(RungError, match="no memory for keys"):
        together(BatchEngine(make, None), [request_of(0)])


@pytest.mark.parametrize(("tokens", "at_once"), [(0, 8), (10_000 * CONTEXT, 8)])
def test_texts_are_admitted_by_the_memory_of_the_tokens_that_are_there(
    tokens: int, at_once: int, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rung.models import backends

    each = backends.slot_bytes(model.transformer)
    assert each == 2 * 3 * 64 * CONTEXT * 4
    free = int(tokens * each / CONTEXT / backends.SHARE) + 1
    monkeypatch.setattr(backends, "available_memory", lambda: free)
    alone = [model.generate([[5, 6, i]], max_new_tokens=30, temperature=0)[0].tokens for i in range(8)]
    backend = backend_of(model.transformer)
    most, turn = [0], backend.turn

    def counted() -> list[Any]:
        most.append(backend.slots - backend.free_slots)
        return turn()

    monkeypatch.setattr(backend, "turn", counted)
    options = Options(max_new_tokens=30, sampling=Sampling(temperature=0))
    requests = [Request(Prompt("", (5, 6, i)), options, seed=i) for i in range(8)]
    found = together(BatchEngine(lambda: backend, model.tokenizer), requests)
    assert [text.tokens for text in found] == alone and max(most) == at_once


# ---- futures, coroutines, forks -------------------------------------------------------------------------------------


def test_futures_hold_completions_in_whatever_order_they_come(model: Model) -> None:
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20}
    futures = [model.submit(p, seed=i, **how) for i, p in enumerate(["Once upon", "The wolf", [5, 6, 7]])]
    found = [future.result(20) for future in futures]
    assert found[0] == model.generate("Once upon", seed=0, **how)
    assert found[2].tokens == model.generate([[5, 6, 7]], seed=2, **how)[0].tokens
    with pytest.raises(RungError, match="submit gives one text"):
        model.submit("Once", num_samples=2)
    with pytest.raises(RungError, match="prompt is empty"):
        model.submit("")


def test_a_future_that_is_cancelled_ends_its_text(model: Model) -> None:
    future = model.submit([1], max_new_tokens=250, temperature=0, stop_tokens=())
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(5)
    began = time.monotonic()
    while any(model.engine.load) and time.monotonic() < began + 5:
        time.sleep(0.001)
    assert model.engine.load == (0, 0)


def test_coroutines_stream_side_by_side_and_can_be_left(model: Model) -> None:
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 30}

    async def whole(prompt: str, seed: int) -> str:
        return "".join([piece async for piece in model.astream(prompt, seed=seed, echo=True, **how)])

    async def both() -> list[str]:
        left = model.astream("Once", max_new_tokens=250, temperature=0, stop_tokens=())
        await anext(left)
        await left.aclose()
        return await asyncio.gather(*(whole(p, i) for i, p in enumerate(("Once upon", "The wolf"))))

    expected = [model.generate(p, seed=i, echo=True, **how).text for i, p in enumerate(("Once upon", "The wolf"))]
    assert asyncio.run(both()) == expected


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """What the child of a fork answers within 30 seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        answer = b"raised"
        try:
            answer = work()
        finally:
            os.write(write, answer)
            os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    try:
        return os.read(read, 10)
    finally:
        os.close(read)


def test_a_fork_writes_the_same_text_and_refuses_its_parents() -> None:
    model = rung.load(models.saved(n_positions=CONTEXT), dtype="float32", threads=2, device="cpu")
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20, "seed": 4}
    prompt = models.some_ids(60, V)
    expected = model.generate([prompt], **how)[0].tokens
    stream = model.stream("Once", max_new_tokens=200, temperature=0, stop_tokens=())
    next(stream)

    def child() -> bytes:
        same = model.generate([prompt], **how)[0].tokens == expected
        try:
            list(stream)
        except RungError as error:
            return b"yes" if same and "fork" in str(error) else b"other"
        return b"no"

    assert in_a_fork(child) == b"yes"
    assert "".join(stream)  # the parent goes on


def samples(model: Model, length: int, count: int) -> tuple[list[Request], Backend, list[Text]]:
    """So many samples of one prompt, begun together; no thread may read the prompt before all of them are there."""
    options = Options(sampling=Sampling(temperature=1.0), max_new_tokens=5)
    ids = tuple(models.some_ids(length, V))
    requests = [Request(Prompt("", ids), options, seed=1, sample=i) for i in range(count)]
    backend, texts = backend_of(model.transformer, count), [Text(r, None) for r in requests]
    for slot, text in enumerate(texts):
        backend.begin(slot, text)
    return requests, backend, texts


def five_tokens(backend: Backend, texts: list[Text], slots: Sequence[int]) -> list[list[int]]:
    """The first five tokens of these texts."""
    tokens: dict[int, list[int]] = {slot: [] for slot in slots}
    while any(len(t) < 5 for t in tokens.values()):
        for fresh in backend.turn():
            new = list(fresh.tokens)
            tokens[fresh.slot] += new
            texts[fresh.slot].tokens += new
    return [t[:5] for t in tokens.values()]


def test_one_prompt_is_read_once_for_all_its_samples(model: Model) -> None:
    requests, backend, texts = samples(model, 100, 6)
    with torch.inference_mode():
        found = five_tokens(backend, texts, range(6))
    assert backend.clock.prompt_tokens == 100
    assert found == [alone(model, r).tokens for r in requests]
    assert len(set(map(tuple, found))) > 1


def test_samples_go_on_when_the_one_that_read_their_prompt_is_cancelled(model: Model) -> None:
    requests, backend, texts = samples(model, 200, 3)
    with torch.inference_mode():
        assert backend.turn() == []  # the first part of the prompt
        backend.end(0)
        found = five_tokens(backend, texts, (1, 2))
    assert found == [alone(model, r).tokens for r in requests[1:]]


def test_a_closed_engine_refuses_in_one_sentence(model: Model) -> None:
    one = engine(model, 1)
    stream = Stream(one)
    stream.submit(0, request_of(0, tokens=100))
    one.close()
    assert [piece.reason for _, piece in stream][-1] in ("interrupted", "length")
    with pytest.raises(RungError, match="was closed"):
        one.submit(request_of(1), lambda piece: None)
