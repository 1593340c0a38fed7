"""Drafts change how many steps a text takes, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpt2_models as models
import rung
from rung.cli import main
from rung.errors import RungError
from rung.models.backends import backend_of
from rung.models.batching.adaptive_drafting import SHARE, TRIAL, AdaptiveDrafting
from rung.models.batching.engine import BatchEngine
from rung.models.batching.host_sampling import HostBackend
from rung.models.batching.text import Backend, NewTokens, Text
from rung.models.drafts import COLUMN, MOST, PROPOSING, Lookup, Pace, drafting, follow, numbers
from rung.models.gpu.slots import GpuBackend
from rung.models.load import Model
from rung.models.sampling import Sampling, pick
from rung.models.transformer import Drafting

PROMPTS = ["Once upon a time", "one two three one two three one two", "The King and the", "abc abc abc abc abc"]


@cache
def inner(draft: str | None = None) -> Model:
    """The model of the package in float32, which its own eight bits draft for, or its texts."""
    model = rung.load("inner", dtype="float32", draft="ngram" if draft == "ngram" else None, device="cpu")
    if draft == "int8":
        model.transformer.drafting = drafting(rung.load("inner", dtype="int8", device="cpu").transformer, model.transformer)
    return model


def agreeing(seed_of_weights: int = 1) -> Model:
    """A model that a random one drafts for, whose proposals are mostly wrong, at whatever cost."""
    model = models.ours(models.saved(), "float32")
    other = models.ours(models.saved(n_layer=seed_of_weights), "float32")
    model.transformer.drafting = Drafting(other.transformer, COLUMN)
    return model


def tokens(model: Model, **options: Any) -> list[list[int]]:
    return [completion.tokens for completion in model.generate(PROMPTS, **options)]


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["ngram", "int8"])
def test_greedy_text_is_the_same_token_by_token(draft: str) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "stop_tokens": ()}
    run = inner(draft).run(PROMPTS, **options)
    list(run)
    assert [c.tokens for c in run.completions] == tokens(inner(), **options)
    assert 0 < run.stats.accepted <= run.stats.proposed
    assert run.stats.accepted + 4 * len(PROMPTS) > run.stats.drafted  # steps were saved


def ten_thousand(model: Model) -> list[list[int]]:
    """Twenty texts at the same time, each of which fills the context and slides."""
    prompts = [f"{prompt}{more}" for prompt in PROMPTS for more in ("", " and", " old", " who", ",")]
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 520, "stop_tokens": (), "slide": True}
    return [completion.tokens for completion in model.generate(prompts, **options)]


@pytest.mark.slow
def test_greedy_text_is_the_same_over_ten_thousand_tokens() -> None:
    expected = ten_thousand(inner())
    assert sum(map(len, expected)) == 10_400
    for draft in ("ngram", "int8"):
        assert ten_thousand(inner(draft)) == expected, draft


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 40, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0, "repetition_penalty": 1.1, "top_logprobs": 3, "logprobs": True, "prompt_logprobs": 1},
        {"temperature": 0, "stop": [" the", "three one"], "min_tokens": 20},
        {"temperature": 0.4, "num_samples": 2, "batch_size": 3, "max_new_tokens": 20},
    ],
)
def test_what_the_text_proposes_changes_no_text_sampled_or_not(options: dict[str, Any]) -> None:
    options = {"seed": 7, "max_new_tokens": 45, **options}
    assert inner("ngram").generate(PROMPTS, **options) == inner().generate(PROMPTS, **options)


def test_a_full_context_ends_or_slides_as_without_a_draft() -> None:
    plain, drafted = models.ours(models.saved(), "float32"), models.ours(models.saved(), "float32")
    drafted.transformer.drafting = Drafting(None, COLUMN)
    ids = [list(range(50)), [3, 4, 5] * 15]
    for slide in (False, True):
        options: dict[str, Any] = {"temperature": 0, "seed": 1, "max_new_tokens": 70, "slide": slide, "stop_tokens": ()}
        assert drafted.generate(ids, **options) == plain.generate(ids, **options)


def test_greedy_text_needs_no_good_draft_and_no_compiler() -> None:
    model, plain = agreeing(), models.ours(models.saved(), "float32")
    without = rung.load(models.saved(), dtype="float32", draft="ngram", device="cpu")
    without.transformer.service = type(without.transformer.service)()
    ids = [[5, 6, 7] * 6, [9, 8, 9, 8, 9, 8]]
    options: dict[str, Any] = {"temperature": 0, "seed": 1, "max_new_tokens": 40, "stop_tokens": ()}
    expected = plain.generate(ids, **options)
    assert model.generate(ids, **options) == expected
    assert without.generate(ids, **options) == expected


def test_a_seed_repeats_a_drafted_text_in_any_company() -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 25}
    together = inner("int8").generate(PROMPTS, **options)
    alone = [inner("int8").generate(prompt, **options) for prompt in PROMPTS]
    assert together == alone
    assert len({c.text for c in inner("int8").generate(PROMPTS[:1], **options | {"num_samples": 3})}) == 3


# ---- the distribution ------------------------------------------------------------------------------------------------


def distances(samples: tuple[int, ...], run: Callable[[int], list[int]], target: torch.Tensor) -> list[float]:
    """How far the tokens of so many samples are from the target, in proportion to the distance of 100 references."""
    V = len(target)
    references = torch.randn(100, V, generator=torch.Generator().manual_seed(5)).softmax(-1).double()
    counts, done, found = torch.zeros(V, dtype=torch.float64), 0, []
    for n in samples:
        for i in range(done, n):
            for token in run(i):
                counts[token] += 1
        done = n
        estimate = counts / counts.sum()
        found.append(float((estimate - target).norm() / (estimate - references).norm(dim=1).mean()))
    return found


@pytest.mark.parametrize(
    ("most", "device"),
    [
        (3_000, "cpu"),
        pytest.param(20_000, "cpu", marks=pytest.mark.slow),
        pytest.param(100_000, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_accepted_and_replaced_tokens_approach_the_target_as_one_over_the_root(most: int, device: str) -> None:
    V, k, sampling = 10, 2, Sampling(temperature=1, top_p=1)
    generator = torch.Generator().manual_seed(11)
    logits, q = (torch.randn(1, V, generator=generator).to(device) for _ in range(2))
    q = q.softmax(-1).double()
    target = logits.softmax(-1)[0].double().cpu()

    def run(sample: int) -> list[int]:
        us = [numbers(1, sample, step) for step in range(k + 1)]
        proposed = [int(pick(q, [u(PROPOSING)])) for u in us[:k]]
        return follow(logits.expand(k + 1, V), sampling, proposed, [q[0]] * k, us)

    steps = (*(10**e for e in range(2, 6) if 10**e < most), most)
    found = distances(steps, run, target)
    for n, distance in zip(steps, found, strict=True):
        assert distance < 4 / n**0.5  # by noise alone the norm is about 1 / root of n, references lie 0.4 apart
    assert found[-1] < found[0] * (steps[0] / steps[-1]) ** 0.5 * 4
    wrong = [pick(q, [numbers(1, i, 0)(PROPOSING)]) for i in range(1000)]  # the draft's own are not the target's
    assert float((torch.bincount(torch.cat(wrong), minlength=V).cpu() / 1000 - target).norm()) > 0.1


def test_drafted_samples_of_a_model_have_its_distribution() -> None:
    model = models.ours(models.saved(vocab_size=10, n_layer=2), "float32")
    draft = models.ours(models.saved(vocab_size=10, n_layer=1), "float32")
    model.transformer.drafting = Drafting(draft.transformer, 0.0)
    samples = 1000
    run = model.run([[1, 2]], temperature=0.7, top_p=1, seed=2, max_new_tokens=3, num_samples=samples, stop_tokens=())
    list(run)
    assert 0 < run.stats.accepted < run.stats.proposed
    seen = torch.zeros(10, 10, dtype=torch.float64)
    for completion in run.completions:
        seen[completion.tokens[1], completion.tokens[2]] += 1 / samples
    expected = torch.zeros(10, 10, dtype=torch.float64)
    first = (model.logits([1, 2])[-1] / 0.7).softmax(-1).double()
    for a in range(10):
        second = (model.logits([1, 2, a])[-1] / 0.7).softmax(-1).double()
        for b in range(10):
            expected[b] += first[a] * second[b] * (model.logits([1, 2, a, b])[-1] / 0.7).softmax(-1).double()
    assert float((seen - expected).norm()) < 2 / samples**0.5


# ---- how many, and from where ----------------------------------------------------------------------------------------


def test_drafts_grow_while_they_are_accepted_and_stop_and_begin_again_when_not() -> None:
    pace = Pace(COLUMN)
    for _ in range(20):
        pace.saw(pace.length(), pace.length())
    assert pace.length() == MOST
    tries = 0
    while (k := pace.length()) > 0:
        pace.saw(k, 0)
        tries += 1
    assert 3 < tries < 60
    assert any(pace.length() for _ in range(400))
    assert Pace(1.3).length() == 0  # a draft dearer than the model


def test_lookup_finds_the_longest_and_latest_and_goes_on_into_itself() -> None:
    lookup = Lookup()
    assert lookup.propose([1, 2, 3, 4], 3) == []
    assert lookup.propose([1, 2, 3, 4, 9, 2, 3], 3) == [4, 9, 2]
    assert lookup.propose([1, 2, 3, 4, 9, 2, 3, 7, 2, 3], 2) == [7, 2]
    assert lookup.propose([1, 2, 3, 4, 9, 2, 3, 7, 2, 3, 4, 9], 2) == [2, 3]
    assert Lookup().propose([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(RungError, match="vocabulary"):
        rung.load("inner", draft=models.saved(), device="cpu")


def test_stats_say_what_was_proposed_and_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    def stats(*more: str) -> tuple[str, str]:
        prompt = "one two three one two three one two"
        with pytest.raises(SystemExit):
            main(["generate", prompt, "-n", "30", "-t", "0", "--draft", "ngram", "--stats", "--device", "cpu", *more])
        return capsys.readouterr()

    drafts = json.loads(stats("--json")[0])["stats"]["drafts"]
    assert 0 < drafts["accepted"] <= drafts["proposed"]
    assert drafts["tokens_per_step"] == round(1 + drafts["accepted"] / drafts["steps"], 2)
    assert f"drafts: {drafts['accepted']} of {drafts['proposed']} tokens accepted" in stats()[1]


# ---- with drafts or without ------------------------------------------------------------------------------------------


class Paced(HostBackend):
    """A backend whose turns take so many seconds by a clock of the test."""

    def __init__(self, model: Model, drafts: Drafting | None, clock: list[float], seconds: float) -> None:
        super().__init__(model.transformer, 4, None, drafts)
        self.time, self.seconds, self.turns = clock, seconds, 0

    def turn(self) -> list[NewTokens]:
        self.time[0] += self.seconds
        self.turns += 1
        return super().turn()


@pytest.mark.slow
@pytest.mark.parametrize(("round_", "step"), [(0.1, 1.0), (8.0, 1.0), (1.5, 1.0)])
def test_the_slower_variant_takes_little_of_the_time_and_changes_no_text(round_: float, step: float) -> None:
    folder, clock = models.saved(n_positions=512), [0.0]
    model = models.ours(folder, "float32")
    drafted = Paced(model, Drafting(None, 0.0), clock, round_)
    plain = Paced(model, None, clock, step)
    either = AdaptiveDrafting(drafted, plain, lambda text: True, lambda: clock[0])
    model._engine = BatchEngine(lambda: either, None)
    options: dict[str, Any] = {"temperature": 0.7, "seed": 3, "max_new_tokens": 480, "stop_tokens": ()}
    options["frequency_penalty"] = 0.1
    ids = [[5, 6, 7] * 6, [9, 8, 9, 8]]
    found = [completion.tokens for completion in model.generate(ids, **options)]
    expected = models.ours(folder, "float32").generate(ids, **options)
    assert found == [completion.tokens for completion in expected]
    assert min(drafted.turns, plain.turns) > 0
    slow = drafted if round_ > step else plain
    assert slow.turns * slow.seconds < 0.3 * clock[0]  # the first trial, of a long text, included


class Even(Backend):
    """A token a turn and text, each in so many seconds."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        super().__init__()
        self.slots, self.context, self.time, self.seconds = 4, 1 << 30, clock, seconds
        self.spent, self.texts = 0.0, dict[int, Text]()

    free_slots = property(lambda self: 4)

    def begin(self, slot: int, text: Text) -> None:
        self.texts[slot] = text

    def end(self, slot: int) -> None:
        del self.texts[slot]

    def turn(self) -> list[NewTokens]:
        self.time[0] += self.seconds
        self.spent += self.seconds
        return [NewTokens(slot, [1]) for slot in self.texts]


