"""Texts that follow a JSON schema: each is one, and what it is alone."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import gpt2_models as models
import rung
from rung.errors import RungError
from rung.models.load import Model

pytest.importorskip("llguidance")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "kinds": {"type": "array", "items": {"enum": ["king", "wolf"]}, "maxItems": 3},
    },
    "required": ["name", "age", "kinds"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(n_positions=256))


def test_texts_follow_a_schema_and_are_what_they_are_alone(model: Model) -> None:
    how: Any = {"schema": SCHEMA, "max_new_tokens": 120, "temperature": 1.0, "top_p": 1.0, "seed": 7}
    together = model.generate(["Once", "The wolf", "Little pig"], num_samples=2, **how)
    for text in together:
        jsonschema.validate(json.loads(text.text), SCHEMA)
        assert text.finish_reason == "stop"
    assert len({text.text for text in together}) > 1
    assert model.generate("The wolf", **how).text == together[2].text
    penalised = model.generate("The wolf", repetition_penalty=1.3, **how)
    jsonschema.validate(json.loads(penalised.text), SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_gpus_slots_follow_schemas_beside_other_texts(device: str) -> None:
    folder = models.saved(n_embd=32, n_head=2, n_layer=1, n_positions=128)
    cpu, gpu = (
        rung.load(folder, device=where, dtype="float32", **how)  # type: ignore[call-overload]
        for where, how in (("cpu", {}), (device, {"plan": "best", "kernels": {"decode": "dependent_launch"}}))
    )
    short = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
    how: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.0, "top_p": 1.0, "seed": 5, "stop_tokens": (399,)}
    for more in ({"schema": short}, {}, {"schema": short, "repetition_penalty": 1.2}):
        ours, theirs = (model.generate(["Once", "The wolf"], **how, **more) for model in (gpu, cpu))
        assert [c.tokens for c in ours] == [c.tokens for c in theirs]
        assert [c.finish_reason for c in ours] == [c.finish_reason for c in theirs]
        for text in ours if "schema" in more else ():
            if text.finish_reason == "stop":
                jsonschema.validate(json.loads(text.text), short)
    no_more = gpu.generate("Once", schema={"enum": [7]}, max_new_tokens=9, stop_tokens=(399,))
    assert json.loads(no_more.text) == 7 and no_more.finish_reason == "stop"


def test_drafts_change_no_text_that_follows_a_schema(model: Model) -> None:
    drafted = rung.load(models.saved(n_positions=256), dtype="float32", device="cpu", draft="ngram")
    how: Any = {"schema": json.dumps(SCHEMA), "max_new_tokens": 120, "temperature": 0}
    expected = model.generate('{"name": "king", "age": 7, ', **how)
    assert drafted.generate('{"name": "king", "age": 7, ', **how).tokens == expected.tokens


def test_an_end_of_text_waits_for_the_end_of_the_schema(model: Model) -> None:
    # Integers may go on; the end of text is likely by its bias, and comes where a number is complete.
    end = 399
    text = model.generate("Once", schema={"type": "integer"}, stop_tokens=[end], logit_bias={end: 100.0}, max_new_tokens=9)
    assert text.finish_reason == "stop" and isinstance(json.loads(text.text), int) and end not in text.tokens


@pytest.mark.parametrize(
    "schema", ["[1]", "{", '{"type": 5}', '{"$ref": "#"}', '{"$ref": "http://a/b"}', 5, " " * 70_000 + "{}"]
)
def test_what_is_no_schema_is_one_sentence(model: Model, schema: Any) -> None:
    with pytest.raises(RungError):
        model.generate("Once", schema=schema)
