"""lm-evaluation-harness over HTTP: its figures are those of the model in process, and transformers'."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

import gpt2_models as models
from serving import running

needed = ("tenacity", "lm_eval")
pytestmark = pytest.mark.skipif(not all(find_spec(name) for name in needed), reason=f"needs {' and '.join(needed)}")


def instance(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(kind, {}, arguments, 0)


@pytest.mark.slow
def test_local_completions_gives_the_models_own_figures() -> None:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from rung.exchange.harness import HarnessModel

    folder = models.saved(n_positions=256, eos_token_id=399)
    model = models.ours(folder)
    pairs = [("Once upon a time", " there was a king"), ("The wolf", " said"), ("A dragon", " flew over the castle")]
    for prompt in ("Once upon", "Little pig"):
        pairs.append((prompt, model.generate(prompt, temperature=0, max_new_tokens=1, stop_tokens=()).text or "x"))
    with running(folder) as server:
        harness = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions", model="tiny", tokenizer=str(folder), num_concurrent=1, max_length=256
        )
        figures = harness.loglikelihood([instance("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
        until = {"until": ["n"], "max_gen_toks": 20, "temperature": 0}
        (written,) = harness.generate_until([instance("generate_until", "The wolf", until)], disable_tqdm=True)
    within = HarnessModel(model).loglikelihood([instance("loglikelihood", *pair) for pair in pairs])
    assert [greedy for _, greedy in within] == [greedy for _, greedy in figures]
    assert [logprob for logprob, _ in within] == pytest.approx([logprob for logprob, _ in figures], abs=1e-4)
    for (prompt, rest), (logprob, greedy) in zip(pairs, figures, strict=True):
        before = len(model.tokenizer.encode(prompt))
        ids = model.tokenizer.encode(prompt + rest)
        rows = models.reference_logits(folder, ids).log_softmax(-1)[before - 1 : -1]
        expected = sum(float(row[token]) for row, token in zip(rows, ids[before:], strict=True))
        assert logprob == pytest.approx(expected, abs=1e-3)
        assert greedy == all(int(row.argmax()) == token for row, token in zip(rows, ids[before:], strict=True))
    assert any(greedy for _, greedy in figures) and not all(greedy for _, greedy in figures)
    ids = models.reference_greedy(folder, model.tokenizer.encode("The wolf"), 20)
    assert written and written + "n" == model.tokenizer.decode(ids)[: len(written) + 1]
    assert written == model.generate("The wolf", temperature=0, max_new_tokens=20, stop=["n"]).text
