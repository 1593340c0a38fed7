"""The plug-in for llm: found by its entry point, streaming, with options, on the model inside."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import rung

llm = pytest.importorskip("llm")
from rung.exchange import llm_plugin  # noqa: E402 - needs llm

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "llm.Model":
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    from llm.plugins import load_plugins, pm

    load_plugins()
    if not pm.is_registered(llm_plugin):  # where rung is installed its entry point has done so
        pm.register(llm_plugin)
    return llm.get_model("rung")


def test_the_entry_point_names_the_plugin() -> None:
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["llm"]
    assert import_module(plugins["rung"]) is llm_plugin


def test_a_response_is_rungs_own_text_and_streams(model: "llm.Model") -> None:
    options = dict(max_tokens=12, temperature=0, device="cpu")
    response = model.prompt("Once upon a time", **options)
    pieces = list(response)
    expected = rung.load("inner").generate("Once upon a time", max_tokens=12, temperature=0)
    assert "".join(pieces) == expected.text and len(pieces) > 3
    assert (response.usage().input, response.usage().output) == (expected.prompt_tokens, 12)
    assert model.prompt("Once upon a time", stream=False, **options).text() == expected.text


def test_options_are_checked_and_heard(model: "llm.Model") -> None:
    first, again = (model.prompt("Once", max_tokens=8, seed=5, device="cpu").text() for _ in range(2))
    assert first == again
    assert " " not in model.prompt("Once", max_tokens=8, temperature=0, stop=" ", device="cpu").text()
    with pytest.raises(ValueError, match="temperature"):
        model.prompt("Once", temperature=-1)


def test_a_conversation_goes_on_where_it_ended(model: "llm.Model") -> None:
    talk = model.conversation()
    first = talk.prompt("Once upon a time", max_tokens=5, temperature=0, device="cpu").text()
    second = talk.prompt(" and", max_tokens=5, temperature=0, device="cpu").text()
    whole = rung.load("inner").generate(f"Once upon a time{first} and", max_tokens=5, temperature=0)
    assert second == whole.text
