"""The parts of the READMEs that are made from measurements, and their pictures: `make tables`.

A generated part stands between `<!-- name -->` and `<!-- /name -->`; what stands there is replaced, what
stands around it is not touched. `--check` says which files are stale and changes none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.results import current, store
from rung.results.current import Figure, Figures, Ladder
from rung.rungs import catalogue
from rung.show import charts, climb_chart, generation_tables, model_chart, parallel_tables
from rung.show.text_table import aligned

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ("h200",)  # folders of results/, the one that the READMEs speak of first
CLIMBS = ("attention", "matmul", "layernorm")

_PART = re.compile(r"<!-- (?P<name>[\w:]+) -->\n(?P<body>.*?)<!-- /(?P=name) -->", re.DOTALL)


def fill(text: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """The text with each generated part made anew; parts that nobody makes stay."""

    def made(match: re.Match[str]) -> str:
        maker = makers.get(match["name"])
        body = match["body"] if maker is None else maker()
        return f"<!-- {match['name']} -->\n{body}<!-- /{match['name']} -->"

    return _PART.sub(made, text)


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Every file that holds generated parts, and what it should hold."""
    found = _published(root)
    files: dict[Path, str] = {}
    for path in sorted((root / "src/rung/ladders").glob("*/README.md")):
        body = path.read_text(encoding="utf-8")
        files[path] = fill(body, {"times": partial(times, found, path.parent.name)})
    drawn = {f"climb-{name}": picture for name, picture in _pictures(found).items()} if found is not None else {}
    speeds = root / "docs" / "generation.md"
    if speeds.is_file():
        files[speeds] = fill(speeds.read_text(encoding="utf-8"), generation_tables.makers(root))
        drawn |= generation_tables.pictures(root)
    page = root / "docs" / "beyond.md"
    if page.is_file():
        files[page] = fill(page.read_text(encoding="utf-8"), parallel_tables.makers(root))
        drawn |= parallel_tables.pictures(root)
    readme = root / "README.md"
    if readme.is_file():
        makers: dict[str, Callable[[], str]] = {
            f"climb:{name}": partial(_shown, found, name) for name in (*CLIMBS, "model")
        }
        makers |= {
            "ladders": partial(overview, found),
            "check": partial(checked, root),
            "cpu": partial(on_cpu, root),
            "gpu": generation_tables.makers(root)["gpu"],
        }
        files[readme] = fill(readme.read_text(encoding="utf-8"), makers)
    for name, picture in drawn.items():
        for scheme in charts.SCHEMES:
            files[_picture(root, name, scheme)] = charts.standalone(picture, scheme)
    return files


def _pictures(found: Figures) -> dict[str, str]:
    """The climbs of some ladders, and that of the whole model."""
    pictures = {n: climb_chart.climb(found.ladder(n), found.limits) for n in CLIMBS if n in found.names()}
    for row in found.of_kind("climb"):
        pictures["model"] = model_chart.chart(row)
    return pictures


