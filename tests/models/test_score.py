"""model.score and `rung score`: transformers' figures, and the same bits in any company."""

import itertools
import json
import math
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

import rung
from gpt2_models import TEXT, reference, saved
from rung import RungError
from rung.models.gpu import scoring
from rung.models.gpu.scoring import GpuScorer, _Sent
from rung.models.score import Text, scores
from rung.models.weights import stack
from rung.results import store


def expected(folder: Path, ids: list[int]) -> torch.Tensor:
    """transformers' log-probabilities of all tokens but the first."""
    logits = reference(folder)(torch.tensor([ids])).logits[0].detach().double()
    return -F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


def ids_of(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(400), k=count)


def test_a_scores_tokens_are_checked_together() -> None:
    model, calls = rung.load(saved(), dtype="float32"), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    ids = ids_of(1, 5000)
    sys.setprofile(count)
    try:
        found = model._text(ids)
    finally:
        sys.setprofile(None)
    assert found.ids == tuple(ids) and calls < 500


def test_a_text_has_transformers_figures() -> None:
    folder = saved()
    model, ids = rung.load(folder, dtype="float32", device="cpu"), ids_of(1, 50)
    found = model.score([ids], per_token=True)[0]
    requested = expected(folder, ids)
    assert found.token_logprobs is not None and found.token_logprobs[0] is None
    assert torch.allclose(torch.tensor(found.token_logprobs[1:]).double(), requested, atol=1e-4)
    assert found.logprob == pytest.approx(requested.sum().item(), abs=1e-3) and found.predicted == 49
    logp = reference(folder)(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    assert torch.allclose(torch.tensor(found.token_entropies[1:]), entropy, atol=1e-4)
    own = logp.gather(1, torch.tensor(ids[1:])[:, None])
    assert list(found.token_ranks[1:]) == (logp > own).sum(1).tolist()


def test_bytes_and_perplexity_of_a_text() -> None:
    model = rung.load(saved(), dtype="float32", device="cpu")
    found = model.score("Märchen vom Drachen")
    assert found.bytes == len("Märchen vom Drachen".encode())
    assert found.bits_per_byte == pytest.approx(-found.logprob / math.log(2) / found.bytes)
    assert found.perplexity == pytest.approx(math.exp(-found.logprob / found.predicted))
    assert model.score("").predicted == 0 and math.isnan(model.score("").loss)


def test_the_first_token_can_be_predicted_too() -> None:
    folder = saved(eos_token_id=399)
    model, ids = rung.load(folder, dtype="float32", device="cpu"), ids_of(2, 20)
    found = model.score([ids], predict_first=True, per_token=True)[0]
    assert found.predicted == 20
    assert torch.allclose(torch.tensor(found.token_logprobs).double(), expected(folder, [399, *ids]), atol=1e-4)
    with pytest.raises(RungError, match="names no end-of-text token"):
        rung.load(saved(), device="cpu").score([ids], predict_first=True)


def test_long_texts_go_through_windows_that_overlap() -> None:
    folder = saved()
    model, ids = rung.load(folder, dtype="float32", device="cpu"), ids_of(3, 150)
    found = model.score([ids], stride=32, per_token=True)[0]
    requested = expected(folder, ids[:64]).tolist()
    for begin in (32, 64, 96):
        fresh = min(begin + 64, 150) - (begin + 32)
        requested += expected(folder, ids[begin : begin + 64])[-fresh:].tolist()
    assert found.predicted == 149
    assert found.token_logprobs[1:] == pytest.approx(requested, abs=1e-4)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=8), st.randoms(use_true_random=False))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_company_and_order_change_no_bit(dtype: str, lengths: list[int], chance: random.Random) -> None:
    model = _model(dtype)
    texts = [ids_of(100 + i, n) for i, n in enumerate(lengths)]
    alone = [model.score([ids], per_token=True)[0] for ids in texts]
    order = list(range(len(texts)))
    chance.shuffle(order)
    assert model.score([texts[i] for i in order], per_token=True) == [alone[i] for i in order]


_models: dict[str, rung.models.load.Model] = {}


def _model(dtype: str):
    if dtype not in _models:
        _models[dtype] = rung.load(saved(), dtype=dtype, device="cpu")
    return _models[dtype]


def test_the_gpus_passes_give_the_same_figures_alone_and_together() -> None:
    folder = saved()
    model = rung.load(folder, dtype="float32", device="cpu")
    tensors = stack(model.transformer.weights, torch.float32, torch.device("cpu"))
    rater = GpuScorer(model.config, tensors, tokens=128, ahead=5)
    texts = [Text(ids_of(40 + i, n)) for i, n in enumerate((2, 64, 17, 33, 16, 5, 64, 30, 1))]
    together = list(scores(rater, texts, context=64, stride=32, per_token=True))
    assert set(rater.passes) == {16, 32, 64}
    for text, found in zip(texts, together, strict=True):
        alone = next(scores(GpuScorer(model.config, tensors, tokens=128), [text], context=64, stride=32, per_token=True))
        assert alone == found
        if len(text.ids) > 1:
            requested = expected(folder, list(text.ids))
            assert torch.allclose(torch.tensor(found.token_logprobs[1:]).double(), requested, atol=1e-4)


def test_scores_come_while_texts_are_still_read() -> None:
    model = rung.load(saved(), dtype="float32", device="cpu")
    read: list[int] = []

    def texts():
        for i in range(100):
            read.append(i)
            yield ids_of(i, 5)

    stream = model.scores(texts())
    next(stream)
    assert len(read) < 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.score([[1, 400]]), "token 400 is outside"),
        (lambda m: m.score("a", stride=0), "stride is 0"),
        (lambda m: m.score("a", context=65), "context is 65"),
        (lambda m: m.score("a", tokens=True), "no option 'tokens'"),
    ],
)
def test_mistakes_are_reported(call, message: str) -> None:
    with pytest.raises(RungError, match=message):
        call(_model("float32"))


