"""The page at / in a real browser: it writes, shows each token's alternatives, and fits a phone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_chat import folder_of

import browser
from rung.models.folders import INNER
from serving import Running, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium here"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(INNER, "inner") as one:
        yield one


@pytest.fixture
def page(server: Running, tmp_path: Path) -> Iterator[browser.Page]:
    with browser.page(tmp_path / "profile") as one:
        yield one


def waits(page: browser.Page, condition: str) -> None:
    until = time.monotonic() + 30
    while not page.value(f"Boolean({condition})"):
        assert time.monotonic() < until, f"never: {condition}"
        page.settle(0.05)


def write(page: browser.Page, server: Running, width: int, height: int, dark: bool = False) -> None:
    page.size(width, height, dark=dark)
    page.open(server.url)
    page.value("for (const [id, v] of [['max_tokens', 40], ['temperature', 1]]) { $(id).value = v; $(id).oninput() }")
    page.value("$('seed').value = 7; $('go').click()")
    waits(page, "$('text').querySelectorAll('.token').length >= 5")
    waits(page, "$('text').getAttribute('aria-busy') === 'false'")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_a_text_is_written_and_coloured(
    page: browser.Page, server: Running, tmp_path: Path, width: int, height: int, dark: bool
) -> None:
    write(page, server, width, height, dark)
    assert page.value("$('text').querySelectorAll('.token').length") == 40
    assert "tokens/s" in page.value("$('figures').textContent") and not page.value("$('error').textContent")
    assert page.value("new Set([...$('text').querySelectorAll('.token')].map(t => t.style.background)).size") > 5
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.value("$('text').querySelectorAll('.token')[9].focus()")
    rows = page.value("[...document.querySelectorAll('#card tr')].map(r => r.textContent)")
    assert not page.value("$('card').hidden") and len(rows) >= 5
    box = page.value("(({left, right, top}) => [left, right, top])($('card').getBoundingClientRect())")
    assert box[0] >= 0 and box[1] <= width and box[2] >= 0
    assert page.value("getComputedStyle(document.body).backgroundColor") == ("rgb(21, 23, 27)" if dark else "rgb(251, 251, 249)")
    assert len(page.screenshot(tmp_path / "page.png")) > 10_000
    assert not page.reported("Runtime.exceptionThrown")
    assert {r["request"]["url"].split("/")[2] for r in page.reported("Network.requestWillBeSent")} == {
        server.url.removeprefix("http://")
    }


def test_keys_do_what_a_mouse_does(page: browser.Page, server: Running) -> None:
    write(page, server, 1280, 800)
    page.value("$('text').querySelector('[tabindex=\"0\"]').focus()")
    for key, code, at in (("ArrowRight", 39, 1), ("ArrowRight", 39, 2), ("ArrowLeft", 37, 1), ("End", 35, 39), ("Home", 36, 0)):
        page.press(key, code)
        assert page.value("[...$('text').querySelectorAll('.token')].indexOf(document.activeElement)") == at
    assert not page.value("$('card').hidden")
    page.press("Escape", 27)
    assert page.value("$('card').hidden")
    page.value("$('prompt').focus()")
    assert page.value("[...document.querySelectorAll('input, textarea, button')].every(e => e.closest('label') || e.textContent)")


def test_going_on_and_stopping(page: browser.Page, server: Running) -> None:
    write(page, server, 1280, 800)
    text = page.value("$('text').textContent")
    page.value("$('on').click()")
    waits(page, "$('text').querySelectorAll('.token').length === 80")
    waits(page, "$('text').getAttribute('aria-busy') === 'false'")
    assert page.value("$('text').textContent").startswith(text)
    page.value("$('max_tokens').value = 400; $('go').click()")
    waits(page, "$('text').querySelectorAll('.token').length >= 2")
    page.value("$('stop').click()")
    waits(page, "$('stop').disabled")
    assert page.value("$('text').querySelectorAll('.token').length") < 400 and not page.value("$('error').textContent")


def test_an_error_is_shown_in_its_own_words(page: browser.Page, server: Running) -> None:
    page.size(1280, 800)
    page.open(server.url)
    page.value("$('prompt').value = ''; $('go').click()")
    waits(page, "$('error').textContent")
    assert "prompt is empty" in page.value("$('error').textContent")


def test_a_chat_remembers_its_messages_and_begins_anew(page: browser.Page, tmp_path: Path) -> None:
    with running(folder_of("plain", tmp_path / "model"), "tiny") as server:
        page.size(390, 844)
        page.open(server.url)
        waits(page, "$('go').textContent === 'Send'")
        page.value("$('max_tokens').value = 6; $('temperature').value = 1; $('seed').value = 7")
        for turn, words in enumerate(("Hello", "And then?"), 1):
            page.value(f"$('prompt').value = {words!r}; $('go').click()")
            waits(page, f"chat.length === {2 * turn} && !$('prompt').value && !$('on').disabled")
        assert not page.value("$('error').textContent") and page.value("document.documentElement.scrollWidth <= innerWidth")
        asked = [r["request"] for r in page.reported("Network.requestWillBeSent") if r["request"]["method"] == "POST"]
        assert all(request["url"].endswith("/v1/chat/completions") for request in asked)
        first, second = (json.loads(request["postData"])["messages"] for request in asked)
        assert first == [{"role": "user", "content": "Hello"}]
        answers = page.value("chat.filter(m => m.role === 'assistant').map(m => m.content)")
        assert second == [*first, {"role": "assistant", "content": answers[0]}, {"role": "user", "content": "And then?"}]
        shown = page.value("$('text').textContent")
        assert shown.startswith("Hello\n\n") and "\n\nAnd then?\n\n" in shown and all(answers)
        assert 3 <= page.value("$('text').querySelectorAll('.token').length") <= 12
        page.value("$('text').querySelectorAll('.token')[2].focus()")
        assert page.value("document.querySelectorAll('#card tr').length") >= 5
        assert len(page.screenshot(tmp_path / "chat.png")) > 10_000
        page.value("$('on').click()")
        assert page.value("[chat.length, $('text').textContent, $('on').disabled]") == [0, "", True]
    assert not page.reported("Runtime.exceptionThrown")
