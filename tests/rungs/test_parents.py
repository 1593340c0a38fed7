"""Rungs as a story: where each comes from, what it changes there, and pages for what is longer than a sentence."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest

from gpuless.compile.source import without_comments
from rung.cli import main
from rung.errors import RungError
from rung.operation import LADDERS
from rung.rungs import catalogue, difference, header, identity
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung

MOST = 0.60  # of a rung's tokens that may be new to its parent before the header has to say why
LONG = 2000  # tokens from which frequent ones, such as brackets, are aligned only beside others
SHORT = 40  # lines that are read at a glance, whatever changed in them

EVERY = [rung for name in catalogue.operations() for rung in catalogue.rungs(name, libraries=False)]


class Show:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["show", *words])
        assert ended.value.code == 0
        return self.capsys.readouterr().out


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Show:
    return Show(capsys)


HEADER, TOKEN = re.compile(r"\A\s*/\*---.*?---\*/", re.DOTALL), re.compile(r"\w+|[^\w\s]")


def own_part(parent: Rung, rung: Rung) -> tuple[str, str]:
    """The code of both without the headers that both include: what the rung could have changed."""
    inlined = [set(re.findall(r"^// ---- (\S+\.cuh)$", difference.code(r), re.MULTILINE)) for r in (parent, rung)]
    shared = inlined[0] & inlined[1]
    return difference.code(parent, shared), difference.code(rung, shared)


def replaced(parent: Rung, rung: Rung) -> float:
    """The share of a rung's tokens that its parent does not have in the same order. Headers' settings do not count, nor
    do files that both include."""
    own = own_part(parent, rung)
    before, after = (TOKEN.findall(without_comments(HEADER.sub("", text))) for text in own)
    same = difflib.SequenceMatcher(None, before, after, autojunk=len(after) > LONG).get_matching_blocks()
    return 1.0 - sum(block.size for block in same) / max(1, len(after))


def body_lines(parent: Rung | None, rung: Rung) -> int:
    text = HEADER.sub("", own_part(parent, rung)[1] if parent else difference.code(rung))
    return sum(bool(line.strip()) for line in text.splitlines())


@pytest.mark.parametrize("rung", EVERY, ids=lambda rung: rung.full_name)
def test_where_most_of_the_parent_is_replaced_the_header_says_why(rung: Rung) -> None:
    parent = catalogue.parent(rung)
    if parent is not None and parent.kind != rung.kind:
        return  # another language: all of it is new
    if parent is None or body_lines(parent, rung) <= SHORT:
        assert not rung.rewrite, f"{rung.full_name} explains a rewrite that is none"
        return
    share = replaced(parent, rung)
    if rung.rewrite:
        assert share > MOST / 2, f"{rung.full_name} explains a rewrite, but keeps most of {parent.full_name}"
    else:
        assert share <= MOST, f"{rung.full_name} replaces {share:.0%} of {parent.full_name}; say why in rewrite"


def test_every_chain_of_parents_ends_at_a_first_rung() -> None:
    for rung in EVERY:
        seen: list[str] = []
        at: Rung | None = rung
        while at is not None:
            assert at.full_name not in seen, f"{rung.full_name} descends from itself: {seen}"
            seen.append(at.full_name)
            at = catalogue.parent(at)
        assert catalogue.find(seen[-1]).number == 1


def test_no_change_is_measured_between_a_rung_and_itself_and_all_of_it_against_nothing_alike() -> None:
    rung = catalogue.find("layernorm/7")
    assert replaced(rung, rung) == 0.0
    assert replaced(catalogue.find("transpose/1"), catalogue.find("matmul/19")) > 0.8


def test_a_difference_is_shown_to_the_parent_in_another_ladder(shown: Show) -> None:
    output = shown("local_attention/3", "--diff")
    assert output.startswith("--- attention/24_output_in_registers\n+++ local_attention/03_tiles")
    assert len(output.splitlines()) < 100  # and small, since it is the true parent


@pytest.mark.parametrize("rung", ["layernorm/7", "attention/16", "decode/streamed_int8", "matmul/18", "layernorm/12"])
def test_a_difference_is_of_the_code_alone(shown: Show, rung: str) -> None:
    changed = [line for line in shown(rung, "--diff").splitlines() if line[:1] in "+-"][2:]
    assert changed
    assert not [line for line in changed if re.match(r"[+-](idea|expect|found|provenance|from|rewrite)\b", line, re.I)]


def test_a_rung_that_only_sets_an_option_differs_by_that_line(shown: Show) -> None:
    changed = [line for line in shown("attention/16", "--diff").splitlines() if line[:1] in "+-"][2:]
    assert changed == ['+options = ["--use_fast_math"]']


def test_headers_of_the_ladder_are_part_of_what_is_compared() -> None:
    code = difference.code(catalogue.find("decode/streamed"))
    assert "// ---- stream.cuh" in code and "#pragma once" not in code and '#include "rung.cuh"' in code


def test_a_long_story_is_a_page_that_show_prints(shown: Show) -> None:
    rung = catalogue.find("decode/pacing")
    assert len(rung.found) <= 400 < len(rung.story)
    assert rung.story.rstrip() in shown("decode/pacing")
    assert json.loads(shown("decode/pacing", "--json"))["story"] == rung.story


def test_every_page_beside_a_rung_belongs_to_one() -> None:
    pages = set(LADDERS.glob("*/[0-9][0-9].md"))
    assert pages == {rung.path.with_name(f"{rung.number:02}.md") for rung in EVERY if rung.story and rung.path}


def test_a_kernel_of_ones_own_may_name_its_parent(shown: Show, tmp_path: Path) -> None:
    source = catalogue.find("relu/1").source.replace("dtypes", 'from = "relu/2"\ndtypes', 1)
    own = tmp_path / "mine.cu"
    own.write_text(source)
    assert "--- relu/02_vectors" in shown("relu", str(own), "--diff")
    own.write_text(source.replace("relu/2", "relu/99"))
    with pytest.raises(RungError, match="relu has no rung '99'"):
        catalogue.parent(catalogue.rung_from_file(catalogue.operation("relu"), own))


def test_a_python_rung_tells_its_parent_and_rewrite_as_constants(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('"""Idea."""\nFROM = "relu/1"\nREWRITE = "new"\ndef run(x, out):\n    out.copy_(x.relu())\n')
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    assert (rung.parent, rung.rewrite) == ("relu/1", "new")
    parent = catalogue.parent(rung)
    assert parent is not None and parent.name == "01_one_element"
    assert "Idea" not in difference.code(rung) and "FROM" not in difference.code(rung)


HEIR = """/*---
idea = "An idea."
from = "relu/2"
{keys}
---*/
"""


def heir(tmp_path: Path, keys: str) -> Rung:
    """A rung in a file of its own, from a parent of the ladder."""
    path = tmp_path / "mine.cu"
    parent = catalogue.find("relu/2").source
    path.write_text(HEIR.format(keys=keys) + parent[parent.index("#include") :])
    return catalogue.rung_from_file(catalogue.operation("relu"), path)


def test_a_header_inherits_what_it_lists_and_says_what_differs(tmp_path: Path, shown: Show) -> None:
    parent = catalogue.find("relu/2")
    rung = heir(
        tmp_path,
        'inherit = ["dtypes", "tune", "launch"]\nneeds = "N > 8"\n[tune]\nMORE = [2]\n[[launch]]\ngrid = 7',
    )
    assert isinstance(rung, CudaRung) and isinstance(parent, CudaRung)
    assert (rung.dtypes, rung.needs) == (parent.dtypes, ("N > 8",))
    assert rung.tune == {**parent.tune, "MORE": (2,)}
    (own,), (theirs,) = rung.header.launches, parent.header.launches
    assert own.grid == (7,) and (own.kernel, own.block) == (theirs.kernel, theirs.block)
    whole = shown("relu", str(rung.path), "--header")
    assert header.table(whole, "whole.cu") == rung.table and "inherit" not in whole
    assert [line for line in difference.lines(parent, rung)[3:] if line.startswith("-grid")]


def test_inherited_conditions_come_before_a_rungs_own() -> None:
    parent, rung = catalogue.find("matmul/22"), catalogue.find("matmul/23")
    assert "needs" not in rung.source.partition("inherit")[0] and 'needs  = "' in rung.source
    assert rung.needs[: len(parent.needs)] == parent.needs and len(rung.needs) == len(parent.needs) + 1


def test_the_identity_of_a_rung_covers_what_its_header_inherits(tmp_path: Path) -> None:
    short = identity.own_text(heir(tmp_path, 'inherit = ["dtypes", "tune", "launch"]'))
    assert short == identity.own_text(catalogue.find("relu/2"))
    assert short != identity.own_text(heir(tmp_path, 'inherit = ["tune", "launch"]'))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('inherit = ["lunch"]', "'lunch' cannot be inherited from relu/2"),
        ('inherit = ["idea"]', "'idea' cannot be inherited"),
        ('inherit = "tune"', "inherit needs a list"),
        ('dtypes = ["f32"]\ninherit = ["dtypes"]', "cannot be merged; drop one"),
    ],
)
def test_what_cannot_be_inherited_is_named(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(RungError, match=message):
        heir(tmp_path, keys)


def test_headers_that_inherit_from_each_other_are_refused(tmp_path: Path) -> None:
    ladder = tmp_path / "mine"
    ladder.mkdir()
    for number, parent in ((1, 2), (2, 1)):
        text = HEIR.format(keys='inherit = ["tune"]').replace("relu/2", f"mine/{parent}")
        (ladder / f"{number:02}_rung.cu").write_text(text)
    with pytest.raises(RungError, match="leads back"):
        header.table((ladder / "01_rung.cu").read_text(), str(ladder / "01_rung.cu"))
