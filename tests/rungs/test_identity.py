"""Of which code a figure is: texts that say the same are equal, and where they differ the compiled code decides."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import compiled_codes
from gpuless.compile import nvrtc
from result_rows import row
from rung.dtypes import DTYPES
from rung.operation import LADDERS
from rung.results import codes, store
from rung.rungs import catalogue, identity, tunings
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

KERNEL = """/*---
idea = "A test."
dtypes = ["f32"]
[tune]
BLOCK = [32, 64]
[[launch]]
kernel = "k"
grid = "B * T"
block = "BLOCK"
---*/
#include "rung.cuh"
#include "own.cuh"
extern "C" __global__ void k(const Real* a, const Real* b, Real* out)
{
    // One sum.
    out[threadIdx.x] = twice(a[0]) + b[0];
}
"""
OWN = '#pragma once\n#include "deeper.cuh"\n__device__ Real unused(Real x) { return x - 1; }\n'
DEEPER = "#pragma once\n__device__ Real twice(Real x) { return 2 * x; }\n"
SHAPE = {"B": 2, "T": 4, "C": 64}


def custom(folder: Path, kernel: str = KERNEL, own: str = OWN, deeper: str = DEEPER) -> Rung:
    folder.mkdir(exist_ok=True)
    path = folder / "mine.cu"
    path.write_text(kernel)
    (folder / "own.cuh").write_text(own)
    (folder / "deeper.cuh").write_text(deeper)
    return catalogue.rung_from_file(catalogue.operation("residual"), path)


def code(rung: Rung) -> str:
    return identity.code(rung, SHAPE, "f32", {"BLOCK": 32})


SAID = [
    ('idea = "A test."', 'idea = "Another."\nfound = "Twice as fast."\nneeds = "sm >= 70"'),
    ("// One sum.\n", "/* a\n comment */\n"),
    ("    out[threadIdx.x] = twice(a[0]) + b[0];", "  out[ threadIdx.x ]=twice( a[0] )\n      + b[0];"),
    ("BLOCK = [32, 64]", "BLOCK = [32, 64, 128]"),
]


@pytest.mark.parametrize(("old", "new"), SAID)
def test_comments_leave_the_text_unchanged(tmp_path: Path, old: str, new: str) -> None:
    assert KERNEL.count(old) == 1
    before = identity.text(custom(tmp_path / "a"))
    assert identity.text(custom(tmp_path / "b", KERNEL.replace(old, new))) == before


CHANGED = [
    (KERNEL, "twice(a[0]) + b[0]", "twice(a[0]) - b[0]"),
    (KERNEL, 'grid = "B * T"', 'grid = "B"'),
    (DEEPER, "2 * x", "3 * x"),
]


@pytest.mark.parametrize(("of", "old", "new"), CHANGED)
def test_what_runs_changes_text_and_code(tmp_path: Path, of: str, old: str, new: str) -> None:
    assert of.count(old) == 1
    before, after = (
        custom(tmp_path / "a"),
        custom(tmp_path / "b", *(t.replace(old, new) if t == of else t for t in (KERNEL, OWN, DEEPER))),
    )
    assert identity.text(before) != identity.text(after)
    assert code(before) != code(after)


SAME_CODE = [
    (
        KERNEL,
        "const Real* a, const Real* b, Real* out)\n{",
        "const Real* a, const Real* b, Real* out)\n{\n    const int one = 1;",
    ),
    (OWN, "return x - 1;", "return x - 2;"),
    (DEEPER, "2 * x", "x * 2"),
    (KERNEL, 'grid = "B * T"', 'grid = "T * B"'),
]


@pytest.mark.parametrize(("of", "old", "new"), SAME_CODE)
def test_another_text_may_be_the_same_code(tmp_path: Path, of: str, old: str, new: str) -> None:
    assert of.count(old) == 1
    before, after = (
        custom(tmp_path / "a"),
        custom(tmp_path / "b", *(t.replace(old, new) if t == of else t for t in (KERNEL, OWN, DEEPER))),
    )
    assert identity.text(before) != identity.text(after)
    assert code(before) == code(after) != ""


def test_code_says_its_compiler_and_architecture(tmp_path: Path) -> None:
    major, minor = nvrtc.version()
    assert re.fullmatch(rf"nvrtc{major}\.{minor}-sm_90:[0-9a-f]{{16}}", code(custom(tmp_path)))
    assert identity.code(catalogue.find("layernorm/torch"), SHAPE, "f32") == ""


def test_the_machine_code_is_that_of_the_kernels(tmp_path: Path) -> None:
    rung = custom(tmp_path)
    assert isinstance(rung, CudaRung)
    build = rung.build(rung.operation.complete(SHAPE), DTYPES["f32"])
    found = identity.machine_code(nvrtc.compile_cubin(build, "sm_90").path.read_bytes())
    assert [name for name in found if name.startswith(".text.")] == [".text.k"] and len(found[".text.k"]) >= 128


def test_a_python_rung_is_its_code_and_the_files_that_it_names(tmp_path: Path) -> None:
    named = {p.name for p in identity.files(catalogue.find("decode/eight_bit_cache"))}
    assert {"08_library_products.py", "eight_bit_cache.cuh", "rung.cuh"} <= named
    source = (LADDERS / "layernorm" / "12_triton.py").read_text()
    one, other, third = (tmp_path / f"{name}.py" for name in "abc")
    one.write_text(source)
    other.write_text(source.replace("FOUND = (", 'FOUND = ("Something else. "') + "\n# a comment\n")
    third.write_text(source.replace("eps", "epsilon"))
    operation = catalogue.operation("layernorm")
    texts = [identity.own_text(catalogue.rung_from_file(operation, p)) for p in (one, other)]
    assert texts[0] == texts[1] != identity.own_text(catalogue.rung_from_file(operation, third))


# ---- the index of compiled code -------------------------------------------------------------------------------------


def test_a_figure_belongs_to_its_text_or_to_the_same_compiled_code() -> None:
    made = row("layernorm/tree", 30.0)
    (now,) = made.texts.values()
    earlier = replace(made, texts={made.what: "0" * 16})
    assert codes.current(made, {}) and not codes.current(earlier, {})
    assert codes.current(earlier, {made.what: {"0" * 16: "c", now: "c"}})
    assert not codes.current(earlier, {made.what: {"0" * 16: "c", now: "d"}})
    removed = replace(made, texts={"layernorm/99_gone": now})
    assert not codes.current(removed, {})


def test_texts_are_digested_once_until_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    digested: list[str] = []
    monkeypatch.setattr(identity, "text", lambda rung: digested.append(rung.full_name) or "0" * 16)
    saved: list[tuple[object, ...]] = []
    monkeypatch.setattr(codes.atexit, "register", lambda *call: saved.append(call))

    def one_process() -> str:
        codes._texts.cache_clear()
        codes.text_now.cache_clear()
        found = codes.text_now("gelu/01_naive")
        for function, *arguments in saved:
            function(*arguments)  # type: ignore[operator]
        saved.clear()
        return found

    try:
        assert one_process() == one_process() == "0" * 16 and digested == ["gelu/01_naive"]
        monkeypatch.setattr(codes, "LADDERS", tmp_path / "elsewhere")
        assert one_process() == "0" * 16 and len(digested) == 2  # another package, and none of its ladders
        monkeypatch.undo()
        monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
        (file,) = (tmp_path / "texts").glob("*.json")
        file.write_text(file.read_text().replace('"stamp": "', '"stamp": "changed'))
        assert one_process() == identity.text(catalogue.find("gelu/01_naive"))
    finally:
        codes._texts.cache_clear()
        codes.text_now.cache_clear()


def test_the_index_compiles_what_it_does_not_know_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made = row("gelu/naive", 80.0, shape="b4t64", time="2026-01-01T00:00:00Z")
    rung = catalogue.find("gelu/naive")
    right = identity.code(rung, made.values, "f32", made.tuning)
    earlier = replace(made, texts={made.what: "0" * 16}, code=right)
    found = compiled_codes.updated([earlier], {})
    assert codes.current(earlier, found)
    assert not codes.current(earlier, compiled_codes.updated([replace(earlier, code=right[:-1] + "x")], {}))
    monkeypatch.setattr(compiled_codes, "built", None)  # what is known is not compiled again
    assert compiled_codes.updated([earlier], found) == found
    assert compiled_codes.updated([replace(made, code=right)], {}) == {}  # of the text at hand: nothing to know


def test_what_a_text_between_compiled_to_stays_known() -> None:
    """A climb was measured with a text that is neither the bench's nor the present one; all three are the same code."""
    made = row("gelu/naive", 80.0, shape="b4t64")
    code = identity.code(catalogue.find("gelu/naive"), made.values, "f32", made.tuning)
    benched = replace(made, texts={made.what: "0" * 16}, code=code)
    climbed = replace(made, kind="climb", what="gpt2", texts={made.what: "1" * 16}, code="")
    found = compiled_codes.updated([benched, climbed], {})
    assert not codes.current(climbed, found)
    (digest,) = set(found[made.what].values())
    known = {made.what: {**found[made.what], "1" * 16: digest}}
    assert codes.current(climbed, compiled_codes.updated([benched, climbed], known))


