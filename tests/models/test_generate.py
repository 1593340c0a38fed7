"""Sampling, stopping, streaming: what `model.generate` and `model.stream` promise."""

from __future__ import annotations

import ast
import math
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt2_models as models
import rung
from rung.errors import RungError
from rung.models.batching.engine import Stream
from rung.models.batching.text import Piece, StopFinder
from rung.models.load import Model
from rung.models.sampling import Penalties, Sampling, choose, distribution, likeliest, philox, pick, uniform
from rung.models.tokenizer import Detokenizer


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(n_positions=128))


@pytest.fixture(scope="module")
def inner() -> Model:
    return rung.load("inner", dtype="float32", device="cpu")


def test_philox_gives_the_published_words() -> None:
    # From the known answers that come with the paper's own library.
    assert philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox((1 << 64) - 1, (ones,) * 4) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def test_uniforms_are_uniform_and_differ_by_seed_sequence_and_step() -> None:
    numbers = [uniform(seed, seq, step) for seed in range(10) for seq in range(10) for step in range(40)]
    assert len(set(numbers)) > 3990
    assert min(numbers) >= 0 and max(numbers) < 1
    counts = torch.histc(torch.tensor(numbers), 20, 0, 1)
    assert float(((counts - 200) ** 2 / 200).sum()) < 43.8  # chi-squared, 19 degrees, p = 0.001


def probabilities(logits: list[float], **how: float | int) -> list[float]:
    p = distribution(torch.tensor([logits]), Sampling(**{"temperature": 1.0, "top_p": 1.0, **how}))[0]
    return (p / p.sum()).tolist()


def test_each_filter_keeps_what_it_should() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)]
    assert probabilities(logits) == pytest.approx([0.1, 0.4, 0.05, 0.3, 0.15])
    assert probabilities(logits, top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0])
    assert probabilities(logits, top_k=99) == pytest.approx(probabilities(logits))
    assert probabilities(logits, top_p=0.69) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0])
    assert probabilities(logits, top_p=0.71) == pytest.approx([0, 8 / 17, 0, 6 / 17, 3 / 17])
    assert probabilities(logits, top_p=1e-6) == pytest.approx([0, 1, 0, 0, 0])
    assert probabilities(logits, min_p=0.3) == pytest.approx([0, 8 / 17, 0, 6 / 17, 3 / 17])
    squares = [p * p for p in (0.1, 0.4, 0.05, 0.3, 0.15)]
    assert probabilities(logits, temperature=0.5) == pytest.approx([s / sum(squares) for s in squares])
    assert probabilities(logits, temperature=1e-30) == pytest.approx([0, 1, 0, 0, 0])


def test_a_nucleus_larger_than_the_shortlist_is_not_cut() -> None:
    flat = torch.zeros(1, 5000)
    nonzero = distribution(flat, Sampling(temperature=1.0, top_p=0.5)) > 0
    assert int(nonzero.sum()) == pytest.approx(2500, abs=1)


@pytest.mark.parametrize("vocabulary", [5, 3000])
def test_the_host_chooses_as_torch_does(vocabulary: int) -> None:
    logits = 4 * torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(3))
    for how in (
        Sampling(temperature=0), Sampling(top_p=1.0), Sampling(top_p=0.3), Sampling(temperature=5.0, top_p=0.99),
        Sampling(top_k=4), Sampling(top_k=1), Sampling(min_p=0.2, top_p=1.0), Sampling(0.5, 40, 0.9, 0.01),
    ):  # fmt: skip
        for us in ([uniform(1, i, 0) for i in range(64)], [0.0] * 64, [math.nextafter(1, 0)] * 64):
            by_torch = pick(distribution(logits, how), us) if how.temperature else likeliest(logits)
            assert choose(logits.numpy(), how, us) == by_torch.tolist()
        for broken in (math.nan, math.inf, -math.inf):
            with pytest.raises(RungError):
                choose(np.full((1, 5), broken, np.float32), how, [0.5])


def test_choices_follow_the_distribution() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1])
    n = 20_000
    us = [uniform(1, 0, i) for i in range(n)]
    tokens = choose(logits.expand(n, 5).numpy(), Sampling(temperature=1.0, top_p=1.0), us)
    found = torch.bincount(torch.tensor(tokens), minlength=5)
    expected = logits.softmax(0) * n
    assert float(((found - expected) ** 2 / expected).sum()) < 18.5  # 4 degrees, p = 0.001


def test_the_ends_of_the_interval_choose_tokens_that_are_possible() -> None:
    logits = np.array([[-np.inf, 0.0, 1.0, -np.inf]], np.float32)
    how = Sampling(temperature=1.0, top_p=1.0)
    assert choose(logits, how, [0.0]) == [1]
    assert choose(logits, how, [1 - 2**-24]) == [2]
    assert choose(logits, how, [math.nextafter(1, 0)]) == [2]


