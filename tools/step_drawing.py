"""Draws which block holds what, and when, in one layer of the step by clusters: docs/assets/decode-step-*.svg.

    python tools/step_drawing.py [--check]

The phases, their inputs, matrices and epilogues are read from the table in phases.cuh, and a block's rows and columns
from the producer's copies in cluster_producer.cuh, so that the drawing changes with the code.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DECODE, PICTURES = ROOT / "src" / "rung" / "ladders" / "decode", ROOT / "docs" / "assets"
# gpt2 in bf16, as it is launched: 13 clusters of eight blocks
SIZES = {"C": 768, "F": 3072, "V": 50257, "HS": 64, "CLUSTER": 8, "HEAD_ROWS": 8, "OUTPUTS": 96, "SIZE": 2}
SIZES |= {"step.hidden": 240, "own": 30}
WORDS = {
    "RESIDUAL": "norm of the stream",
    "ATTENTION": "output of the head",
    "HIDDEN": "hidden units",
    "CACHE": "q, k, v: to the cluster",
    "ADD_RESIDUAL": "partial sums: through L2",
    "ACTIVATE": "hidden units: to the cluster",
    "LOGITS": "logits: to memory",
}
COLOURS = {
    "light": {
        "text": "#1f2328",
        "line": "#8c959f",
        "held": "#54aeff",
        "next": "#ddf4ff",
        "work": "#fff8c5",
        "sent": "#bc4c00",
    },
    "dark": {
        "text": "#e6edf3",
        "line": "#6e7681",
        "held": "#1f6feb",
        "next": "#0c2d6b",
        "work": "#3a2d00",
        "sent": "#f0883e",
    },
}
LEFT, COLUMN, TOP = 170, 195, 30


def table() -> list[dict[str, str]]:
    """The phases with a matrix, as phases.cuh lists them."""
    text = (DECODE / "phases.cuh").read_text(encoding="utf-8")
    body = text[text.index("TABLE[] = {") :].partition("};")[0]
    found = []
    for entry in re.findall(r"\{(Input::.*?Epilogue::\w+,\s*\d+)\}", body, re.DOTALL):
        parts = [part.strip() for part in entry.split(",")]
        names = ("input", "awaited", "gain", "shift", "matrix", "bias", "scale", "rows", "columns", "epilogue", "sent")
        found.append({name: part.rpartition("::")[2] for name, part in zip(names, parts, strict=True)})
    return found


def held() -> dict[str, tuple[str, int]]:
    """Phase -> a block's rows and columns of its matrix, and their bytes, as the producer copies them."""
    text = (DECODE / "cluster_producer.cuh").read_text(encoding="utf-8")
    found = {}
    for phase, size in re.findall(r"begin\((\w+), ([^;]+)\);", text):
        if phase == "AT_KEYS" or phase == "buffer":
            continue
        factors = [SIZES.get(f.strip()) or int(f) for f in size.split("*")]
        rows, columns, width = factors[:-2], factors[-2], factors[-1]
        count = 1
        for factor in rows:
            count *= factor
        found[phase] = (f"{count} rows of {columns}", count * columns * width)
    return found


def drawing(colours: dict[str, str]) -> str:
    phases, shares = table()[:4], held()
    names = [("QKV", "PROJ", "FC", "FC2")[i] for i in range(4)]
    columns = [names[0], "ATTENTION", *names[1:]]
    parts = []

    def text(
        x: float, y: float, words: str, *, bold: bool = False, colour: str = "text", anchor: str = "middle"
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colours[colour]}"{weight}>{escape(words)}</text>'
        )

    def box(x: float, y: float, width: float, height: float, fill: str) -> None:
        size = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        parts.append(f'<rect {size} rx="3" fill="{colours[fill]}" stroke="{colours["line"]}"/>')

    for i, name in enumerate(columns):
        middle = LEFT + COLUMN * i + COLUMN / 2
        text(middle, TOP, name, bold=True)
        box(LEFT + COLUMN * i + 4, TOP + 12, COLUMN - 8, 62, "work")
        spec = phases[names.index(name)] if name in names else None
        if spec is None:
            lines = ["query, new key and value", "1/8 of the head's keys", "outputs: to the cluster"]
        else:
            lines = [WORDS[spec["input"]], shares[name][0], WORDS[spec["epilogue"]]]
        for k, line in enumerate(lines):
            colour = "sent" if k == 2 else "text"
            text(middle, TOP + 30 + 18 * k, line, colour=colour)
    text(8, TOP + 30, "all warps: receive,", anchor="start")
    text(8, TOP + 48, "multiply,", anchor="start")
    text(8, TOP + 66, "send", anchor="start")
    top = TOP + 112
    text(8, top - 12, "buffers in the block's shared memory (filled by the producer thread)", anchor="start", bold=True)
    kinds = [(n, f"{shares[n][1] / 1024:.0f} KB", columns.index(n)) for n in names]
    kinds.insert(1, ("keys, values", "as cached", 1))
    for row, (name, size, used) in enumerate(kinds):
        y = top + 26 * row
        text(8, y + 15, f"{name}, {size}", anchor="start")
        end = LEFT + COLUMN * (used + 1) - 4
        box(LEFT + 4, y, end - LEFT - 4, 20, "held")
        text((LEFT + 4 + end) / 2, y + 15, "this layer's")
        if used < len(columns) - 1:
            box(end + 4, y, LEFT + COLUMN * len(columns) - 8 - end, 20, "next")
            text((end + LEFT + COLUMN * len(columns)) / 2, y + 15, "the next layer's, arriving")
    bottom = top + 26 * len(kinds) + 22
    for x, words in ((LEFT, "stream from L2"), (LEFT + 3 * COLUMN, "stream from L2")):
        dashed = f'stroke="{colours["sent"]}" stroke-width="2" stroke-dasharray="5 4"'
        parts.append(f'<path d="M{x} {TOP - 14}V{bottom - 16}" {dashed}/>')
        text(x + 4, bottom, words, colour="sent", anchor="start")
    view = f'viewBox="0 0 {LEFT + COLUMN * len(columns) + 4} {bottom + 10}"'
    style = 'font-family="system-ui, sans-serif" font-size="12.5"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def main() -> int:
    stale = 0
    for mode, colours in COLOURS.items():
        path, made = PICTURES / f"decode-step-{mode}.svg", drawing(colours)
        if "--check" not in sys.argv:
            path.write_text(made, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != made:
            print(f"stale: {path.relative_to(ROOT)}")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