def test_newer_rows_of_other_shapes_leave_older_ones_the_present_code() -> None:
    older = row("gelu/naive", 80.0, shape="b4t64", time="2026-01-01T00:00:00Z")
    code = identity.code(catalogue.find("gelu/naive"), older.values, "f32", older.tuning)
    newer = replace(older, shape="b8t1024", time="2026-01-02T00:00:00Z", code="another build")
    older = replace(older, texts={older.what: "0" * 16}, code=code)
    found = compiled_codes.updated([older], {})
    assert codes.current(older, found) and codes.current(newer, found)
    assert codes.current(older, compiled_codes.updated([older, newer], found))


def test_a_compiler_that_assigns_registers_by_chance_does_not_make_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(row("gelu/naive", 80.0), code="nvrtc13.0-sm_90:usual")
    compiled = iter(["nvrtc13.0-sm_90:rare", "nvrtc13.0-sm_90:usual", "nvrtc13.0-sm_90:rare"])
    asked = []

    def code(*_: object, again: bool, **__: object) -> str:
        asked.append(again)
        return next(compiled)

    monkeypatch.setattr(identity, "code", code)
    assert compiled_codes.built(made, catalogue.find("gelu/naive")) == made.code
    assert asked == [False, True]  # from the cache first


PUBLISHED = [r for r in store.published() if r.kind == "bench" and r.code]  # read once, not for every rung


