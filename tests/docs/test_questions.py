"""What newcomers ask, and where the answer is: two clicks from the front page at most."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# question, the page that answers it, and words that stand there
QUESTIONS = (
    ("How do I install it?", "docs/installing.md", "pip install"),
    ("How do I keep CUDA packages out?", "docs/installing.md", "download.pytorch.org/whl/cpu"),
    ("How do I check my own CUDA kernel?", "docs/tutorial.md", "rung check"),
    ("How do I check my Triton kernel?", "docs/header.md", "Triton"),
    ("Which keys may a header have?", "docs/header.md", "[[launch]]"),
    ("How does a whole CUDA program run without a GPU?", "docs/programs.md", "rung run"),
    ("Where are bank conflicts shown?", "docs/counters.md", "conflicts"),
    ("What is a bank conflict?", "docs/glossary.md", '<a id="bank-conflict">'),
    ("What does the share of the bound mean?", "docs/measuring.md", "of bound"),
    ("What does cold mean beside a time?", "docs/glossary.md", '<a id="cold-and-warm">'),
    ("What does the emulator find, and what not?", "docs/emulator.md", "race"),
    ("Which exercises are there?", "docs/exercises.md", "rung learn"),
    ("How fast is it beside transformers?", "docs/figures.md", "transformers"),
    ("How fast is it beside llama.cpp on a CPU?", "docs/figures.md", "llama.cpp"),
    ("Which rungs does the model use?", "docs/generation.md", "rungs"),
    ("How do I serve text to an OpenAI client?", "docs/serving.md", "/v1/completions"),
    ("How likely is a text?", "docs/python.md", "score"),
    ("How do I find the best launch parameters?", "docs/sweeping.md", "rung sweep"),
    ("What do the five documents say, and what is measured here?", "docs/reproduce.md", "rung reproduce"),
    ("How is the code organised?", "docs/architecture.md", "Imports run one way"),
)


def links(page: Path) -> set[Path]:
    """The files that a page links to, also those in the tables that are made for it."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)#\s]+)", text)
    return {(page.parent / link).resolve() for link in found if "://" not in link}


def test_twenty_questions_are_asked() -> None:
    assert len({question for question, _, _ in QUESTIONS}) == 20


@pytest.mark.parametrize(("question", "page", "words"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS])
def test_a_question_is_answered_two_clicks_from_the_front_page(question: str, page: str, words: str) -> None:
    target = ROOT / page
    assert words in target.read_text(encoding="utf-8")
    first = {path for path in links(ROOT / "README.md") if path.suffix == ".md" and path.is_file()}
    assert target in first or any(target in links(path) for path in first)
