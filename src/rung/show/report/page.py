"""The whole page: the index, the ladders, the studies, the machine."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rung.dtypes import DTYPES
from rung.profile.resources import Row
from rung.results.current import Figures, Ladder, percent, time_text
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.show import charts, climb_chart, model_chart
from rung.show.report import ladder as ladder_page
from rung.show.report.markup import clean_svg, prose, scrolled, table, text

HERE = Path(__file__).parent
SECTIONS = (("model", "The whole model"), ("studies", "Studies"), ("machine", "The machine"))

Resources = Mapping[str, list[Row]]  # of each rung, by its full name


def build(
    found: Figures | None,
    resources: Resources | None = None,
    *,
    others: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """The report as one HTML document; `others` are GPUs that there are results of, too."""
    names = list(catalogue.operations())
    pages = []
    for place, name in enumerate(names):
        progress(name)
        around = (names[place - 1] if place else None, names[place + 1] if place + 1 < len(names) else None)
        measured = found.ladder(name) if found is not None and name in found.names() else None
        pages.append(ladder_page.page(name, measured, found, resources or {}, around))
    sections = [_index(names, found), *pages, _model(found), _studies(found), _machine(found, others)]
    return _document(names, "".join(sections))


def _document(names: list[str], body: str) -> str:
    script = (HERE / "report.js").read_text(encoding="utf-8")
    style = _scheme_css() + (HERE / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    ladders = "".join(f'<li><a href="#{n}">{n}</a></li>' for n in names)
    rest = "".join(f'<li><a href="#{n}">{title}</a></li>' for n, title in SECTIONS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>rung: the report</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><a class="home" href="#index">rung</a> <span>GPU kernels, one rung at a time</span></header>
<nav aria-label="Ladders">
<details open><summary>Contents</summary>
<ul><li><a href="#index">Overview</a></li></ul>
<h2>Ladders</h2><ul>{ladders}</ul>
<ul>{rest}</ul>
</details>
</nav>
<main id="content" tabindex="-1">
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _scheme_css() -> str:
    def rules(scheme: str) -> str:
        return "".join(f"--{name}:{colour};" for name, colour in charts.SCHEMES[scheme].items())

    dark = "@media (prefers-color-scheme: dark)"
    return f":root{{{rules('light')}}}\n{dark}{{:root{{{rules('dark')}}}}}\n"


def _index(names: list[str], found: Figures | None) -> str:
    measured = found.names() if found is not None else []
    rows = []
    for name in names:
        operation = catalogue.operation(name)
        count = str(len(catalogue.rungs(name, libraries=False)))
        told = [f'<a href="#{name}">{name}</a><small>{prose(operation.story)}</small>', count]
        if found is not None and name in measured:
            told += _standing(found.ladder(name))
        else:
            told += ["", "", "", ""]
        rows.append(told)
    columns = ("ladder", "rungs", "climb", "first → best, µs", "of limit", "vs library")
    where = (
        f"Measured on an {text(found.gpu)}; <a href='#machine'>the machine</a> says which, and how to read the figures."
        if found is not None and measured
        else "Nothing has been measured here yet: <code>rung bench all</code> on a GPU does. "
        "Ideas, sources and what the compiler makes of them need none."
    )
    shown = table(columns, rows, numbers=(1, 3, 4, 5), label="ladders")
    return f"""<section class="page" id="index">