def test_the_command_line_reads_writes_and_resumes(tmp_path: Path, capfd) -> None:
    from rung.cli import main

    folder, source, out = saved(), tmp_path / "texts.jsonl", tmp_path / "scores.jsonl"
    texts = [TEXT[i * 20 : i * 20 + 30] for i in range(6)]
    source.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts))

    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["score", *words])
        return int(ended.value.code or 0)

    common = [str(source), "--model", str(folder), "--field", "prompt", "--dtype", "float32", "-o", str(out)]
    assert run(*common) == 0
    whole = out.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    model = rung.load(folder, dtype="float32", device="cpu")
    assert [r["logprob"] for r in rows] == [model.score(t).logprob for t in texts]
    cut = whole.splitlines(keepends=True)
    out.write_text("".join(cut[:2]) + cut[2][:10])
    assert run(*common) == 0 and out.read_text() == whole
    assert run(*common, "--stride", "8") == 2 and "options" in capfd.readouterr().err
    assert out.read_text() == whole
    assert run(*common[:-2], "--field", "text") == 2 and "no text in 'text'" in capfd.readouterr().err


def test_a_printed_score_holds_its_perplexity() -> None:
    score = _model("float32").score(TEXT[:40])
    assert f"{score.perplexity:.4f}" in str(score) and f"{score.tokens}" in str(score)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_on_a_gpu_company_changes_no_bit_and_figures_are_transformers(dtype: str) -> None:
    folder = saved(n_embd=128, n_head=2, n_positions=256)
    model = rung.load(folder, device="cuda", dtype=dtype)
    texts = [ids_of(i, n) for i, n in enumerate((2, 256, 17, 33, 16, 129, 5, 64, 200))]
    together = model.score(texts, per_token=True)
    assert together == [model.score([ids], per_token=True)[0] for ids in texts]
    assert model.score(texts[::-1], per_token=True) == together[::-1]
    slack = {"float32": 1e-4, "bfloat16": 0.5, "int8": 1.0}[dtype]
    for ids, found in zip(texts, together, strict=True):
        assert found.token_logprobs[1:] == pytest.approx(expected(folder, ids).tolist(), abs=slack)


@pytest.mark.slow
def test_smaller_weights_lose_what_is_published() -> None:
    """The divergence from transformers' float32 that README shows, on the weights and tokens it was measured with."""
    rows = [r for r in store.published() if r.what == "gpt2" and "kl_nats" in r.metrics]
    losses = {r.dtype: r.metrics["kl_nats"] for r in rows if r.dtype in ("bfloat16", "int8")}
    assert losses.keys() == {"bfloat16", "int8"}
    torch.manual_seed(0)
    ids = torch.randint(0, 50257, (1, 576))[:, :24]
    theirs = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        with torch.inference_mode():
            right = theirs(ids).logits[0].log_softmax(-1)
        for dtype, published in losses.items():
            model = rung.load(folder, dtype=dtype, device="cpu")
            cache = model.transformer.new_cache(24, 24)
            cache.begin(24)
            stepped = model.transformer.advance([ids[0, : n + 1].tolist() for n in range(24)], cache)
            for logits in (model.logits(ids[0]), stepped[:8], stepped[8:]):  # torch's, steps, passes
                printed = right[-len(logits) :] if len(logits) > 8 else right[:8]
                found = F.kl_div(logits.log_softmax(-1), printed, log_target=True, reduction="batchmean").item()
                assert 0 < found < 1.5 * published, f"{dtype}: {found:.2g} nats per token, {published:.2g} published"


def test_figures_of_tokens_that_nobody_asks_for_change_no_bit() -> None:
    model, ids = rung.load(saved(), dtype="float32", device="cpu"), ids_of(5, 60)
    (alone,), (whole,) = model.score([ids]), model.score([ids], per_token=True)
    assert alone.logprob == whole.logprob and alone.token_logprobs is None and whole.token_ranks is not None


def test_windows_wait_for_others_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[int, int]] = []

    class Counted(GpuScorer):
        def _send(self, length, windows):
            passes.append((length, len(windows)))
            figures = torch.zeros(3, len(windows), length)
            for row, (_, window) in enumerate(windows):
                figures[0, row] = window[0]
            return _Sent([(number, len(window)) for number, window in windows], figures, None)

    def rated(texts: list[list[int]], **how: int) -> list[float]:
        passes.clear()
        rater = Counted(SimpleNamespace(context=1024), {}, tokens=128, **how)
        return [float(one.logprobs[0]) for one in rater.rate(texts)]

    texts = [[i] * random.Random(i).choice((10, 17, 30, 64, 90)) for i in range(300)]
    assert rated(texts) == list(range(300))
    rows = {16: 8, 32: 4, 64: 2, 96: 1}
    requested = {length: sum(padded(len(t) - 1) == length for t in texts) for length in rows}
    for length, most in rows.items():
        assert sum(at == length for at, _ in passes) == -(-requested[length] // most)
    assert rated([[0] * 10, *[[1] * 30] * 20], ahead=9)[0] == 0 and passes.index((16, 1)) < 4
    now = itertools.count(0, 3)
    monkeypatch.setattr(scoring.time, "monotonic", lambda: float(next(now)))
    assert rated([[0] * 10, *[[1] * 30] * 20])[0] == 0 and passes[0] == (16, 1)


def padded(tokens: int) -> int:
    return next(n for n in scoring.LENGTHS if n >= tokens)
