"""Rungs are chosen by what they state: a number in a file's name is no reason."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpt2_models as models
import gpuless
import rung
from rung import operation
from rung.models import operations
from rung.models.operations import PLANS, Rungs, plan_rungs, prefill_rungs, roles, step_rungs
from rung.rungs import catalogue

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")


def chosen() -> dict[str, dict[str, list[str]]]:
    """What serves in every plan, prompt and step, by names without numbers."""

    def named(table: Rungs) -> dict[str, list[str]]:
        return {name: [re.sub(r"^\d+_", "", rung) for rung in table.get(name, ())] for name in roles()}

    found = {plan: named(plan_rungs(plan)) for plan in PLANS if plan not in ("torch", "best")}
    for dtype in ("f32", "f16", "bf16"):
        for rows in (1, 8, 16, 64, 300, 1024, 2048, 8192):
            found[f"prompt {dtype} {rows}"] = named(prefill_rungs("cuda", dtype, rows))
            found[f"step {dtype} {rows}"] = named(step_rungs("cuda", dtype, rows))
    return found


@pytest.fixture
def renumbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The ladders of models with other numbers, in another order; their headers and includes follow."""
    home = tmp_path / "ladders"
    shutil.copytree(operation.LADDERS, home)
    number = re.compile(r"^(\d+)_")
    ladders = {operations.ladder_of(name) for name in roles()}
    moved = {
        (name, int(found[1])): file.rename(file.with_name(f"{99 - int(found[1]):02}_{file.name[found.end() :]}"))
        for name in ladders
        for file in sorted((home / name).iterdir())
        if file.suffix in (".cu", ".py") and (found := number.match(file.name))
    }

    def follow(found: re.Match[str]) -> str:
        to = moved.get((found[1], int(found[2])))
        return found[0] if to is None else f'"{found[1]}/{to.stem[:2]}"'

    for file in home.glob("*/*.*"):
        if file.suffix in (".cu", ".py"):
            file.write_text(re.sub(r'"(\w+)/(\d+)"', follow, file.read_text()))
    monkeypatch.setattr(operation, "LADDERS", home)
    caches = (catalogue.rungs, catalogue._library_rung, operations.last_resort, operations.find)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


BEFORE = chosen()


@pytest.mark.slow
@emulated
def test_other_numbers_of_rungs_change_nothing(renumbered: None) -> None:
    first = catalogue.rungs("gelu")[0]
    assert (first.number or 0) > 80
    assert chosen() == BEFORE
    folder, ids = models.saved(n_layer=1), models.some_ids(7)
    model = rung.load(folder, device="emulator", plan="fused", dtype="float32")
    right = models.reference_logits(folder, ids)
    assert float((model.logits(ids) - right).abs().max()) < 1e-4 * float(right.abs().max())
    assert re.fullmatch(r"matmul/[89]\d_double_buffer", model.plan.rungs_in_use["matmul"])


def test_ranks_are_different_wherever_several_rungs_serve() -> None:
    for name in roles():
        for purpose in ("any", "prompt", "step", *PLANS):
            ranks = [
                rank
                for one in catalogue.rungs(operations.ladder_of(name))
                if operations.role_of(one) == name and (rank := one.header.model.serves.get(purpose)) is not None
            ]
            plain = [rank for rank in ranks if isinstance(rank, int)]
            assert len(plain) == len(set(plain)), (name, purpose)
