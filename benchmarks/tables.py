"""Generates the parts of the documents that come from measurements, and their pictures: `make tables`.

A generated part is the text between `<!-- name -->` and `<!-- /name -->`; everything outside is left alone. `--check`
lists the stale files and changes none. Only figures of the present code are shown.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import compiled_codes
import counter_tables
import generation_tables
import judge_tables
import ladder_tables
import prediction_tables
from rung.errors import RungError
from rung.results import codes, current, store
from rung.results.current import Figures
from rung.results.row import Row
from rung.show import charts
from rung_reproduce.show.tables import tables as reproduced

ROOT = Path(__file__).resolve().parents[1]
_PART = re.compile(r"<!-- (?P<name>\S+) -->\n(?P<body>.*?)<!-- /(?P=name) -->", re.DOTALL)

Makers = Mapping[str, Callable[[], str]]


def fill(text: str, makers: Makers, origin: str = "the text") -> str:
    """The text with each generated part regenerated."""

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in makers:
            raise RungError(f"{origin} has an unknown part {name!r}; there are {', '.join(sorted(makers))}.")
        return f"<!-- {name} -->\n{makers[name]()}<!-- /{name} -->"

    return _PART.sub(made, text)


def figures(rows: Iterable[Row]) -> tuple[Figures, Figures]:
    """The results of the GPU with most measurements, and those of the CPU."""
    found = current.by_gpu(rows)
    gpu = next((f for name, f in found.items() if name), Figures("", []))
    return gpu, found.get("", Figures("", []))


def makers_of(gpu: Figures, cpu: Figures) -> dict[str, Callable[[], str]]:
    """All generated parts by name; without measurements a part is empty."""
    makers: dict[str, Callable[[], str]] = {
        "steps": partial(ladder_tables.steps, gpu),
        "ladders": partial(ladder_tables.overview, gpu),
        "check": partial(ladder_tables.checked, gpu),
        "cpu": partial(generation_tables.on_cpu, cpu.results),
        "cpu:time": partial(generation_tables.by_cpu_time, cpu.results),
        "gpu": partial(generation_tables.summary, gpu),
    }
    makers |= {f"climb:{name}": partial(ladder_tables.climb, gpu, name) for name in (*ladder_tables.CLIMBS, "model")}
    speed = generation_tables
    parts = (
        speed.single, speed.llama, speed.eight_bits, speed.beginnings, speed.batch, speed.evenness, speed.prompts,
        speed.score, speed.sampling, speed.inside,
    )  # fmt: skip
    makers |= {f"speed:{make.__name__}": partial(make, gpu) for make in parts}
    return makers


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Every file with generated parts, and its expected content."""
    rows = store.published(root)
    gpu, cpu = figures(rows)
    makers = makers_of(gpu, cpu) | counter_tables.parts(rows)
    makers |= prediction_tables.parts(rows)
    makers["bounds"] = judge_tables.bounds
    makers["programs:seen"] = partial(judge_tables.programs, rows)
    makers["judging:seconds"] = partial(judge_tables.judging, rows)
    makers |= {f"corpus:{part}": partial(judge_tables.corpus, rows, part) for part in ("classes", "kernels")}
    makers["programs:speed"] = partial(judge_tables.machine_speed, rows)
    makers["emulator:bits"] = partial(judge_tables.same_bits, rows)
    pictures = {**ladder_tables.pictures(gpu)}
    others, drawn = reproduced(gpu, cpu, rows)
    makers, pictures = makers | others, pictures | drawn
    files: dict[Path, str] = {}
    documents = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for path in [*documents, *sorted((root / "src/rung/ladders").glob("*/README.md"))]:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if _PART.search(text):
            own = {"times": partial(ladder_tables.times, gpu, path.parent.name)}
            files[path] = fill(text, {**makers, **own}, str(path.relative_to(root)))
    for name, picture in pictures.items():
        for scheme in charts.SCHEMES:
            files[root / "docs" / "pictures" / f"{name}-{scheme}.svg"] = charts.standalone(picture, scheme)
    return files


def stale(root: Path = ROOT) -> dict[Path, str | None]:
    """The stale files with their expected content; None for a file to delete."""
    current = generated(root)
    found: dict[Path, str | None] = {
        path: text for path, text in current.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    return found | {p: None for p in sorted((root / "docs/pictures").glob("*.svg")) if p not in current}


def main(arguments: list[str] | None = None) -> int:
    """Write the stale files, or with --check list them and fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something is stale")
    chosen = parser.parse_args(arguments)
    try:
        if not chosen.check and compiled_codes.refresh():
            print(f"written: {codes.FILE.relative_to(ROOT)}")
        late = stale()
    except RungError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 2
    for path, text in late.items():
        if not chosen.check and text is None:
            path.unlink()
        elif not chosen.check and text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"{'stale' if chosen.check else 'written'}: {path.relative_to(ROOT)}")
    if chosen.check and late:
        print("tables: run `make tables` and commit the result.", file=sys.stderr)
    return 1 if chosen.check and late else 0


if __name__ == "__main__":
    sys.exit(main())
