"""The items of the five documents are held to account: each names what can show it, or is closed with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rung import plugins
from rung.cli import VERBS as OWN
from rung.results.row import Row
from rung_reproduce import items, sources

ALL = items.items()
VERBS = [*OWN, *plugins.entries(plugins.COMMANDS)]


def test_every_document_has_its_items_and_few_are_closed() -> None:
    assert {item.document for item in ALL} == set(sources.documents())
    assert len(ALL) >= 201 and len({(i.document, i.section, i.what) for i in ALL}) == len(ALL)
    closed = [item for item in ALL if item.closed]
    assert len(closed) <= 8 and all(len(item.closed.split()) >= 5 for item in closed)
    assert all(bool(item.shown_by) == bool(item.outcome) != bool(item.closed) for item in ALL)


def test_a_sentence_or_an_empty_figure_makes_an_item_partly_so() -> None:
    plain = replace(next(i for i in ALL if i.shown_by), shown_by=("rung sweep",), outcome="Partly: half of it.")
    assert plain.state([]) == "partly" and replace(plain, outcome="Theirs.").state([]) == "as described"
    assert replace(plain, closed="a reason").state([]) == "closed"
    assert replace(plain, shown_by=("layernorm/2",)).state([]).startswith("waits")


@pytest.mark.parametrize("item", [i for i in ALL if i.shown_by], ids=lambda i: f"{i.document}: {i.what[:40]}")
def test_an_item_names_what_exists(item: items.Item) -> None:
    assert {name: why for name in item.shown_by if (why := items.complaint(name, VERBS))} == {}


def test_a_row_of_other_options_dtype_or_gpu_is_no_evidence() -> None:
    options = {"study": "attention", "new_tokens": 512}
    row = Row(
        kind="climb", what="gpt2", part="naive torch", dtype="float32", options=options, machine={"gpu": "A H200"}
    )
    assert items.there("climb gpt2/naive_torch study=attention batch=1 gpu=H200", [row])
    for other in ("batch=4", "dtype=bfloat16", "gpu=H100", "new_tokens=8"):
        assert not items.there(f"climb gpt2/naive_torch {other}", [row])
    four = Row.of_json({**row.as_json(), "options": {**options, "batch": 4}})
    assert items.there("climb gpt2/naive_torch batch=4", [four]) and not items.there(
        "climb gpt2/naive_torch batch=1", [four]
    )
    failed = Row.of_json({**row.as_json(), "verdict": "failed"})
    assert not items.there("climb gpt2/naive_torch", [failed])


def test_a_rung_is_there_once_it_has_a_row_and_figures_once_all_have() -> None:
    bench = Row(kind="bench", what="layernorm/01_naive", dtype="f32", shape="b4t64", metrics={"cold_us": 1.0})
    assert items.there("layernorm/1", [bench]) and not items.there("layernorm/2", [bench])
    assert not items.there("figures milestone3 Constant memory", [bench])


@pytest.mark.parametrize(
    "name",
    ["copy/99_nowhere", "rung fly", "tests/test_nothing.py", "figures lecture Part 9", "docs/coverage.md::test_no"],
)
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert items.complaint(name, VERBS)
