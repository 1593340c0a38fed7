"""Drawings show each lane where it is, and as many passes and sectors as were counted."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from emulation import needs_compiler
from rung.cli import main
from rung.emulator.counters import Sample
from rung.show import drawings


@pytest.mark.parametrize(
    ("size", "apart", "count"), [(4, 4, 1), (4, 128, 32), (4, 8, 2), (16, 16, 4), (8, 8, 2), (4, 0, 1)]
)
def test_passes_are_those_of_the_banks(size: int, apart: int, count: int) -> None:
    sample = Sample(size, 0, {lane: lane * apart for lane in range(32)})
    rows = drawings.passes(sample)
    assert len(rows) == count
    assert {lane for row in rows for lanes in row.values() for lane in lanes} == set(range(32))
    ElementTree.fromstring(drawings.banks(sample))


@pytest.mark.parametrize(("apart", "phase", "count"), [(4, 0, 4), (4, 16, 5), (128, 0, 32), (0, 0, 1)])
def test_sectors_are_those_of_the_addresses(apart: int, phase: int, count: int) -> None:
    drawn = ElementTree.fromstring(drawings.sectors(Sample(4, phase, {lane: lane * apart for lane in range(32)})))
    boxes = [e for e in drawn.iter() if e.get("class") == "box"]
    assert len(boxes) == count


@needs_compiler
def test_a_page_shows_parent_and_child_without_scripts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["draw", "transpose/3", "--shape", "R=64,C=64", "-o", str(page)])
    assert not ended.value.code
    text = page.read_text()
    assert "transpose/02_tiled" in text and "transpose/03_padded" in text
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert text.count("pass 32<") == 1  # only the parent has conflicts