def recompiled(name: str) -> None:
    """Every published row of the rung that is shown compiles to what it says, as far as this compiler can tell."""
    ours = "nvrtc{}.{}-".format(*nvrtc.version())
    rows = [r for r in PUBLISHED if r.what == name and r.code.startswith(ours)]
    shown = [r for r in rows if codes.current(r)]
    other = [r for r in shown if compiled_codes.built(r, catalogue.find(name)) != r.code]
    if other and all(r.texts[name] == codes.text_now(name) for r in other):
        # The process that measured may have been the one of twenty whose compiler assigned other registers.
        other = other[:1] if compiled_codes.built(other[0], catalogue.find(name), attempts=100) != other[0].code else []
    assert not other, f"{name}: {[f'{r.dtype} {r.shape}' for r in other]}"


@pytest.mark.parametrize("name", ["bias/01_naive", "gelu/01_naive", "reduce/05_shuffle"])
def test_a_shown_figure_is_of_the_code_at_hand(name: str) -> None:
    recompiled(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({r.what for r in PUBLISHED}))
def test_every_shown_figure_is_of_the_code_at_hand(name: str) -> None:
    recompiled(name)


# ---- tunings --------------------------------------------------------------------------------------------------------


def test_a_tuning_of_other_headers_is_listed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung, path = catalogue.find("layernorm/tree"), tmp_path / "tunings.jsonl"
    values = rung.operation.complete(SHAPE)

    def record(dtype: str) -> None:
        tunings.record(
            rung, dtype=dtype, values=values, tuning={"BLOCK": 64}, cold_us=1.0, default_us=None,
            machine={"gpu": "one"}, path=path,
        )  # fmt: skip

    record("f32")
    monkeypatch.setattr(identity, "text", lambda rung: "0" * 16)
    record("bf16")
    monkeypatch.undo()
    listed = tunings.listed(path)
    assert {r["dtype"]: r["headers_changed"] for r in listed} == {"f32": False, "bf16": True}
    assert not any(r["stale"] for r in listed)  # the rung's own text, and with it the tunables, is as it was


def test_a_python_rung_has_the_same_text_in_every_version_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "class A:\n    def f(self, *, x: int = 1) -> None:\n        return None\n"
    before = identity._python(source)
    assert before == ast.dump(ast.parse(source)) or sys.version_info >= (3, 12)
    assert hashlib.sha256(before.encode()).hexdigest()[:16] == "a94f5d7fc710dc9d"
    for kind in (ast.FunctionDef, ast.ClassDef):  # as Python 3.12 has them
        monkeypatch.setattr(kind, "_fields", (*kind._fields, "type_params"))
        monkeypatch.setattr(kind, "type_params", [], raising=False)
    assert identity._python(source + "\n") == before