def test_penalties_lower_what_they_should() -> None:
    logits = np.array([[2.0, -2.0, 1.0, 1.0]], np.float32)
    how = Sampling(repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
    penalties = Penalties(how, [0, 1], 4)
    assert penalties.apply(logits).tolist() == [[1.0, -4.0, 1.0, 1.0]]
    penalties.add(3)
    penalties.add(3)
    assert penalties.apply(logits).tolist() == [[1.0, -4.0, 1.0, 0.5 - 0.25 - 1.0]]
    assert logits.tolist() == [[2.0, -2.0, 1.0, 1.0]]


def test_the_end_of_text_can_be_ignored() -> None:
    ending = rung.load("inner", device="cpu")
    first = ending.generate("Once", temperature=0, max_new_tokens=1, stop_tokens=()).tokens
    ending.config = replace(ending.config, eos=tuple(first))
    found = [ending.generate("Once", temperature=0, max_new_tokens=3, ignore_eos=how) for how in (False, True)]
    assert [len(one.tokens) for one in found] == [0, 3]


def test_a_strong_penalty_never_repeats_a_token(model: Model) -> None:
    tokens = model.generate("Once", frequency_penalty=1e4, temperature=0, max_new_tokens=60).tokens
    assert len(set(tokens)) == 60


def test_the_same_seed_gives_the_same_text_in_a_batch_or_alone(model: Model) -> None:
    prompts = ["Once upon a time", "The wolf", "A", "Little pig, little pig, let me come in, said he"]
    keywords = {"seed": 5, "max_new_tokens": 40, "temperature": 1.0}
    alone = [model.generate(prompt, **keywords).tokens for prompt in prompts]
    assert [c.tokens for c in model.generate(prompts, **keywords)] == alone
    assert [c.tokens for c in model.generate(prompts, batch_size=3, **keywords)] == alone
    assert [c.tokens for c in model.generate(prompts[::-1], **keywords)] == alone[::-1]
    assert model.generate(prompts[0], **{**keywords, "seed": 6}).tokens != alone[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_that_holds_for_smaller_weights_too(dtype: str) -> None:
    small = models.ours(models.saved(n_positions=128), dtype)
    prompts = ["Once upon a time", "The wolf", models.TEXT[:150]]
    keywords = {"seed": 5, "max_new_tokens": 40, "temperature": 1.0}
    alone = [small.generate(prompt, **keywords).tokens for prompt in prompts]
    assert [c.tokens for c in small.generate(prompts, **keywords)] == alone


def test_samples_differ_and_are_the_same_however_many_there_are(model: Model) -> None:
    three = model.generate("Once", seed=1, num_samples=3, max_new_tokens=20, temperature=1.0)
    one = model.generate("Once", seed=1, max_new_tokens=20, temperature=1.0)
    assert [c.sample for c in three] == [0, 1, 2]
    assert three[0].tokens == one.tokens
    assert len({tuple(c.tokens) for c in three}) == 3


def test_without_a_seed_texts_differ_and_tell_their_seed(model: Model) -> None:
    first, second = (model.generate("Once", max_new_tokens=20, temperature=1.0) for _ in range(2))
    assert first.tokens != second.tokens
    again = model.generate("Once", max_new_tokens=20, temperature=1.0, seed=first.seed)
    assert again.tokens == first.tokens


def test_log_probabilities_are_the_models_own(model: Model) -> None:
    ids = model.tokenizer.encode("Once upon a time")
    completion = model.generate([ids], logprobs=True, temperature=1.5, top_k=5, max_new_tokens=10, seed=1)[0]
    everything = torch.tensor(ids + completion.tokens)
    expected = (
        model.logits(everything[:-1]).log_softmax(-1).gather(1, everything[1:, None])[len(ids) - 1 :, 0]
    )
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_pieces_of_a_stream_join_to_the_text_of_generate(model: Model) -> None:
    for seed in range(5):
        keywords = {"max_new_tokens": 60, "temperature": 1.5, "seed": seed}
        pieces = list(model.stream("Die Märchen 🐉", **keywords))
        whole = model.generate("Die Märchen 🐉", **keywords)
        assert "".join(pieces) == whole.text
        assert whole.text == model.tokenizer.decode(whole.tokens)
        "".join(pieces).encode("utf-8")


def test_characters_of_several_tokens_are_never_cut(model: Model) -> None:
    text = "🦊 日本 🐺!"  # not in what the tokenizer was made of
    ids = model.tokenizer.encode(text)
    assert len(ids) > len(text)
    detokenizer = Detokenizer(model.tokenizer)
    pieces = [detokenizer.push([id]) for id in ids]
    assert "" in pieces and "".join(pieces) == text
    assert "�" not in "".join(pieces)


def test_half_a_character_at_the_end_becomes_a_replacement(model: Model) -> None:
    detokenizer = Detokenizer(model.tokenizer)
    first = model.tokenizer.encode("🦊")[:1]
    assert detokenizer.push(first[:1]) == ""
    assert detokenizer.flush() == "�" == model.tokenizer.decode(first)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        ((), ["abc", "def"], "abcdef"),
        (("cd",), ["abc", "def"], "ab"),
        (("cx",), ["abc", "def"], "abcdef"),
        (("def", "cde"), ["abc", "def"], "ab"),
        (("aab",), ["a", "a", "a", "b", "c"], "a"),
        (("z",), ["abc"], "abc"),
        (("c",), ["abc", "def"], "ab"),
    ],
)
def test_stop_strings_are_found_across_pieces_and_never_shown(
    stops: tuple[str, ...], pieces: list[str], shown: str
) -> None:
    finder = StopFinder(stops)
    out = ""
    for piece in pieces:
        out += finder.push(piece)
        if finder.stopped:
            break
    assert out + finder.flush() == shown