def stale(root: Path = ROOT) -> list[Path]:
    """The files that are not what the results make of them, and pictures that nothing makes any more."""
    wanted = generated(root)
    differing = [p for p, text in wanted.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    return differing + _orphans(root, wanted)


def _orphans(root: Path, wanted: Mapping[Path, str]) -> list[Path]:
    return [p for p in sorted((root / "docs/pictures").glob("climb-*.svg")) if p not in wanted]


def _picture(root: Path, name: str, scheme: str) -> Path:
    return root / "docs" / "pictures" / f"{name}-{scheme}.svg"


def _published(root: Path) -> Figures | None:
    rows = [
        row
        for folder in PUBLISHED
        if (root / "results" / folder).is_dir()
        for row in store.load(root / "results" / folder)
    ]
    return current.of_gpu(rows, None) if any(r.get("kind") == "bench" for r in rows) else None


def times(found: Figures | None, name: str) -> str:
    """A ladder's tables of times; nothing when nothing was measured."""
    if found is None or name not in found.names():
        return ""
    ladder = found.ladder(name)
    parts = [_caption(found, ladder)]
    parts += [_table(ladder, dtype) for dtype in ladder.dtypes()]
    notes = _notes(ladder)
    return "\n" + "\n".join(parts) + ("\n" + notes + "\n" if notes else "\n")


def _caption(found: Figures, ladder: Ladder) -> str:
    machine, limits = found.machine, found.limits
    rates = ", ".join(f"{limits.flops[d] / 1e12:.0f} TFLOP/s in {d}" for d in ladder.dtypes() if d in limits.flops)
    return (
        f"Cold times on an {found.gpu} (driver {machine.get('driver')}, CUDA {machine.get('cuda')}, "
        f"torch {machine.get('torch')}), as `rung bench {ladder.operation.name}` takes them. "
        f"The limit is the highest that was measured on such a machine: {limits.bytes / 1e12:.2f} TB/s, {rates}; "
        "the share and the comparison with the best library are those of the column in bold.\n"
    )


def _table(ladder: Ladder, dtype: str) -> str:
    shapes = ladder.few_shapes(dtype)
    main = ladder.headline(dtype)
    heads = [f"**{s}**, µs" if s == main else f"{s}, µs" for s in shapes]
    columns = [f"{dtype}", "idea", *heads, "of limit", "vs library"]
    lines = [
        "| " + " | ".join(columns) + " |",
        "| --- | --- |" + " ---: |" * (len(shapes) + 2),
    ]
    for rung in ladder.rungs:
        row = [ladder.get(rung.full_name, dtype, s) for s in shapes]
        keys = [(rung.full_name, dtype, s) for s in shapes]
        if not any(row) and not any(k in ladder.too_slow for k in keys):
            continue
        chief = ladder.get(rung.full_name, dtype, main)
        library = rung.kind == "library"
        name = f"*{rung.name}*" if library else f"[{rung.name}]({rung.path.name if rung.path else ''})"
        cells = [name, "" if library else _plain(current.short(rung.idea))]
        cells += [
            _cell(f, best=_is_best(f, ladder, dtype, k[2])) if f else ladder.too_slow.get(k, "")
            for f, k in zip(row, keys, strict=True)
        ]
        cells += [current.percent(chief.share) if chief else "", _versus(chief)]
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text in which Markdown finds nothing to set, code in backticks aside."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([_*<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _cell(figure: Figure, *, best: bool) -> str:
    text = current.time_text(figure.us) + ("†" if figure.old else "")
    return f"**{text}**" if best else text


def _is_best(figure: Figure | None, ladder: Ladder, dtype: str, shape: str) -> bool:
    return figure is not None and figure.us == min(f.us for f in ladder.column(dtype, shape))


def _versus(figure: Figure | None) -> str:
    return climb_chart.ratio_text(figure.ratio) if figure is not None and figure.ratio is not None else ""


def _notes(ladder: Ladder) -> str:
    shown = [f for k, f in ladder.found.items() if k[2] in ladder.few_shapes(k[1])]
    notes = []
    if any(f.old for f in shown):
        notes.append("† measured on an earlier version of the rung.")
    if any(f.share > 1.05 for f in shown):
        notes.append("More than 100 %: part of the data stays in the L2, or the kernel beats the fastest copy seen.")
    return "\n".join(f"{n}\n" for n in notes).rstrip("\n")


def _shown(found: Figures | None, name: str) -> str:
    if found is None:
        return ""
    if name == "model":
        climbed = found.of_kind("climb")
        told = f"The climb of the whole model: {_model_summary(climbed[-1])}" if climbed else ""
    else:
        known = name in found.names()
        told = f"The climb of {name}: {summary(found.ladder(name))}" if known else ""
    if not told:
        return ""
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="docs/pictures/climb-{name}-dark.svg">\n'
        f'  <img alt="{charts.escape(told)}" src="docs/pictures/climb-{name}-light.svg">\n'
        "</picture>\n"
    )


def summary(ladder: Ladder) -> str:
    """First, best and library in each number format, in words."""
    told = []
    for dtype in ladder.dtypes():
        shape = ladder.headline(dtype)
        ours = [f for f in ladder.column(dtype, shape) if not f.library]
        library = ladder.best_library(dtype, shape)
        if not ours:
            continue
        best = min(ours, key=lambda f: f.us)
        text = f"in {dtype} from {current.time_text(ours[0].us)} µs ({ours[0].name}) "
        text += f"to {current.time_text(best.us)} µs ({best.name})"
        told.append(text + (f", {library.name} {current.time_text(library.us)} µs" if library else ""))
    return "; ".join(told)


def _model_summary(climbed: Mapping[str, Any]) -> str:
    steps = [s for s in climbed["rows"] if s.get("tokens_per_second")]
    told = []
    for dtype in dict.fromkeys(s["dtype"] for s in steps):
        some = [s for s in steps if s["dtype"] == dtype]
        best = max(some, key=lambda s: float(s["tokens_per_second"]))
        told.append(
            f"in {dtype} from {some[0]['tokens_per_second']:,.0f} tokens/s ({some[0]['name']}) "
            f"to {best['tokens_per_second']:,.0f} ({best['name']})"
        )
    return "; ".join(told)


