"""The report in a real browser: every ladder is reachable, nothing is fetched, nothing complains."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import browser
from result_rows import MACHINE, TIME, document, of_other_code, row
from rung.results import current, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.show.report import page as report


def study(name: str, finding: str, rows: list[list[float]], points: list[list[float | None]]) -> Row:
    axes = {"x": "N", "y": "us", "log_x": True, "log_y": True}
    content = {"title": name, "finding": finding, "columns": ["N", "us"], "rows": rows, "axes": axes}
    series = [{"label": "measured", "points": points, "dashed": False}] if points else []
    return Row(kind="study", what=name, detail={**content, "series": series}, quick=True, machine=MACHINE, time=TIME)


def measurements() -> list[Row]:
    """Some of everything that a report shows."""
    swept = {"kind": "sweep", "options": {"measure": "bench", "round": 0}}
    steps = [
        Row(kind="climb", what="gpt2", part=name, dtype="bfloat16", weights="random", machine=MACHINE, time=TIME,
            detail={"step": i, "idea": "An `idea`."}, metrics={"tokens_per_s": rate, "of_bandwidth": 0.3})
        for i, (name, rate) in enumerate((("plan naive", 120.0), ("decode 04_one_row", 5400.0)))
    ]  # fmt: skip
    text = Row(kind="generate", what="gpt2", part="text", weights="random", metrics={"tokens_per_s": 6521.0},
               options={"by": "rung"}, machine=MACHINE, time=TIME)  # fmt: skip
    return [
        row("layernorm/naive", 580.0, library_us=40.0, notes=["spills registers"]),
        row("layernorm/constant", 559.0, library_us=40.0),
        row("layernorm/tree", 43.0, library_us=40.0, detail={"language": "cuda", "against_before": "faster"}),
        row("layernorm/torch", 40.0),
        of_other_code(row("layernorm/tree", 30.0, dtype="bf16", library_us=33.0)),
        row("layernorm/warp", 31.0, dtype="bf16", library_us=33.0),
        row("matmul/naive", 21000.0, shape="4096x768x3072"),
        *(
            row("layernorm/tree", us, tuning={"BLOCK": block}, ratio=us / 43, **swept)
            for block, us in ((256, 43.0), (128, 41.0), (1024, 90.0))
        ),
        row("layernorm/tree", None, tuning={"BLOCK": 4}, verdict="illegal", reason="too small", **swept),
        study("waves", "A saw of 5 us.", [[1, 2.0]], [[1, 2.0], [2, None], [4, 3.0]]),
        study("softmax", "Trees win <b>here</b>.", [[256, 1.5], [512, 2.25]], []),
        *steps,
        text,
    ]


def page_of(folder: Path) -> Path:
    document(folder / "bench.jsonl", measurements())
    found = current.of_gpu(store.load(folder / "bench.jsonl"), None)
    path = folder / "report.html"
    kernels = [{"figures": {"conflicts_load": 31}}]
    detail = {"work": "<figure><svg id='of-blocks'></svg></figure>", "tile": "", "line": "", "kernels": kernels}
    name = catalogue.find("layernorm/5").full_name
    drawn = Row(kind="draw", what=name, dtype="f32", shape="B=2", detail=detail, time=TIME)
    path.write_text(report.build(found, {}, drawn=[drawn]))
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def tab(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    if browser.CHROMIUM is None:
        pytest.skip("no chromium on this machine; `make browser` installs Debian's")
    with browser.page(tmp_path_factory.mktemp("chromium") / "profile") as opened:
        opened.size(1300, 900)
        opened.open(written.as_uri())
        yield opened


def visible(tab: browser.Page) -> list[str]:
    shown = "[...document.querySelectorAll('.page')].filter(p => p.checkVisibility()).map(p => p.id)"
    return list(tab.value(shown))


def test_it_opens_on_the_overview(tab: browser.Page) -> None:
    tab.value("location.hash = ''")
    assert visible(tab) == ["index"]
    assert tab.value("document.querySelectorAll('#index tbody tr').length") == len(catalogue.operations())


def test_every_ladder_is_reached_by_its_link_and_holds_every_rung(tab: browser.Page) -> None:
    for name in [*catalogue.operations(), "studies", "machine"]:
        tab.value(f"document.querySelector('nav a[href=\"#{name}\"]').click()")
        tab.settle(0.05)
        assert visible(tab) == [name]
        assert tab.value("document.activeElement.tagName") == "H1"
        assert tab.value("document.querySelector('nav [aria-current]').hash") == f"#{name}"
        if name in catalogue.operations():
            rungs = [r.name for r in catalogue.rungs(name, libraries=False)]
            found = tab.value(f"[...document.querySelectorAll('#{name} .rung')].map(r => r.id)")
            assert found == [f"{name}-{r}" for r in rungs]
            assert name in tab.value("document.title")


def test_every_link_leads_somewhere_inside(tab: browser.Page) -> None:
    lost = "[...document.links].filter(a => !a.getAttribute('href').startsWith('#') || "
    lost += "!(a.hash === '#content' || document.getElementById(a.hash.slice(1)))).map(a => a.outerHTML)"
    assert tab.value(lost) == []


def test_microseconds_have_one_sign_outside_of_sources(written: Path) -> None:
    page = re.sub(r"<(pre|code|style|script)\b.*?</\1>", "", written.read_text(), flags=re.DOTALL)
    assert "A saw of 5 µs." in page
    assert re.findall(r".{30}\d us\b|<th[^>]*>us<|>us</text>", page) == []


def test_a_rungs_drawing_is_unpacked_when_it_is_opened(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm-05_tree'")
    part = "document.querySelector('#layernorm-05_tree [data-part=\"2\"]')"
    tab.value(f"{part}.open = true")
    tab.settle(0.8)
    assert tab.value(f"{part}.querySelector('#of-blocks') !== null && {part}.textContent.includes('31')")
    assert tab.value("document.querySelectorAll('[data-part=\"2\"]').length") == 1


def test_a_link_to_a_rung_opens_its_ladder(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm-05_tree'")
    tab.settle()
    assert visible(tab) == ["layernorm"]
    top = tab.value("document.getElementById('layernorm-05_tree').getBoundingClientRect().top")
    assert -5 < top < 200


def test_a_rung_shows_what_is_known_of_it(tab: browser.Page) -> None:
    rung = catalogue.find("layernorm/tree")
    tab.value("document.querySelector('#layernorm-05_tree .code-of[data-part=\"1\"]').open = true")
    tab.settle(0.5)
    text = tab.value("document.getElementById('layernorm-05_tree').textContent")
    for part in (rung.idea, rung.expect, "43.0 µs in f32", "13× the speed of", "__shared__"):
        assert part in text
    assert "bf16: code changed since 2026-01-01" in text and "30.0" not in text
    page = tab.value("document.getElementById('layernorm').textContent")
    assert "01_naive: spills registers" in page and "128 is best" in page


def test_only_one_number_format_is_shown_at_a_time(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm'")
    panels = "[...document.querySelectorAll('#layernorm .panel')].filter(p => p.checkVisibility())"
    panels += ".map(p => p.dataset.dtype)"
    assert tab.value(panels) == ["bf16"]
    tab.value("document.querySelector('#layernorm input[value=f32]').click()")
    assert tab.value(panels) == ["f32"]


def test_charts_tell_their_title_and_content_to_a_screen_reader(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm'")
    tab.settle(0.5)
    content = tab.value("[...document.querySelectorAll('#layernorm canvas[role=img]')].map(c => c.ariaLabel)")
    assert any("layernorm: bf16 at b8t1024" in t and "07 warp 31.0 µs" in t for t in content), content
    assert all(len(t) > 20 for t in content)


def test_a_plot_is_filtered_and_tells_of_what_is_pointed_at(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm'")
    tab.settle(0.5)
    plot = "document.querySelector('#layernorm .plot')"
    tab.value(f"{plot}.querySelector('select').value = 'f32'")
    tab.value(f"{plot}.querySelector('select').dispatchEvent(new Event('change'))")
    shown = f"{plot}.drawn[0].data.datasets.map(s => [s.label, s.data.map(p => p.y)])"
    found = dict(tab.value(shown))
    assert found["faster than all before"] + found["library"] == ["01 naive", "04 constant", "05 tree", "torch"]
    point = f"(() => {{ const c = {plot}.drawn[0], e = c.getDatasetMeta(0).data[2];"
    point += " c.canvas.scrollIntoView(); const b = c.canvas.getBoundingClientRect(); return [e.x + b.x, e.y + b.y]; })()"
    x, y = tab.value(point)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 5, y=y)
    tab.settle(0.2)
    assert "43.0 µs" in tab.value(f"{plot}.drawn[0].tooltip.body.map(b => b.lines.join()).join()")
    tab.call("Input.dispatchMouseEvent", type="mousePressed", x=x - 5, y=y, button="left", clickCount=1)
    tab.call("Input.dispatchMouseEvent", type="mouseReleased", x=x - 5, y=y, button="left", clickCount=1)
    tab.settle(0.2)
    assert tab.value("location.hash") == "#layernorm-05_tree"


def test_a_ladder_that_the_address_names_has_its_plots(tab: browser.Page, written: Path) -> None:
    tab.open("about:blank")
    tab.open(f"{written.as_uri()}#layernorm")
    tab.settle(0.5)
    assert visible(tab) == ["layernorm"]
    assert tab.value("document.querySelectorAll('#layernorm .plot canvas').length") >= 1


def test_plots_take_the_colours_of_the_page_while_it_is_open(tab: browser.Page) -> None:
    tab.value("location.hash = 'layernorm'")
    tab.settle(0.5)
    ink = "document.querySelector('#layernorm .plot').drawn[0].options.plugins.legend.labels.color"
    light = tab.value(ink)
    tab.size(1300, 900, dark=True)
    tab.settle(0.5)
    dark = tab.value(ink)
    tab.size(1300, 900)
    tab.settle(0.5)
    assert light == tab.value(ink) != dark


def test_the_keyboard_alone_suffices(tab: browser.Page, written: Path) -> None:
    tab.value("location.hash = 'gelu'; document.activeElement.blur(); window.scrollTo(0, 0)")
    tab.settle()
    tab.value("document.body.focus(); document.querySelector('.skip').focus()")
    tab.press("Enter", 13)
    tab.settle()
    assert tab.value("document.activeElement.id") == "content" and visible(tab) == ["gelu"]
    for _ in range(40):
        tab.press("Tab", 9)
        if tab.value("document.activeElement.matches('#gelu summary')"):
            break
    assert not tab.value("document.activeElement.parentElement.open")
    tab.press("Enter", 13)
    tab.settle()
    assert tab.value("document.activeElement.parentElement.open")


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(tab: browser.Page, tmp_path: Path) -> None:
    tab.size(390, 844)
    try:
        for name in ["index", "model", *catalogue.operations(), "studies", "machine"]:
            tab.value(
                f"location.hash = '{name}'; for (const d of document.querySelectorAll('#{name} details')) d.open = true"
            )
            tab.settle(0.02)
            assert tab.value("document.documentElement.scrollWidth") <= 390, name
            hidden = "document.querySelector('nav details').open"
            assert not tab.value(hidden)
            # Each word of a chart stands on the screen, without scrolling sideways.
            words = f"[...document.querySelectorAll('#{name} figure text')].map(t => t.getBoundingClientRect())"
            assert tab.value(f"{words}.every(r => r.left >= 0 && r.right <= 391)"), name
    finally:
        tab.size(1300, 900)


def test_dark_is_dark_and_light_is_light(tab: browser.Page, tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    tab.value("location.hash = 'layernorm'")
    tab.size(1300, 900, dark=True)
    dark, night = tab.value(colour), tab.screenshot(tmp_path / "dark.png")
    tab.size(390, 844)
    light, phone = tab.value(colour), tab.screenshot(tmp_path / "phone.png")
    tab.size(1300, 900)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 100
    assert sum(map(int, re.findall(r"\d+", light)[:3])) > 700
    assert min(len(night), len(phone)) > 20_000  # an empty page is a few thousand bytes


def test_what_a_row_says_is_text_and_no_markup(tab: browser.Page) -> None:
    tab.value("location.hash = 'studies'")
    assert tab.value("document.querySelector('#study-softmax p').textContent") == "Trees win <b>here</b>. (quick)"


def test_it_opens_with_the_models_climb_and_says_what_its_weights_are(tab: browser.Page) -> None:
    tab.value("location.hash = ''")
    first = tab.value("document.querySelector('#index h2').id")
    content = tab.value("document.getElementById('index').textContent")
    assert first == "climb" and "random weights" in content and "5,400" in content
    tab.settle(0.5)
    assert tab.value("document.querySelector('#index .plot').drawn[0].data.datasets.map(s => s.label)") == ["bfloat16"]
    assert "6,521 tokens/s" in tab.value("document.getElementById('model').textContent")


def test_search_finds_rungs_by_their_ideas_and_leads_there(tab: browser.Page) -> None:
    tab.value("location.hash = ''")
    look = "(words) => { const q = document.getElementById('query'); q.value = words; "
    look += "q.dispatchEvent(new Event('input')); return [...document.querySelectorAll('#hits a')].map(a => a.hash); }"
    assert "#layernorm-05_tree" in tab.value(f"({look})('layernorm tree')")
    assert tab.value(f"({look})('no such thing anywhere')") == []
    tab.value(f"({look})('layernorm 05_tree'); document.querySelector('#hits a').click()")
    tab.settle()
    assert visible(tab) == ["layernorm"] and tab.value("document.getElementById('hits').hidden")


def test_a_study_is_drawn_from_its_points(tab: browser.Page) -> None:
    tab.value("location.hash = 'studies'")
    tab.settle(0.5)
    text = tab.value("document.querySelector('#study-waves').textContent")
    assert "A saw of" in text and "measured" in text
    drawn = "document.querySelector('#study-waves .plot').drawn[0].data.datasets.map(s => s.data.map(p => [p.x, p.y]))"
    assert tab.value(drawn) == [[[1, 2], [2, None], [4, 3]]]


def test_no_request_left_the_page_and_the_console_is_silent(tab: browser.Page, written: Path) -> None:
    tab.settle(0.3)
    requested = [r["request"]["url"] for r in tab.reported("Network.requestWillBeSent")]
    assert {u.partition("#")[0] for u in requested if not u.startswith("data:")} <= {written.as_uri(), "about:blank"}
    assert tab.reported("Runtime.exceptionThrown") == []
    assert tab.reported("Runtime.consoleAPICalled") == []
    assert tab.reported("Log.entryAdded") == []


def test_without_any_result_the_ladders_are_still_there() -> None:
    text = report.build(None)
    assert "Nothing has been measured here yet" in text
    assert text.count('<article class="rung"') == sum(
        len(catalogue.rungs(n, libraries=False)) for n in catalogue.operations()
    )


def test_a_stored_prediction_is_shown_as_one() -> None:
    predicted = stored_prediction()
    other = catalogue.rungs("gelu", libraries=False)[1].full_name
    text = report.build(None, drawn=[predicted, replace(predicted, what=other, texts={other: "old"})])
    assert text.count('<ul class="predicted">') == 1
    assert "Predicted for NVIDIA H200, not measured: 12.3 µs in f32, b4t64" in text


def stored_prediction() -> Row:
    rung = catalogue.rungs("gelu", libraries=False)[0]
    return Row(
        kind="prediction", what=rung.full_name, dtype="f32", shape="b4t64", verdict="ok",
        options={"device": "emulator", "predicted": "NVIDIA H200"}, metrics={"predicted_us": 12.3},
        detail={"class": "plain", "kernels": []}, texts={rung.full_name: identity.text(rung)},
    )  # fmt: skip


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNG_RESULTS": str(cwd / "store.jsonl")}
    return subprocess.run(
        [sys.executable, "-m", "rung", *words],
        capture_output=True, text=True, cwd=cwd, env=environment, check=False,
    )  # fmt: skip


def test_the_command_writes_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    document(folder / "a.jsonl", [row("gelu/naive", 80.0)])
    done = run("report", str(folder), "--no-compile", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    assert MACHINE["gpu"] in text and "80.0" in text
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)


@pytest.mark.slow
def test_what_cannot_be_written_or_found_is_reported_in_one_sentence(tmp_path: Path) -> None:
    document(tmp_path / "a.jsonl", [row("gelu/naive", 80.0)])
    for words in (
        ("report", "a.jsonl", "--no-compile", "-o", "missing/page.html"),
        ("report", "nothing.json"),
        ("report", "a.jsonl", "--gpu", "A100"),
        ("report", "a.jsonl", "--arch", "sm_12345"),
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("rung: ")