<h1 tabindex="-1">Overview</h1>
<p>Each operation of GPT-2 has a ladder: numbered kernels from the naive one to the fastest known, each differing
from the one before by a single idea. A page tells a ladder's story, what each rung was expected to bring and what
it brought, its source, and what changed from the rung before.</p>
<p>{where}</p>
{shown}
</section>
"""


def _standing(ladder: Ladder) -> list[str]:
    dtype = next(d for d in ("bf16", "f32", *ladder.dtypes()) if d in ladder.dtypes())
    shape = ladder.headline(dtype)
    ours = [f for f in ladder.column(dtype, shape) if not f.library]
    if not ours:
        return ["", "", "", ""]
    best = min(ours, key=lambda f: f.us)
    ratio = climb_chart.ratio_text(best.ratio) if best.ratio is not None else ""
    name = f"{ladder.operation.name} in {dtype}: speed from rung to rung"
    spark = charts.sparkline([1 / f.us for f in ours], dtype, name)
    times = f"{time_text(ours[0].us)} → {time_text(best.us)}<small>{dtype}, {text(shape)}</small>"
    return [spark, times, percent(best.share), ratio]


def _model(found: Figures | None) -> str:
    """Tokens per second of the whole model, step by step."""
    rows = found.of_kind("climb") if found is not None else []
    newest = {str(r["model"]): r for r in sorted(rows, key=lambda r: str(r.get("time", "")))}
    parts = []
    for name, climbed in newest.items():
        steps = [s for s in climbed["rows"] if s.get("tokens_per_second")]
        if not steps:
            continue
        lines = [
            [
                text(str(s["name"]).replace("_", " ")) + f"<small>{prose(str(s.get('what', '')))}</small>",
                text(s["dtype"]),
                f"{s['tokens_per_second']:,.0f}",
                f"{s['gain']:.2f}×" if s.get("gain") else "",
                percent(s["of_bandwidth"]) if s.get("of_bandwidth") else "",
                f"{s['divergence']:.1e}" if s.get("divergence") is not None else "",
            ]
            for s in steps
        ]
        columns = ("step", "dtype", "tokens/s", "vs before", "of bandwidth", "KL")
        drawn = scrolled(model_chart.chart(climbed), f"chart of {name}")
        picture = f'<figure class="chart wide">{drawn}</figure>'
        parts.append(
            f"<h2>{text(name)}</h2>{picture}"
            + table(columns, lines, numbers=(2, 3, 4, 5), label=f"the climb of {name}")
        )
    body = "".join(parts) or "<p>Not measured here yet: <code>rung climb -o FILE</code> on a GPU does.</p>"
    return f'<section class="page" id="model"><h1 tabindex="-1">The whole model</h1>{body}</section>\n'


def _studies(found: Figures | None) -> str:
    rows = found.of_kind("study") if found is not None else []
    newest = {str(r.get("study")): r for r in sorted(rows, key=lambda r: r.get("time", ""))}
    parts = []
    for name, row in newest.items():
        made = row.get("table") or row
        columns = [str(c) for c in made.get("columns", [])]
        cells = [[text(_number(v)) for v in line] for line in made.get("rows", [])]
        picture = clean_svg(str(row["svg"])) if row.get("svg") else _curves(row)
        parts.append(
            f'<article class="study" id="study-{text(name)}"><h2>{text(row.get("title") or name)}</h2>'
            f"<p>{prose(str(row.get('finding', '')))}</p>"
            + (f'<figure class="chart">{picture}</figure>' if picture else "")
            + (_study_table(name, columns, cells) if columns and cells else "")
            + "</article>"
        )
    body = "".join(parts) or "<p>No study has been run here yet; <code>rung study --help</code> lists them.</p>"
    return f'<section class="page" id="studies"><h1 tabindex="-1">Studies</h1>{body}</section>\n'


def _study_table(name: str, columns: list[str], cells: list[list[str]]) -> str:
    shown = table(columns, cells, numbers=list(range(1, len(columns))), label=f"study {name}")
    if len(cells) <= 12:
        return shown
    return f"<details><summary>All {len(cells)} rows</summary>{shown}</details>"


def _curves(row: Mapping[str, Any]) -> str:
    """A study's chart, drawn from its points."""
    axes = row.get("axes") or {}
    series = []
    for index, one in enumerate(row.get("series") or []):
        points = [(float(a), None if b is None else float(b)) for a, b in one["points"]]
        if any(b is not None for _, b in points):
            colour = charts.SERIES[index % len(charts.SERIES)]
            series.append(charts.Series(str(one["label"]), points, colour, bool(one.get("dashed"))))
    if not series:
        return ""
    return charts.curves(
        series,
        title=str(row.get("title") or row.get("study")),
        description=str(row.get("finding", "")),
        x_label=str(axes.get("x", "")),
        y_label=str(axes.get("y", "")),
        width=440,
        log_x=bool(axes.get("log_x", True)),
        log_y=bool(axes.get("log_y", True)),
    )


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


