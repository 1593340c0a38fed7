"""`rung chat`: a conversation in the terminal, by the model's chat template."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.cli.generate import begin
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.models.load import Model
    from rung.serve.chat import ChatTemplate

COMMANDS = {
    "/help": "these commands", "/new": "another conversation", "/system TEXT": "the same, told this first",
    "/again": "another answer to the last message", "/undo": "take the last message and its answer back",
    "/end": "end, as /exit, /quit and Ctrl-D do",
}  # fmt: skip
ENDS = ("/end", "/exit", "/quit", "/bye")
REMEMBERED = 1000  # lines in the history


class Conversation:
    """The messages so far, and how answers are written."""

    def __init__(
        self, model: Model, template: ChatTemplate, system: str | None, names: dict[str, Any], most: int, **how: Any
    ) -> None:
        self._model, self._template, self._names, self._most, self._how = model, template, names, most, how
        self._told = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._told)

    def obey(self, line: str) -> None:
        """A command."""
        word, _, rest = line.partition(" ")
        if word == "/help":
            for name, does in COMMANDS.items():
                print(f"  {name:14} {does}", file=sys.stderr)
        elif word in ("/new", "/system"):
            if word == "/system":
                self._told = [{"role": "system", "content": rest.strip()}] if rest.strip() else []
            self.messages = list(self._told)
        elif word in ("/again", "/undo") and len(self.messages) > len(self._told):
            while self.messages.pop()["role"] != "user":
                pass
        elif word not in ("/again", "/undo"):
            print(f"rung: there is no command {word}; /help lists them.", file=sys.stderr)

    def last(self) -> str | None:
        """The user's last message."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), None)

    def say(self, text: str) -> None:
        """A message of the user, and its answer as it is written."""
        self.messages.append({"role": "user", "content": text})
        try:
            ids = self._model.tokenizer.encode(self._template.text(self.messages, **self._names))
        except RungError as error:
            self.messages.pop()
            print(f"rung: {error}", file=sys.stderr)
            return
        room = self._model.config.context + 1 - len(ids)
        if room < 1:
            self.messages.pop()
            print("rung: the conversation fills the model's context; /new begins another.", file=sys.stderr)
            return
        run = self._model.run([ids], max_new_tokens=min(self._most, room), **self._how)
        for _, piece in run:
            print(piece, end="", flush=True)
        print(flush=True)
        self.messages.append({"role": "assistant", "content": run.completions[0].text})


def chat(
    model: options.Model = "inner",
    system: Annotated[str | None, typer.Option(help="What the model is told before the first message.")] = None,
    think: Annotated[bool, typer.Option(help="Let a model that can think before it answers do so.")] = True,
    device: options.ModelDevice = "auto",
    dtype: options.ModelDtype = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens of an answer.", min=1)] = 1024,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens that sum to p.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    draft: options.Draft = None,
    context: options.Longest = None,
    threads: options.Threads = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
) -> None:
    """Talk with a model that brings a chat template, a line at a time.

    /help lists commands, /end or Ctrl-D ends, Ctrl-C ends an answer.

    rung chat --model HuggingFaceTB/SmolLM2-135M-Instruct

    rung chat --model ./qwen3-0.6b-q8_0.gguf --dtype int8 --no-think --system "Answer in one sentence."
    """
    begin(device, dtype, None, long=True)
    from rung.models.load import load
    from rung.serve.chat import template_of

    chosen = load(
        model, device=device, dtype=dtype, threads=threads, revision=revision, offline=offline, draft=draft,
        context=context,
    )  # fmt: skip
    template = template_of(chosen.folder, chosen.config, chosen.tokenizer)
    if template is None:
        raise RungError(f"{model} brings no chat template; `rung generate` continues texts with it.")
    names: dict[str, Any] = {}
    if not think:
        if not template.names("enable_thinking"):
            raise RungError(f"the chat template of {model} has no switch for thinking; leave --no-think out.")
        names["enable_thinking"] = False
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    talk = Conversation(chosen, template, system, names, max_new_tokens, **how)
    with _lines() as read:
        while (text := read()) is not None and text not in ENDS:
            again = talk.last() if text == "/again" else None
            if text.startswith("/"):
                talk.obey(text)
            if again or (text and not text.startswith("/")):
                talk.say(again or text)
    template.close()


@contextlib.contextmanager
def _lines() -> Any:
    """A function that reads the next line that the user writes; None at the end. In a terminal lines have a history."""
    if not sys.stdin.isatty():
        yield lambda: line.strip() if (line := sys.stdin.readline()) else None
        return
    import readline

    from gpuless.base.disk_cache import cache_folder

    history = cache_folder() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(REMEMBERED)
    print("/help lists commands, /end ends.", file=sys.stderr)
    try:
        yield _prompted
    finally:
        with contextlib.suppress(OSError):
            Path(history).parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


def _prompted() -> str | None:
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None