def test_generation_ends_before_a_stop_string(inner: Model) -> None:
    whole = inner.generate("Once upon a time", temperature=0, max_new_tokens=60).text
    stop = whole[37:45]
    completion = inner.generate("Once upon a time", temperature=0, max_new_tokens=60, stop=["@@", stop])
    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)]
    streamed = "".join(inner.stream("Once upon a time", temperature=0, max_new_tokens=60, stop=[stop]))
    assert streamed == completion.text


def test_generation_ends_at_a_stop_token_which_is_not_shown(inner: Model) -> None:
    whole = inner.generate("Once upon a time", temperature=0, max_new_tokens=40)
    assert whole.finish_reason == "length"
    token = whole.tokens[10]
    first = whole.tokens.index(token)
    ended = inner.generate("Once upon a time", temperature=0, max_new_tokens=40, stop_tokens=[token])
    assert (ended.finish_reason, ended.tokens) == ("stop", whole.tokens[:first])


def test_sequences_that_end_early_leave_the_others_as_they_are(inner: Model) -> None:
    prompts = ["Once upon a time", "The king said", "In the forest", "The old woman"]
    alone = [inner.generate(p, seed=3, max_new_tokens=50, stop=["."]) for p in prompts]
    together = inner.generate(prompts, seed=3, max_new_tokens=50, stop=["."], frequency_penalty=0.0)
    assert [c.text for c in together] == [c.text for c in alone]
    assert len({len(c.tokens) for c in alone}) > 1


def test_echo_puts_the_prompt_in_front(inner: Model) -> None:
    plain = inner.generate("The fox", seed=1, max_new_tokens=5)
    echoed = inner.generate("The fox", seed=1, max_new_tokens=5, echo=True)
    assert echoed.text == "The fox" + plain.text
    assert "".join(inner.stream("The fox", seed=1, max_new_tokens=5, echo=True)) == echoed.text


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is an exception, also where the tests were begun in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_interruption_keeps_what_was_written(inner: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run = inner.run(["Once upon a time"] * 8, temperature=0, max_new_tokens=500, batch_size=4)
    pieces: dict[int, list[str]] = {}
    waiting = run._pieces

    def interrupted(stream: Stream) -> Iterator[tuple[int, Piece]]:
        # While the run waits for the engine: in the body of the loop below, the exception would be the caller's.
        for index, piece in waiting(stream):
            yield index, piece
            if len(pieces.get(0, [])) == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run, "_pieces", interrupted)
    for index, piece in run:
        pieces.setdefault(index, []).append(piece)
    assert run.interrupted
    for index, completion in enumerate(run.completions):
        assert completion.finish_reason == "interrupted" and len(completion.tokens) < 500
        assert "".join(pieces.get(index, [])) == completion.text == inner.tokenizer.decode(completion.tokens)
    assert run.completions[0].tokens and not run.completions[7].tokens


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "finite"),
        ({"temperature": math.inf}, "finite"),
        ({"top_p": 0.0}, "top-p is 0.0"),
        ({"top_p": 1.1}, "top-p is 1.1"),
        ({"top_k": 0}, "top-k is 0"),
        ({"min_p": 1.0}, "min-p is 1.0"),
        ({"repetition_penalty": 0.0}, "repetition-penalty is 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"colour": "red"}, "colour"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": 2.5}, "top-k is 2.5"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": None}, "max_new_tokens is None"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(
    inner: Model, keywords: dict[str, object], words: str
) -> None:
    with pytest.raises(RungError, match=words) as caught:
        inner.generate("Once", **keywords)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_prompts_that_cannot_be_continued_are_refused(inner: Model) -> None:
    with pytest.raises(RungError, match="prompt is empty"):
        inner.generate("")
    with pytest.raises(RungError, match=r"600 tokens and the model's context 512.*slide"):
        inner.generate([[5] * 600])
    with pytest.raises(RungError, match="token 4096"):
        inner.generate([[1, 4096]])
    assert len(inner.generate([[5] * 600], slide=True, max_new_tokens=3)[0].tokens) == 3
    with pytest.raises(RungError, match="1 to 512 tokens"):
        inner.logits([1] * 513)
    with pytest.raises(RungError, match="vocabulary of 4,096"):
        inner.logits([4096])


