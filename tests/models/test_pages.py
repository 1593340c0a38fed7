"""Keys and values in pages: equal beginnings are read once, texts wait when pages end, and no bit changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import gpt2_models as models
import rung
from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine, Stream
from rung.models.batching.host_sampling import HostBackend
from rung.models.batching.pages import KEPT, PAGE, PagedCache, Pages
from rung.models.batching.text import Request, Transcript
from rung.models.load import Model
from rung.models.options import Completion, Options, Prompt
from rung.models.sampling import Sampling

V, CONTEXT = 400, 256


def ids(n: int, seed: int) -> tuple[int, ...]:
    return tuple(models.some_ids(n, V, seed=seed))


def backend(model: Model, slots: int, room: int, monkeypatch: pytest.MonkeyPatch) -> HostBackend:
    monkeypatch.setattr("rung.models.backends._room", lambda transformer: room)
    made = backend_of(model.transformer, slots)
    assert isinstance(made, HostBackend)
    return made


def written(backend: HostBackend, requests: Sequence[Request], cancelled: Sequence[int] = ()) -> list[Completion]:
    """Texts of an engine with this backend; those named are cancelled at their third token."""
    engine = BatchEngine(lambda: backend, None)
    stream, texts = Stream(engine), [Transcript(request) for request in requests]
    with engine.together():
        for key, request in enumerate(requests):
            stream.submit(key, request)
    for key, piece in stream:
        texts[key].add(piece)
        if key in cancelled and len(texts[key].tokens) == 3:
            stream._tickets[key].cancel() if key in stream._tickets else None
    engine.close()
    return [text.completion() for text in texts]


def some_requests(dice: random.Random, count: int) -> list[Request]:
    """Prompts with many beginnings in common, short and long, and all that changes how they are read."""
    beginnings = [ids(n, n) for n in (40, 64, 150)]
    requests = []
    for _ in range(count):
        beginning = dice.choice(beginnings)[: dice.choice([1, 5, 20, 40, 64, 100, 150])]
        prompt = (*beginning, *ids(dice.choice([0, 0, 1, 3, 30, 60]), dice.randrange(3)))
        options = Options(
            sampling=Sampling(temperature=dice.choice([0.0, 1.0]), repetition_penalty=dice.choice([1.0, 1.0, 1.3])),
            max_new_tokens=dice.choice([1, 10, 60, 120]),
            slide=dice.random() < 0.2,
            logprobs=True,
            prompt_logprobs=dice.choice([None, None, None, 1]),
            priority=dice.choice([0, 0, 1]),
        )
        requests.append(Request(Prompt("", prompt), options, seed=dice.randrange(9)))
    return requests


def chaos(model: Model, count: int, room: int, monkeypatch: pytest.MonkeyPatch, seed: str) -> HostBackend:
    dice = random.Random(seed)
    requests = some_requests(dice, count)
    alone = [written(backend(model, 1, CONTEXT, monkeypatch), [request])[0] for request in requests]
    cancelled = dice.sample(range(count), count // 5)
    made = backend(model, 12, room, monkeypatch)
    found = written(made, requests, cancelled)
    for i, (one, other) in enumerate(zip(found, alone, strict=True)):
        if i in cancelled and one.finish_reason == "interrupted":
            n = len(one.tokens)
            assert one.tokens == other.tokens[:n] and one.logprobs == (other.logprobs or [])[:n]
        else:
            assert one == other  # floats included: to the last bit
    assert made._paged is not None and made._paged.pages.held == 0
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_sharing_and_waiting_for_pages_change_no_bit(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.ours(models.saved(n_positions=CONTEXT, n_layer=1), dtype)
    made = chaos(model, 24, 20 * PAGE, monkeypatch, dtype)
    assert made.clock.set_back > 2 and made.clock.shared_tokens > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pages"),
    [
        *((kind, pages) for kind in ("float32", "bfloat16", "int8", "window", "drafts") for pages in (9, 14, 40)),
        *((kind, 9) for kind in ("torch", "torch with drafts")),
    ],
)
def test_chaos_changes_no_bit(kind: str, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"dtype": kind if kind in ("float32", "bfloat16", "int8") else "float32", "device": "cpu"}
    how["threads"] = 1
    if kind == "window":
        how["window"] = 50
    if "drafts" in kind:
        how["draft"] = "ngram"
    if "torch" in kind:
        monkeypatch.setattr("rung.models.cpu.plan.available", lambda *_: None)
    model = rung.load(models.saved(n_positions=CONTEXT), **how)
    made = chaos(model, 20 if "torch" in kind else 80, pages * PAGE, monkeypatch, f"{kind} {pages}")
    if "torch" in kind:
        assert made.clock.set_back == 0
    else:
        assert made.clock.shared_tokens > 0 and (made.clock.set_back > 5 or pages > 9)


def test_thirty_two_prompts_with_one_beginning_read_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.ours(models.saved(n_positions=1100, n_layer=1))
    beginning = ids(1000, 1)
    options = Options(max_new_tokens=4, sampling=Sampling(temperature=0))
    requests = [Request(Prompt("", (*beginning, *ids(20, 2 + i))), options, seed=i) for i in range(32)]
    made = backend(model, 32, 200 * PAGE, monkeypatch)
    found = written(made, requests)
    assert made.clock.prompt_tokens <= 1020 + 31 * 20 and made.clock.shared_tokens >= 31 * 1000
    assert made._paged is not None and made.clock.set_back == 0
    alone = backend(model, 1, 1100, monkeypatch)
    assert [text.tokens for text in found[::8]] == [written(alone, [one])[0].tokens for one in requests[::8]]


def test_texts_that_grow_beyond_the_pages_wait_and_then_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.ours(models.saved(n_positions=CONTEXT, n_layer=1))
    options = Options(max_new_tokens=200, sampling=Sampling(temperature=0))
    requests = [Request(Prompt("", ids(20, i)), options, seed=i) for i in range(6)]
    made = backend(model, 6, 12 * PAGE, monkeypatch)
    most, turn = [0], made.turn

    def counted() -> list[Any]:
        assert made._paged is not None
        most.append(made._paged.pages.held)
        return turn()

    monkeypatch.setattr(made, "turn", counted)
    found = written(made, requests)
    assert [len(text.tokens) for text in found] == [200] * 6 and made.clock.set_back > 0
    assert max(most) <= 12 and made._paged is not None and made._paged.pages.available == 12
    # The first text is never the newest.
    assert found[0] == written(backend(model, 1, CONTEXT, monkeypatch), requests[:1])[0]


# ---- the pages ------------------------------------------------------------------------------------------------------


def kept(pages: Pages, texts: Sequence[Sequence[int]]) -> list[int]:
    """The pages of a row that read parts of PAGE equal tokens."""
    row = [pages.take() for _ in texts]
    node = pages.root
    for i, part in enumerate(texts):
        node, _ = pages.keep(node, tuple(part), row[i])
        row[i] = node.page
    return row


def test_the_longest_unused_page_is_given_up_first_and_never_before_those_after_it() -> None:
    pages = Pages(16)
    a, b, c = ([i] * PAGE for i in range(3))
    first, second = kept(pages, [a, b]), kept(pages, [a, c])
    assert first[0] == second[0] and pages.held == 3
    pages.drop(first)
    assert pages.held == 2 and [node.page for node in pages.known([*a, *b, 1])] == first
    pages.drop(second)
    assert pages.held == 0 and pages.available == 16
    for _ in range(14):
        pages.take()
    assert pages.known([*a, *b]) and pages.known([*a, *c])[1:] and len(pages.known([*a, *b])) == 1
    pages.take()
    assert len(pages.known([*a, *c])) == 1
    pages.take()
    assert not pages.known([*a, *c]) and pages.available == 0


def test_few_pages_are_kept_that_no_text_holds() -> None:
    pages = Pages(40)
    for i in range(40):
        pages.drop(kept(pages, [[i] * PAGE]))
    assert sum(bool(pages.known([i] * PAGE)) for i in range(40)) == KEPT * 40
    assert pages.known([39] * PAGE)


def test_torch_reads_and_writes_pages_as_it_does_a_row() -> None:
    cache = PagedCache((2, 4, 8), 2, 100, 400, "float32")
    assert cache.fit(1, 40) and cache.fit(0, 10) and cache.fit(1, 70)
    whole = torch.randn(2, 4, 70, 8)
    row = cache.row(1)
    for begin, end in ((0, 33), (33, 34), (34, 70)):
        row.write(1, whole[:1, :, begin:end], whole[1:, :, begin:end])
        k, v = row.read(1, end - begin)
        assert torch.equal(k, whole[:1, :, :end]) and torch.equal(v, whole[1:, :, :end])
        row.advance([end - begin])
    cache.release(1)
    assert cache.fit(1, 70) and not cache.row(1).read(1, 70)[0].any()  # the memory was given back
