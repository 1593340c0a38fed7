"""The page on the header: every key, each example, and the sentence for each mistake, as the page says them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rung.errors import RungError
from rung.rungs import header, python_module
from rung.rungs.operations import operation

PAGE = (Path(__file__).parents[2] / "docs" / "header.md").read_text(encoding="utf-8")
IDEA, LAUNCH = 'idea = "x"', {"kernel": 'kernel = "k"', "grid": "grid = 1", "block": "block = 32"}
_ROW = re.compile(r"^\| `(\w+)` \| .*? \| `(.*?)` \| `(.*?)`: (.*) \|$", re.MULTILINE)
OF_HEADER, OF_LAUNCH = (_ROW.findall(part) for part in PAGE.partition("## Keys of a `[[launch]]`")[::2])
ROWS = [(False, *row) for row in OF_HEADER] + [(True, *row) for row in OF_LAUNCH]


def with_line(key: str, line: str, *, launch: bool) -> str:
    own = LAUNCH | {key: line} if launch else LAUNCH
    above = IDEA if launch else line if key == "idea" else f"{IDEA}\n{line}"
    return "\n".join(["/*---", above, "[[launch]]", *own.values(), "---*/\n"])


@pytest.mark.parametrize(("launch", "key", "example", "mistake", "sentence"), ROWS)
def test_a_key_as_the_page_says(launch: bool, key: str, example: str, mistake: str, sentence: str) -> None:
    header.parse(with_line(key, example, launch=launch), "k.cu")
    with pytest.raises(RungError) as refused:
        header.parse(with_line(key, mistake, launch=launch), "k.cu")
    assert str(refused.value) == sentence.replace("\\|", "|")


def test_the_page_has_every_key() -> None:
    names = {{"parent": "from", "launches": "launch"}.get(f, f) for f in header.Header.__dataclass_fields__}
    assert names - {row[0] for row in OF_HEADER} == {"launch", "inside"}
    assert {row[0] for row in OF_LAUNCH} == set(header.Launch.__dataclass_fields__)


def test_the_pages_header_is_one() -> None:
    example = re.search(r"```cuda\n(.*?)```", PAGE, re.DOTALL)
    assert example
    assert header.parse(example[1], "k.cu").bind == {"inp": "x", "N": "B * NH * T", "C": "S"}


def test_the_pages_triton_file_needs_nothing_else(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example
    path = tmp_path / "mine.py"
    path.write_text(f"import torch\nimport triton\n\n\n{example[1]}")
    facts = python_module.read_facts(path, operation("softmax"))
    assert facts.entry is not None and facts.parameters == {"x": True}
    assert (facts.entry.name, facts.entry.flat) == ("softmax", {"x"})