MACHINE_FACTS = {
    "gpu": "GPU", "sms": "multiprocessors", "capability": "compute capability", "memory_bytes": "memory",
    "l2_bytes": "L2 cache", "driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "Triton",
    "cuda_core": "cuda.core", "python": "Python", "cpu": "CPU", "cores": "CPU cores",
}  # fmt: skip
STATE_FACTS = {"sm_mhz": "SM clock, MHz", "memory_mhz": "memory clock, MHz", "celsius": "temperature, °C",
               "watts": "power, W"}  # fmt: skip


def _machine(found: Figures | None, others: tuple[str, ...]) -> str:
    if found is None or not found.results:
        body = "<p>Nothing has been measured, so there is no machine to describe.</p>"
        return f'<section class="page" id="machine"><h1 tabindex="-1">The machine</h1>{body}</section>\n'
    rows = [[text(label), text(_fact(key, found.machine[key]))] for key, label in MACHINE_FACTS.items()
            if found.machine.get(key)]  # fmt: skip
    state = max(found.results, key=lambda r: r.get("time", "")).get("state") or {}
    rows += [[f"{text(label)} (afterwards)", text(state[key])] for key, label in STATE_FACTS.items() if state.get(key)]
    times = sorted(str(r["time"]) for r in found.results if r.get("time"))
    commits = sorted({str(r["commit"]) for r in found.results if r.get("commit")})
    rows.append(["results", str(len(found.results))])
    rows += [["measured", text(f"{times[0]} to {times[-1]}")]] if times else []
    rows += [["commits", text(", ".join(commits))]] if commits else []
    limits = found.limits
    ceilings = [["memory, TB/s", f"{limits.bytes / 1e12:.2f}" if limits.bytes else "",
                 f"{limits.sheet['bytes'] / 1e12:.2f}" if limits.sheet else ""]]  # fmt: skip
    for dtype in DTYPES:
        seen, sheet = limits.flops.get(dtype), limits.sheet.get(dtype)
        if seen or sheet:
            ceilings.append([f"{dtype}, TFLOP/s", f"{seen / 1e12:.0f}" if seen else "",
                             f"{sheet / 1e12:.0f}" if sheet else ""])  # fmt: skip
    also = f"<p>There are results of {text(', '.join(others))} too; <code>rung report --gpu</code> shows them.</p>"
    return f"""<section class="page" id="machine">
<h1 tabindex="-1">The machine</h1>
{table(("", ""), rows, label="the machine")}
<h2>Ceilings</h2>
{table(("", "measured", "data sheet"), ceilings, numbers=(1, 2), label="ceilings")}
{also if others else ""}
<h2>How to read the figures</h2>
<p>Every time is the median of a rung that was found right in the same run, at that shape, on that machine, against a
float64 reference. <strong>Cold</strong> means that inputs rotate through more memory than the caches hold;
<strong>warm</strong>, that one set is used again and again. Rungs and libraries took turns in one process.</p>
<p>GB/s and TFLOP/s count what the operation must move and compute at least, whatever the kernel moves in fact. The
limit is the nearer of two ceilings measured there: the fastest copy, and the fastest matrix product in that number
format. A rung may pass 100 % where part of its data stays in the L2 cache.</p>
</section>
"""


def _fact(key: str, value: object) -> str:
    if key == "memory_bytes" and isinstance(value, int):
        return f"{value / 2**30:.0f} GiB"
    if key == "l2_bytes" and isinstance(value, int):
        return f"{value / 2**20:.0f} MiB"
    return str(value)


def resources_of(rungs: list[Rung], arch: str, progress: Callable[[str], None]) -> dict[str, list[Row]]:
    """What the compiler makes of each rung."""
    from rung.profile import inspect

    made: dict[str, list[Row]] = {}
    for rung in rungs:
        progress(rung.full_name)
        if rung.kind in ("cuda", "triton"):
            made[rung.full_name] = list(inspect.inspect([rung], [arch], mix=False))
    return made
