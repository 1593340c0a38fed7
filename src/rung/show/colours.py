"""Colours and rules of drawings, as CSS, for light and dark screens."""

from __future__ import annotations

COLOURS = {
    "light": {"ink": "#1b1f24", "soft": "#59636e", "paper": "#fff", "box": "#eaeef2", "edge": "#afb8c1",
              "used": "#2f81f7", "on": "#fff", "p0": "#2f81f7", "p1": "#bf5700", "p2": "#1a7f37", "p3": "#8250df"},
    "dark": {"ink": "#e6edf3", "soft": "#9198a1", "paper": "#0d1117", "box": "#21262d", "edge": "#484f58",
             "used": "#58a6ff", "on": "#0d1117", "p0": "#58a6ff", "p1": "#f0883e", "p2": "#56d364", "p3": "#d2a8ff"},
}  # fmt: skip
RULES = """
.drawn pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.drawing { overflow-x: auto; } .drawing svg { min-width: 36rem; }
.drawn svg { display: block; max-width: 100%; height: auto; }
.drawn svg text { font: 10px system-ui, sans-serif; fill: var(--ink); } .drawn svg .soft { fill: var(--soft); }
.drawn svg .box { fill: var(--box); stroke: var(--edge); } .drawn svg .lane { fill: var(--on); text-anchor: middle;
  font-size: 12px; }
.c0 { fill: var(--p0); } .c1 { fill: var(--p1); } .c2 { fill: var(--p2); } .c3 { fill: var(--p3); }
.panels { display: flex; flex-wrap: wrap; gap: 14px; margin: .5rem 0; }
.drawn .panels figure { margin: 0; width: 200px; max-width: 100%; }
.drawn .panels figcaption { font-size: 12px; line-height: 1.35; color: var(--soft); margin: .2rem 0; max-width: none;
  font-style: normal; text-align: left; }
.drawn .panels svg .box { stroke: none; } .cells path { fill: none; stroke-width: .92; }
.cells.apart path { stroke-dasharray: .9 .1; } .frames { fill: none; stroke: var(--ink); stroke-width: .18; }
"""


def variables(scheme: str) -> str:
    """A scheme's colours as CSS variables."""
    return " ".join(f"--{name}: {colour};" for name, colour in COLOURS[scheme].items())
