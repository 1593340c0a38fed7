"""`rung learn --web` in a real browser: an exercise is read, predicted, filled, run and seen, by keyboard, at three widths."""

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from rung.learn import FOLDER, by_name, grading, web

in_a_browser = pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium here")
SIZES = [(390, 844, False), (1280, 900, True), (1920, 1080, False)]
SECONDS = 2.0  # from a task to its verdict; ten times that on a busy machine


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    (tmp_path / "files").mkdir()
    server = web.make_server(tmp_path / "files", FOLDER, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Page]:
    with browser.page(tmp_path / "profile") as one:
        yield one


def waits(page: browser.Page, condition: str, seconds: float = 120) -> None:  # the machine may be compiled first
    until = time.monotonic() + seconds
    while not page.value(condition):
        assert time.monotonic() < until, condition
        time.sleep(0.05)


def opened(page: browser.Page, served: str, name: str) -> None:
    exercise = by_name(name)
    page.open(f"{served}/#{exercise.number}")
    waits(page, f"document.getElementById('title').textContent.startsWith('{exercise.number}.')")


def ran(page: browser.Page, text: str) -> str:
    page.value(f"write({json.dumps(text)}); delete at('verdict').dataset.state; void run()")
    waits(page, "at('verdict').dataset.state !== undefined && !at('run').disabled")
    return str(page.value("at('verdict').dataset.state"))


def graded(served: str, name: str, answers: dict[str, str]) -> dict[str, Any]:
    exercise = by_name(name)
    text = exercise.filled({**exercise.solution, **answers})
    asked = urllib.request.Request(
        f"{served}/exercise/{exercise.number}/grade", json.dumps({"text": text}).encode(), {"X-Rung": "course"}
    )
    with urllib.request.urlopen(asked) as answer:
        return dict(json.loads(answer.read(), parse_constant=lambda name: pytest.fail(name)))


def test_a_verdict_on_numbers_that_are_not_is_standard_json(served: str) -> None:
    found = graded(served, "shuffle", {"BLANK_1": "__int_as_float(0x7fffffff)"})
    assert found["state"] == "wrong"
    assert found["symptoms"][0]["facts"]["got"] == "nan"


def test_the_chapter_on_copies_draws_events_without_the_exercise_s_answer() -> None:
    drawn = web.picture("async_copy", "events", FOLDER)
    assert drawn.count("<svg") == 1
    assert by_name("async_copy").solution["BLANK_3"] not in drawn


def test_a_wrong_prediction_does_not_show_the_count(served: str) -> None:
    assert "drawn" not in graded(served, "predict_banks", {"BLANK_1": "1"})
    assert "drawn" in graded(served, "predict_banks", {})


def test_list_task_and_editor_need_no_run(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "grade", None)
    monkeypatch.setattr(web, "picture", None)
    for path in ("/", "/course", "/exercise/1", "/solution/1"):
        with urllib.request.urlopen(served + path) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(served + "/exercise/1") as answer:
        found = json.loads(answer.read())
    assert found["text"] == by_name("index").source and found["theory"] and "about" not in found