@pytest.mark.parametrize("seconds", [(0.2, 1.0), (5.0, 1.0), (1.2, 1.0)])
def test_trials_of_the_slower_variant_are_bounded_in_time(seconds: tuple[float, float]) -> None:
    clock = [0.0]
    variants = [Even(clock, s) for s in seconds]
    either = AdaptiveDrafting(variants[0], variants[1], lambda text: True, lambda: clock[0])
    text: Any = SimpleNamespace(tokens=[1], request=SimpleNamespace(ids=(1,)), options=SimpleNamespace())
    text.options.prompt_logprobs = None
    either.begin(0, text)
    for _ in range(20_000):
        assert len(either.turn()) == 1
    slow = max(variants, key=lambda way: way.seconds)
    assert 0 < slow.spent < 1.1 * SHARE * clock[0]
    slow.seconds, before = 0.1, clock[0]  # what was the slower way becomes the faster one, and is found out
    for _ in range(40_000):
        either.turn()
    assert slow.spent > 0.5 * (clock[0] - before)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["ngram", "model"])
@pytest.mark.parametrize("device", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_gpus_step_of_several_rows_verifies_what_is_proposed(
    device: str, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaptiveDrafting, "_choose", lambda either: either._start(TRIAL))  # whatever the clock says
    long = device == "cuda"
    folder = models.saved(n_layer=1, n_positions=256 if long else 64)
    drafted = rung.load(
        folder, device=device, dtype="float32", plan="best", draft=folder if draft == "model" else draft
    )
    if drafted.transformer.drafting is not None and draft == "model":  # whatever it costs
        drafted.transformer.drafting = Drafting(drafted.transformer.drafting.source, 0.0)
    ids = [[5, 6, 7, 8] * 3, [9, 8, 9, 8, 9, 8]]
    for temperature in (0.0, 0.5) if long else (0.0,):
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 200 if long else 6, "seed": 1}
        run = drafted.run(ids, stop_tokens=(), **options)
        list(run)
        expected = models.ours(folder, "float32").generate(ids, stop_tokens=(), **options)
        assert [c.tokens for c in run.completions] == [c.tokens for c in expected]
        # A sampled draft's text would be another one than without drafts, so that it is written without.
        assert (run.stats.proposed > 0) == (draft == "ngram" or not temperature)
    assert drafted.engine.slots in (2, 4, 8)


