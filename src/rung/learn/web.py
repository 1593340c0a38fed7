"""The course as one page in a browser, served on this machine only; the learner's file on disk stays the truth."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from markdown_it import MarkdownIt

from rung.errors import RungError
from rung.learn import KINDS, Exercise, Progress, by_name, chapter_of, chapters, digest, find, stars_of, targets_of
from rung.show import colours

PAGE = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HERE = ("127.0.0.1", "localhost")
MOST_BYTES = 1 << 20  # of a request
TITLES = {  # of figures that a learner predicts; that of the first which the aim names
    "conflicts": "How many bank conflicts are there: passes beyond the first of each request, added up?",
    "sectors_per_request": "How many sectors of 32 bytes does a load of one warp touch?",
    "global_loads": "How many loads from global memory do all warps make together?",
    "shared_loads": "How many loads from shared memory do all warps make together?",
    "groups_under_way": "How many groups of copies are still in flight when a wait ends?",
    "atomics": "How many atomic operations do all warps make together?",
}
_grading = threading.Lock()  # the machine counts one launch at a time
_runs: list[str] = []  # that learners wait for: drawings let them go first
_shown, _ready = threading.Event(), threading.Event()  # a page is there; the machine is compiled


def serve(folder: Path, source: Path, port: int) -> None:
    """Until ^C."""
    folder.mkdir(parents=True, exist_ok=True)
    server = make_server(folder, source, port)
    print(
        f"The course is at http://127.0.0.1:{server.server_port}/, and its files in {folder.resolve()}; ^C ends.",
        flush=True,
    )
    threading.Thread(target=_prepare, daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def make_server(folder: Path, source: Path, port: int) -> ThreadingHTTPServer:
    chapters(source)  # says now what is wrong with it

    class Handler(_Handler):
        course = Course(folder, source)

    try:
        return _Server((HERE[0], port), Handler)
    except OSError as problem:
        raise RungError(f"port {port} cannot be served ({problem.strerror}); choose another with --port.") from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A tab that is closed while it is answered is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _prepare() -> None:
    """Compiles the machine while the first task is read."""
    _shown.wait(5)
    grading, _ = _machinery()
    with contextlib.suppress(RungError), _grading:
        grading.machine.library()
        _ready.set()


def _machinery() -> tuple[Any, Any]:
    """What runs kernels and draws them: half a second to import, without which the first page is shown."""
    from rung.learn import grading
    from rung.show import drawings

    return grading, drawings


class Course:
    """What the page asks for."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self.source = folder, source
        self.drawn: dict[str, tuple[str, dict[str, Any]]] = {}  # by exercise: the text that was run, and what was seen

    def overview(self) -> dict[str, Any]:
        progress = Progress.read(self.folder)
        every = [
            {
                "title": chapter.title,
                "exercises": [
                    {"number": e.number, "title": e.title, "kind": e.kind, "stars": progress.solved.get(e.name, 0)}
                    for e in chapter.exercises
                ],
            }
            for chapter in chapters(self.source)
        ]
        return {"chapters": every, "next": find("next", progress.solved, self.source).number, "ready": _ready.is_set()}

    def exercise(self, number: str) -> dict[str, Any]:
        exercise, progress = find(number, None, self.source), Progress.read(self.folder)
        path = self.folder / exercise.file
        if not path.exists():
            path.write_text(exercise.source, encoding="utf-8")
        chapter = chapter_of(exercise)
        seen = progress.hints.get(exercise.name, 0)
        solved = exercise.name in progress.solved
        text, (ran, last) = path.read_text(encoding="utf-8"), self.drawn.get(exercise.name, ("", {}))
        if ran != text:
            kept = progress.graded.get(exercise.name, {})
            last = kept["verdict"] if kept.get("digest") == digest(exercise, text) else {}
        return {
            "number": exercise.number, "title": exercise.title, "kind": exercise.kind, "does": KINDS[exercise.kind],
            "comment": exercise.comment, "chapter": exercise.chapter, "task": as_html(exercise.task), "file": str(path),
            "targets": targets_of(exercise),
            "text": text, "start": exercise.source, "last": last,
            "theory": bool(chapter.text), "first": exercise == chapter.exercises[0], "par": exercise.par,
            "hints": [_markdown.renderInline(h) for h in exercise.hints[:seen]], "further": len(exercise.hints) - seen,
            "question": TITLES.get(_asked_figure(exercise), ""), "stars": progress.solved.get(exercise.name, 0),
            "for": stars_of(exercise), "skill": exercise.skill,
            "why": as_html(exercise.why) if solved else "", "story": list(exercise.story) if solved else [],
        }  # fmt: skip

    def theory(self, number: str, draw: Callable[..., str]) -> dict[str, Any]:
        """The chapter's page with its drawings, for which kernels are run: asked for when the rest is shown."""
        _shown.set()
        exercise = find(number, None, self.source)
        chapter = chapter_of(exercise)
        return {"about": as_html(chapter.text, chapter.folder, draw)}

    def solution(self, number: str) -> dict[str, Any]:
        exercise = find(number, None, self.source)
        Progress.read(self.folder).show_solution(exercise)
        return {"lines": [list(line) for line in exercise.worked], "why": as_html(exercise.why)}

    def grade(self, number: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Saves the text, and judges and draws it."""
        exercise, path = self._of(number)
        text = asked.get("text")
        if not isinstance(text, str):
            raise RungError("the request has no text.")
        path.write_text(text, encoding="utf-8")
        grading, drawings = _machinery()
        _runs.append(number)
        try:
            with _grading:
                progress = Progress.read(self.folder)
                verdict = grading.grade(exercise, path, progress, drawn=True)
                grading.keep(exercise, text, verdict.as_json(), progress)
        finally:
            _runs.pop()
        found: dict[str, Any] = verdict.as_json() | {"best": progress.solved.get(exercise.name, 0)}
        if verdict.counted is not None and not (exercise.predict and verdict.state != "solved"):  # they show the counts
            found["drawn"] = drawings.section(verdict.counted, {path.name: text}, verdict.sizes)
            counted, name = grading.figures(verdict.counted.kernels[0]), _asked_figure(exercise)
            counted["conflicts"] = counted.get("conflicts_load", 0) + counted.get("conflicts_store", 0)
            found |= {"answer": counted[name]} if name in counted else {}
        if found["state"] == "solved":
            found |= {"why": as_html(exercise.why), "story": list(exercise.story)}
        self.drawn[exercise.name] = text, found
        return found

    def hint(self, number: str, _: dict[str, Any]) -> dict[str, Any]:
        exercise, _path = self._of(number)
        seen = Progress.read(self.folder).take_hint(exercise)
        return {"hints": [_markdown.renderInline(h) for h in seen], "further": len(exercise.hints) - len(seen)}

    def _of(self, number: str) -> tuple[Exercise, Path]:
        exercise = find(number, None, self.source)
        return exercise, self.folder / exercise.file


def _asked_figure(exercise: Exercise) -> str:
    """The figure that the aim is about, which a learner predicts before the first run."""
    return next((name for name in TITLES if re.search(rf"\b{name}\b", exercise.goal)), "")


@cache
def picture(name: str, part: str, source: Path) -> str:
    """The drawing of an exercise's solution (`part` is solved) or another answer (BLANK_1=TEXT): the line that wastes
    most, or all; `events`: only what the solution's first block does, one event after the other."""
    grading, drawings = _machinery()
    exercise = by_name(name, source)
    blank, _, answer = part.partition("=")
    text = exercise.solved if part in ("solved", "events") else exercise.filled({**exercise.solution, blank: answer})
    with TemporaryDirectory() as folder:
        path = Path(folder) / exercise.file
        path.write_text(text, encoding="utf-8")
        verdict = grading.grade(exercise, path, drawn=True)
        if verdict.counted is None:
            return ""
        every = str(drawings.section(verdict.counted, {path.name: text}, verdict.sizes))
        if part == "events":
            events = re.search("<p>The first block of .*?</div>", every, re.DOTALL)
            return events[0] if events else ""
        line = drawings.costliest(verdict.counted, {path.name: text}, {})
        # Of a file that the reader does not have.
        return re.sub(r"Line \d+, (l|s)", lambda m: m[1].upper(), line) or every


DRAW = re.compile(r"\{draw (\w+) (.+?)\}")
_markdown = MarkdownIt("commonmark", {"html": False})


def as_html(text: str, source: Path | None = None, draw: Callable[..., str] = lambda *of: picture(*of)) -> str:
    """A page that is written in Markdown, with its drawings; the page around it has the first heading."""
    page: str = _markdown.render(re.sub(r"(?m)^#", "##", text))
    if source is None:
        return page
    drawn = re.compile(rf"<p>{DRAW.pattern}</p>")
    return drawn.sub(lambda m: f'<div class="drawn">{draw(m[1], unescape(m[2]), source)}</div>', page)


def style() -> str:
    """The page's style sheet, with the drawings' colours and rules."""
    light, dark = colours.variables("light"), colours.variables("dark")
    own = (PAGE / "page.css").read_text(encoding="utf-8")
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{colours.RULES}\n{own}"


class _Handler(BaseHTTPRequestHandler):
    course: Course
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._is_foreign():
            return
        path = self.path.partition("?")[0]
        if path == "/page.css":
            self._send(style().encode(), TYPES[".css"])
        elif path == "/course":
            self._answer(self.course.overview)
        elif match := re.fullmatch(r"/theory/(\d+)", path):
            self._answer(lambda: self.course.theory(match[1], self._draw))
        elif match := re.fullmatch(r"/(exercise|solution)/(\d+)", path):
            self._answer(lambda: getattr(self.course, match[1])(match[2]))
        else:
            file = PAGE / ("index.html" if path == "/" else path.lstrip("/"))
            if file.parent != PAGE or not file.is_file():
                self._send(b"not found", "text/plain", 404)
                return
            self._send(file.read_bytes(), TYPES.get(file.suffix, "text/plain"))

    def do_POST(self) -> None:
        if self._is_foreign():
            return
        length = int(self.headers.get("Content-Length") or 0)
        match = re.fullmatch(r"/exercise/(\d+)/(grade|hint)", self.path)
        # A page of another site cannot set this header.
        if not match or length > MOST_BYTES or self.headers.get("X-Rung") != "course":
            self.close_connection = True
            self._send(b"refused", "text/plain", 400)
            return
        try:
            asked = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            self._send(b"refused", "text/plain", 400)
            return
        self._answer(lambda: getattr(self.course, match[2])(match[1], asked))

    def _draw(self, *of: Any) -> str:
        """A picture, once no run waits, and if the page still does."""
        while True:
            with _grading:
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionAbortedError
                if not _runs:
                    return picture(*of)
            time.sleep(0.02)

    def _is_foreign(self) -> bool:
        """Whether a name that leads here from elsewhere is asked for; then nothing is done but to refuse."""
        host = self.headers.get("Host") or ""
        if host.rpartition(":")[0] in HERE or host in HERE:
            return False
        self.close_connection = True
        self._send(b"refused", "text/plain", 403)
        return True

    def _answer(self, work: Any) -> None:
        try:
            found = work()
        except RungError as error:
            self._send(json.dumps({"error": str(error)}).encode(), "application/json", 404)
            return
        self._send(json.dumps(found, allow_nan=False).encode(), "application/json")

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
        )
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the tab was closed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
