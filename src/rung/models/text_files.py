"""Texts as users keep them: prompts, one per line or as JSON lines, and texts to score, as parquet too."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from gpuless.base.files import TEXT, lines_of, opened, read_bytes
from rung.errors import RungError, first_line

# ---- prompts ---------------------------------------------------------------------------------------------------------


def some(prompt: str) -> str:
    if not prompt:
        raise RungError("the prompt is empty; give at least one character to continue.")
    return prompt


def read(file: Path) -> str:
    name = "standard input" if str(file) == "-" else str(file)
    try:
        content = sys.stdin.buffer.read(TEXT + 1) if str(file) == "-" else read_bytes(file)
    except OSError as error:
        raise RungError(f"{name} cannot be read ({error.strerror}); name a text file.") from None
    if len(content) > TEXT:
        raise RungError(f"{name} has more than {TEXT >> 20} MB; give less at once.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RungError(f"{name} is not UTF-8 (line {line}); convert it, with iconv for example.") from None


def prompt_lines(file: Path) -> list[str]:
    lines = [line.removesuffix("\r") for line in read(file).removesuffix("\n").split("\n")]
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise RungError(f"{file} holds no prompt; write one per line.")
    blank = len(lines) - len(texts)
    if blank:
        print(f"rung: {file}: {blank} blank line{'s' * (blank > 1)} left out.", file=sys.stderr)
    return texts


def prompt_records(file: Path) -> list[str]:
    """The prompts of JSON lines: strings, or objects with a field `prompt`."""
    texts = []
    for number, line in enumerate(read(file).split("\n"), 1):  # JSON may hold what `splitlines` takes for an end
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise RungError(f"line {number} of {file} is not JSON; write a string or an object per line.") from None
        text = record.get("prompt") if isinstance(record, dict) else record
        if not isinstance(text, str):
            raise RungError(f'line {number} of {file} has no text; write a string, or {{"prompt": "..."}}.')
        texts.append(some(text))
    if not texts:
        raise RungError(f"{file} holds no prompt; write one per line.")
    return texts


# ---- texts to score --------------------------------------------------------------------------------------------------


def labelled(files: list[str], field: str, lines: bool) -> Iterator[tuple[dict[str, str], str]]:
    """Every text, with its file if there are several."""
    for name in files:
        label = {"file": name} if len(files) > 1 else {}
        for text in texts_of(name, field, lines):
            yield label, text


def texts_of(name: str, field: str, lines: bool, plain: bool = False) -> Iterator[str]:
    if not plain and name.endswith(".parquet"):
        yield from _column(name, field)
        return
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else opened(Path(name), pipes=True) as file:
            if not plain and (name.endswith(".jsonl") or (name == "-" and not lines)):
                yield from _records(file, name, field)
            elif lines:
                yield from (line.decode().rstrip("\r\n") for line in lines_of(file, name))
            else:
                yield _rest(file, name)
    except UnicodeDecodeError:
        raise RungError(f"{name} is not UTF-8; convert it, with iconv for example.") from None
    except OSError as error:
        more = "name a file of texts, or pipe a text to `rung score`."
        raise RungError(f"{name} cannot be read ({error.strerror}); {more}") from None


def _rest(file: IO[bytes], name: str) -> str:
    content = file.read(TEXT + 1)
    if len(content) > TEXT:
        raise RungError(f"{name} has more than {TEXT >> 20} MB; divide it into several texts.")
    return content.decode()


def _records(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    """JSON lines; standard input that does not begin with one is a single plain text."""
    for number, line in enumerate(lines_of(file, name), 1):
        text = line.decode()
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            if name == "-" and number == 1:
                yield text + _rest(file, name)
                return
            raise RungError(f"line {number} of {name} is not JSON; give an object with the field {field!r}.") from None
        value = record.get(field) if isinstance(record, dict) else record
        if not isinstance(value, str):
            raise RungError(f"line {number} of {name} has no text in {field!r}; --field names another.")
        yield value


def _column(name: str, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise RungError(f"reading {name} needs pyarrow; `pip install pyarrow` brings it.") from None
    try:
        with opened(Path(name)) as content, parquet.ParquetFile(content) as file:
            if field not in file.schema_arrow.names:
                columns = ", ".join(file.schema_arrow.names)
                raise RungError(f"{name} has no column {field!r}; it has {columns}; --field names one.")
            for batch in file.iter_batches(columns=[field]):
                for value in batch.column(0).to_pylist():
                    if not isinstance(value, str):
                        raise RungError(f"the column {field!r} of {name} holds {type(value).__name__}, not text.")
                    yield value
    except (ArrowException, OSError) as error:
        raise RungError(f"{name} cannot be read as parquet: {first_line(error).rstrip('.')}.") from None