def test_one_text_without_drafts_takes_the_kernels_for_one_in_float32_too() -> None:
    folder = models.saved(n_layer=1, n_positions=64)
    model = rung.load(folder, device="emulator", dtype="float32", plan="best", draft="ngram")
    backend = backend_of(model.transformer)
    assert isinstance(backend, AdaptiveDrafting)
    plain = backend._variants[1].backend
    assert isinstance(plain, GpuBackend) and plain.slots == 8 and plain._sessions.rows_for(1) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("forced", [False, True], ids=["by the clock", "always"])
def test_greedy_text_is_the_same_over_ten_thousand_tokens_on_a_gpu(
    forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:
        monkeypatch.setattr(AdaptiveDrafting, "_choose", lambda either: either._start(TRIAL))
    drafted = rung.load("inner", device="cuda", dtype="float32", draft="ngram")
    assert ten_thousand(drafted) == ten_thousand(rung.load("inner", device="cuda", dtype="float32"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_smaller_model_drafts_on_a_gpu(dtype: str) -> None:
    model = rung.load("inner", device="cuda", dtype=dtype, draft="inner")
    assert model.transformer.drafting is not None
    model.transformer.drafting = Drafting(model.transformer.drafting.source, 0.0)
    run = model.run(PROMPTS, temperature=0, max_new_tokens=100, stop_tokens=())
    list(run)
    assert run.stats.accepted > 0.8 * run.stats.proposed > 0  # it drafts for itself, by other kernels
