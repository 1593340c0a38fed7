"""The site's page of a ladder: the drawing first, then the climb, then every rung as a card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rung.rungs import catalogue

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["transpose", "attention_low"])
def test_a_page_has_the_climb_and_a_card_for_each_rung(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    pages = __import__("ladder_pages")
    readme = (ROOT / "src/rung/ladders" / name / "README.md").read_text()
    html = pages.filled(pages.markdown(readme, name), name)
    assert re.findall('<details class="rung" id="([^"]+)">', html) == [
        r.name for r in catalogue.rungs(name, libraries=False)
    ]
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r'id="([^"]+)"', html))
    assert "-here" not in html
    if name == "transpose":
        marks = re.findall(r'<li class="(ahead|behind)">.*?<em>([^<]*)</em>', html)
        assert marks[0] == ("ahead", "fastest so far") and ("slower" in dict(marks).get("behind", "slower"))
        assert html.index("Who computes what") < html.index("## The climb") < html.index("## The rungs")
        assert "emulated" in html and "µs in f32" in html


def test_a_readme_is_kept_whole_around_its_first_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    pages = __import__("ladder_pages")
    made = pages.markdown("# softmax\n\nFirst.\n\nSecond.\n\n<!-- times -->\n| a |\n<!-- /times -->\n", "softmax")
    order = [
        "# softmax",
        "First.",
        "drawing-here",
        "climb-here",
        "rungs-here",
        "## The story",
        "Second.",
        "## Times",
        "| a |",
    ]
    assert [made.index(part) for part in order] == sorted(made.index(part) for part in order)