@pytest.mark.parametrize("prompt", [5, None, b"Once", [661, 259], [b"Once"]])
def test_what_is_no_prompt_is_refused(inner: Model, prompt: Any) -> None:
    with pytest.raises(RungError, match="prompt"):
        inner.generate(prompt)


def test_text_that_cannot_be_written_in_utf8_is_refused(inner: Model) -> None:
    with pytest.raises(RungError, match="not UTF-8"):
        inner.generate("half a pair \ud83d")


@pytest.mark.parametrize("ids", [5, "Once", [[1, 2], [3]], [1.5, 2.5], [[[1, 2]]]])
def test_logits_of_what_is_no_row_of_tokens_are_refused(inner: Model, ids: Any) -> None:
    with pytest.raises(RungError, match="logits takes"):
        inner.logits(ids)


def test_one_stop_may_be_given_as_it_is(inner: Model) -> None:
    how: dict[str, Any] = {"temperature": 0, "max_new_tokens": 30, "seed": 1}
    text = inner.generate("Once upon", **how, stop=" the")
    assert text == inner.generate("Once upon", **how, stop=[" the"]) and text.text
    token = inner.generate("Once upon", **how).tokens[3]
    assert inner.generate("Once upon", **how, stop_tokens=token).finish_reason == "stop"


def test_completions_are_delivered_once_each_in_order(inner: Model) -> None:
    run = inner.run([["Once", "The fox"][i % 2] for i in range(5)], seed=1, max_new_tokens=6, batch_size=2)
    completions, before_the_end = [], 0
    for _ in run:
        completions += run.take()
        before_the_end = len(completions) if run.finished < 5 else before_the_end
    assert [index for index, _ in completions] == [0, 1, 2, 3, 4]
    assert [completion for _, completion in completions] == run.completions
    assert before_the_end >= 4 and not list(run.take(unfinished=True))


def test_a_stream_is_lazy_and_can_be_left(inner: Model) -> None:
    stream: Iterator[str] = inner.stream("Once upon a time", temperature=0, max_new_tokens=500)
    first = next(stream)
    assert first and len(first) < 20
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == []


def test_a_full_context_is_reported(inner: Model) -> None:
    assert inner.generate([[1] * 500], max_new_tokens=30, stop_tokens=())[0].finish_reason == "context"


def test_a_completion_prints_as_its_text(inner: Model) -> None:
    found = inner.generate("Once", max_new_tokens=3, temperature=0)
    assert str(found) == found.text and repr(found.text) in repr(found) and "3 tokens" in repr(found)


def test_other_libraries_names_are_answered_with_ours(inner: Model) -> None:
    for keywords, message in (
        ({"max_length": 3}, "it is called max_new_tokens"),
        ({"max_tokens": 3, "max_new_tokens": 3}, "mean the same"),
        ({"temprature": 3}, "it is called temperature"),
        ({"guidance": True}, "it has temperature, "),
    ):
        with pytest.raises(RungError, match=message):
            inner.generate("x", **keywords)  # type: ignore[call-overload]
    with pytest.raises(RungError, match=r"\[\[1, 2, 3\]\] is one prompt"):
        inner.generate([1, 2, 3])  # type: ignore[list-item]


def test_a_model_says_what_it_is_and_takes_torchs_dtypes() -> None:
    model = rung.load(device="auto", dtype=torch.float32)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    assert repr(model).startswith(f"<rung.Model inner: 5 layers of 384 channels, float32 on {where}"), repr(model)


def test_the_library_speaks_of_no_options_of_the_command_line() -> None:
    source = Path(rung.__file__).parent
    for path in [*(source / "gpt2").rglob("*.py"), source / "ops.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"(?<![\w-])--[a-z]", node.value), f"{path}, line {node.lineno}: {node.value}"