def test_a_tab_that_is_closed_leaves_no_traceback(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = served.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset when closed
            connection.sendall(f"GET /theory/1 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    with urllib.request.urlopen(served + "/theory/1") as answer:  # after those before: one is drawn at a time
        assert answer.status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_run_does_not_wait_for_drawings_and_none_is_made_of_a_chapter_that_was_left(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def picture(name: str, part: str, _: Path) -> str:
        drawn.append(name)
        time.sleep(1)
        return ""

    monkeypatch.setattr(web, "picture", picture)
    host, port = served.removeprefix("http://").split(":")
    left = [socket.create_connection((host, int(port))) for _ in range(3)]
    for number, connection in zip((22, 11, 45), left, strict=True):
        connection.sendall(f"GET /theory/{number} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    time.sleep(0.5)  # one is being drawn, two wait
    for connection in left:
        connection.close()
    assert graded(served, "index", {})["state"] == "solved"
    assert len(drawn) == 1
    kept = threading.Thread(target=urllib.request.urlopen, args=(f"{served}/theory/22",))
    kept.start()
    kept.join()
    assert len(drawn) > 1


@pytest.mark.parametrize("path", ["/course", "/exercise/2", "/theory/1"])
def test_another_host_s_name_is_refused_before_work(served: str, path: str, tmp_path: Path) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(served + path, headers={"Host": "example.org"}))
    assert refused.value.code == 403 and not list((tmp_path / "files").iterdir())


@in_a_browser
def test_wrong_numbers_are_a_picture_and_a_click_marks_a_line(page: browser.Page, served: str) -> None:
    page.size(1280, 900)
    opened(page, served, "matmul_tile")
    exercise = by_name("matmul_tile")
    assert ran(page, exercise.filled({**exercise.solution, "BLANK_1": "m < T && c < C"})) == "wrong"
    assert page.value("document.querySelectorAll('.wrong td').length") == 24
    assert page.value("document.querySelectorAll('.wrong rect').length") > 24
    opened(page, served, "bug_tree")
    page.value("here(view.state.doc.line(14))")
    assert page.value("text().split('\\n')[13].endsWith('  // here')")
    page.value("here(view.state.doc.line(14))")
    assert page.value("text()") == by_name("bug_tree").source


@in_a_browser
@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_it_fits_and_its_parts_have_names(
    page: browser.Page, served: str, width: int, height: int, dark: bool, tmp_path: Path
) -> None:
    page.size(width, height, dark=dark)
    opened(page, served, "transpose")
    exercise = by_name("transpose")
    assert ran(page, exercise.filled({**exercise.solution, "BLANK_1": "TILE"})) == "slow"
    assert page.value("document.documentElement.scrollWidth") <= width
    page.value("at('theory').open = true")
    assert page.value("[...document.querySelectorAll('.drawing, .cm-scroller')].every(e => e.scrollWidth <= e.clientWidth)")
    assert page.value("[...document.querySelectorAll('button, a, input')].every(e => e.textContent || e.labels?.length)")
    assert page.value("[...document.querySelectorAll('svg')].every(s => s.closest('[aria-hidden]') || s.getAttribute('aria-label'))")
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    assert not page.reported("Runtime.exceptionThrown") and not page.reported("Log.entryAdded")
    assert len(page.screenshot(tmp_path / "page.png")) > 10_000


@in_a_browser
def test_a_prediction_a_miss_and_a_solution_are_seen_beside_each_other(page: browser.Page, served: str, tmp_path: Path) -> None:
    page.size(1280, 900)
    opened(page, served, "transpose")
    exercise = by_name("transpose")
    page.value("at('predict').querySelector('input').value = '0'")
    assert ran(page, exercise.filled({**exercise.solution, "BLANK_1": "TILE"})) == "slow"
    assert "3968" in page.value("at('verdict').textContent")
    assert page.value("document.querySelectorAll('.cm-seen').length") == 1
    assert page.value("document.querySelectorAll('#drawings svg').length") > 0
    began = time.monotonic()
    assert ran(page, exercise.solved) == "solved"
    assert time.monotonic() - began < 10 * SECONDS
    assert page.value("document.querySelectorAll('#drawings .pair > section').length") == 2
    assert "★★★" in page.value("at('chapters').textContent")
    assert (tmp_path / "files" / exercise.file).read_text() == exercise.solved


@in_a_browser
def test_what_was_typed_and_seen_stays_over_a_reload(page: browser.Page, served: str, tmp_path: Path) -> None:
    page.size(1280, 900)
    opened(page, served, "stride")
    exercise = by_name("stride")
    assert ran(page, exercise.solved) == "solved"
    seen = page.value("at('drawings').textContent")
    page.value("write(text() + '// a thought'); view.dispatch({selection: {anchor: 40}})")
    opened(page, served, "coalesced")
    assert page.value("undo(), text()") == by_name("coalesced").source
    opened(page, served, "stride")
    for _ in range(2):
        waits(page, "text().endsWith('// a thought') && view.state.selection.main.head === 40")
        page.open(served + "/?again#3")
        waits(page, "document.getElementById('title').textContent.startsWith('3.')")
    page.value("write(exercise.text); keep()")
    page.open(served + "/#3")
    waits(page, "at('verdict').dataset.state === 'solved'")
    assert page.value("at('drawings').textContent") == seen and "★★★" in page.value("at('chapters').textContent")
    (tmp_path / "files" / exercise.file).write_text(exercise.source)  # in another editor
    page.open(served + "/?more#3")
    waits(page, "exercise?.text.includes('BLANK_1')")
    waits(page, "text() === exercise.text")


@in_a_browser
def test_a_race_is_two_arrows_between_its_lines(page: browser.Page, served: str) -> None:
    page.size(1280, 900)
    opened(page, served, "tree")
    exercise = by_name("tree")
    assert ran(page, exercise.filled({**exercise.solution, "BLANK_2": ""})) == "wrong"
    assert page.value("document.querySelectorAll('.arrows > path').length") == 2
    lines = [n for n, line in enumerate(exercise.solved.splitlines(), 1) if "part[threadIdx.x] = sum" in line or "+= part" in line]
    named = page.value("document.querySelector('.arrows').getAttribute('aria-label')").split()[-4::3]
    assert sorted(map(int, named)) == lines
    page.value("write(text() + ' ')")
    assert page.value("document.querySelectorAll('.arrows').length") == 0


@in_a_browser
def test_the_keyboard_suffices(page: browser.Page, served: str) -> None:
    page.size(1280, 900)
    opened(page, served, "coalesced")
    page.value("document.querySelector('.cm-content').focus()")
    page.press("Tab", 9)
    assert page.value("document.activeElement.id") == "run"
    page.press("Enter", 13)
    waits(page, "at('verdict').dataset.state === 'blank'")
    page.value("at('hint').focus()")
    page.press("Enter", 13)
    waits(page, "at('hints').querySelectorAll('li').length === 1")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/exercise/1/grade", {"X-Rung": "course"}, 404),
        ("/exercise/1/grade", {}, 400),
        ("/exercise/99999/hint", {"X-Rung": "course"}, 404),
        ("/exercise/1/hint", {"X-Rung": "course", "Host": "example.org"}, 403),
    ],
)
def test_other_sites_and_senseless_requests_are_refused(served: str, path: str, headers: dict[str, str], status: int) -> None:
    asked = urllib.request.Request(served + path, b"{}", headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == status


@pytest.mark.parametrize("path", ["/../web.py", "/%2e%2e/web.py", "/exercises"])
def test_nothing_else_is_served(served: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(served + path)
    assert refused.value.code == 404