SHOWN = "layernorm"  # the ladder whose check the README shows


def checked(root: Path) -> str:
    """What `rung check` said of one ladder, and of all, where it last ran on a GPU."""
    paths = sorted((root / "results").glob("*/check*.json"))
    if not paths:
        return ""
    document = json.loads(paths[-1].read_text(encoding="utf-8"))
    columns = ("rung", "dtype", "cases", "error/bound", "rel. error", "cap", "verdict")
    rows = [
        (r["rung"], r["dtype"], str(r["cases"]), f"{r['element']:.3f}", f"{r['norm']:.1e}",
         f"{r['norm_cap']:.0e}", r["verdict"])
        for r in document["reports"] if r["rung"].startswith(f"{SHOWN}/") and r["dtype"] == "f32"
    ]  # fmt: skip
    table = aligned(columns, rows, right=columns[2:6])
    ran = [r for r in document["reports"] if r["verdict"] in ("ok", "failed")]
    right = sum(r["verdict"] == "ok" for r in ran)
    where = f"{document['device']} (commit {document['commit']})"
    sentence = f"{right} of {len(ran)} implementations and number formats are right on an {where}."
    shown = "\n".join([f"$ rung check {SHOWN} --dtype f32", *table])
    return f"\n```text\n{shown}\n```\n\nOf all ladders {sentence}\n\n"


def on_cpu(root: Path) -> str:
    """Text generation on a CPU, against transformers."""
    path = root / "results" / "cpu_generate.json"
    if not path.is_file():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    lines = ["| | tokens/s | against transformers | prefill, tokens/s | against transformers | KL, nats a token |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, figure in found["generation"].items():
        cells = [name]
        for one in (figure, found["prefill"].get(name, {})):
            rate, ratio = one.get("tokens_per_s"), one.get("ratio")
            cells.append(f"{rate['median']:.0f}" if rate else "")
            rival = str(one.get("against", "")).removeprefix("transformers ")
            cells.append(f"{ratio['median']:.2f}× {rival}" if ratio else "")
        loss = found["accuracy"].get(name, {}).get("kl_divergence_per_token")
        lines.append("| " + " | ".join([*cells, "" if loss is None else f"{loss:.1e}"]) + " |")
    machine = found["machine"]
    caption = (
        f"{found['what']}; {machine['processor']}, {machine['processors']} threads, torch {machine['torch']}, "
        f"transformers {machine['transformers']}. The first token stands on the terminal "
        f"{found['first_token_s']['median']:.1f} s after the command."
    )
    return "\n" + "\n".join(lines) + f"\n\n{caption}\n\n"


def overview(found: Figures | None) -> str:
    """All ladders: what they compute, how many rungs, and where the best of them stands."""
    lines = [
        "| ladder | rungs | from naive to best | of limit | vs library |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    measured = set(found.names()) if found else set()
    for name, operation in catalogue.operations().items():
        count = len(catalogue.rungs(name, libraries=False))
        cells = [f"[{name}](src/rung/ladders/{name})", str(count), operation.story, "", ""]
        if found is not None and name in measured:
            cells[2:] = _best_cells(found.ladder(name))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n" + "\n".join(lines) + "\n\n"


def _best_cells(ladder: Ladder) -> list[str]:
    dtype = next(d for d in ("bf16", "f32", *ladder.dtypes()) if d in ladder.dtypes())
    shape = ladder.headline(dtype)
    ours = [f for f in ladder.column(dtype, shape) if not f.library]
    if not ours:
        return [ladder.operation.story, "", ""]
    best = min(ours, key=lambda f: f.us)
    path = f"{current.time_text(ours[0].us)} → {current.time_text(best.us)} µs ({dtype}, {shape})"
    return [path, current.percent(best.share), _versus(best)]


def main(arguments: list[str] | None = None) -> int:
    """Write what is stale, or with --check say what is and fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is stale")
    chosen = parser.parse_args(arguments)
    try:
        late = stale()
        if not chosen.check:
            wanted = generated()
            for path in late:
                _write(path, wanted.get(path))
    except RungError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2
    for path in late:
        print(f"{'stale' if chosen.check else 'written'}: {path.relative_to(ROOT)}")
    if chosen.check and late:
        print("tables: run `make tables` and commit what it writes.", file=sys.stderr)
    return 1 if chosen.check and late else 0


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
