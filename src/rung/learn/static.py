"""Chapter one as a page that needs no server and no installation: for a teacher to host."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rung.learn import KINDS, Exercise, chapters, targets_of
from rung.learn.web import as_html, style


def write_page(path: Path, source: Path, number: int = 1) -> None:
    """Theory with its drawings, tasks, kernels, hints and worked solutions of a chapter, in one file of HTML."""
    chapter = chapters(source)[number - 1]
    parts = "".join(map(_exercise, chapter.exercises))
    title = escape(f"rung: {chapter.title}")
    theory = as_html(chapter.text, chapter.folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style()}\n'
        f"body {{ display: block; max-width: 60rem; }}</style></head><body><h1>{title}</h1>"
        f"<p>To have your own kernel run, judged and drawn: <code>pip install rung</code>, then "
        f'<code>rung learn --web</code>. No GPU is needed.</p><div class="drawn">{theory}</div>{parts}</body></html>\n',
        encoding="utf-8",
    )


def _exercise(exercise: Exercise) -> str:
    hints = "".join(f"<details><summary>Hint</summary>{as_html(hint)}</details>" for hint in exercise.hints)
    lines = "".join(
        escape(line) + (f"  <em>^ {escape(note)}</em>" if note else "") + "\n" for line, note in exercise.worked
    )
    target = "".join(f"<p>Target: {escape(one)}.</p>" for one in targets_of(exercise))
    return (
        f"<section><h2>{exercise.number}. {escape(exercise.title)}</h2>"
        f'<p class="soft">{escape(KINDS[exercise.kind])}</p>{as_html(exercise.task)}{target}'
        f"<pre>{escape(exercise.source)}</pre>{hints}<details><summary>Worked solution</summary><pre>{lines}</pre>"
        f"{as_html(exercise.why)}</details></section>"
    )
