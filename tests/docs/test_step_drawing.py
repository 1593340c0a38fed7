"""The drawing of the step is that of the table and of the copies as they are."""

import importlib.util
from pathlib import Path
from types import ModuleType

TOOL = Path(__file__).parents[2] / "tools" / "step_drawing.py"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("step_drawing", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_is_up_to_date() -> None:
    drawn = tool()
    for mode, colours in drawn.COLOURS.items():
        assert (drawn.PICTURES / f"decode-step-{mode}.svg").read_text(encoding="utf-8") == drawn.drawing(colours)


def test_a_blocks_shares_are_those_of_the_producer() -> None:
    drawn = tool()
    assert [spec["matrix"] for spec in drawn.table()] == ["qkv_w", "proj_w", "fc_w", "fc2_w", "head_w"]
    assert drawn.held()["QKV"] == ("24 rows of 768", 24 * 768 * 2)
