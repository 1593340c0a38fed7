"""Models by their id on the Hugging Face hub, downloaded once and then taken from its cache."""

from __future__ import annotations

import difflib
import logging
import re
import socket
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from rung.errors import RungError, first_line
from rung.models import tensors, tokenizer

# Common short names, and the present ids of these models.
HOMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
PATIENCE = 4.0  # seconds until the hub counts as unreachable
ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def fetch(model: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The local folder of a model, downloading what is missing unless offline (or HF_HUB_OFFLINE is set)."""
    if not ID.fullmatch(model):
        raise RungError(f"{model!r} is neither a folder nor an id of the hub; give one such as gpt2 or ./my-model.")
    download = _Download(HOMES.get(model, model), model, revision, offline)
    config = download.get("config.json")
    if config is None:
        raise RungError(f"model {model!r} has no config.json at that revision; choose another revision.")
    if all(download.get(name) is None for name in tokenizer.FILES[:1]):
        for name in tokenizer.FILES[1:]:
            download.get(name)
    for name in (tensors.SAFETENSORS, tensors.BIN):
        if download.get(name) is not None:
            return config.parent
        index = download.get(f"{name}.index.json")
        if index is not None:
            for shard in tensors.shards(index):
                download.get(shard)
            return config.parent
    raise RungError(f"model {model!r} holds neither {tensors.SAFETENSORS} nor {tensors.BIN}; choose another model.")


PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # of a file in several


def fetch_gguf(model: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The GGUF file of `owner/name:Q8_0`: the one in that repository whose name has this format."""
    name, _, format = model.partition(":")
    if not ID.fullmatch(name) or not re.fullmatch(r"[\w.-]{1,64}", format):
        raise RungError(f"{model!r} is not an id of a GGUF file; give one such as owner/name:Q8_0.")
    download = _Download(name, model, revision, offline)
    there = [file for file in download.files() if file.lower().endswith(".gguf")]
    wanted = re.compile(rf"(^|[^A-Za-z0-9]){re.escape(format)}([^A-Za-z0-9_]|$)", re.IGNORECASE)
    found = [file for file in there if wanted.search(Path(file).name.removesuffix(".gguf"))]
    if len(found) != 1 or PART.search(found[0]):
        held = ", ".join(sorted(Path(file).name for file in there)[:12]) or "no GGUF file"
        divided = bool(found) and PART.search(found[0])
        what = "divides that file into several" if divided else f"has {len(found)} files of the format {format}"
        raise RungError(f"model {name!r} {what}; it holds {held}.")
    path = download.get(found[0])
    assert path is not None
    return path


class _OneLine(logging.Filter):
    """Replaces the library's two lines per attempt with one that explains the wait."""

    printed = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.printed:
            print("rung: the hub does not answer; trying for half a minute.", file=sys.stderr)
        self.printed = True
        return False


class _Download:
    def __init__(self, home: str, model: str, revision: str | None, offline: bool) -> None:
        attempts = logging.getLogger("huggingface_hub.utils._http")
        if not any(isinstance(present, _OneLine) for present in attempts.filters):
            attempts.addFilter(_OneLine())
        self.home, self.model, self.revision, self.offline = home, model, revision, offline

    def files(self) -> list[str]:
        """The names of the model's files: all of them, or those in the cache where rung is offline."""
        from huggingface_hub import HfApi, errors, snapshot_download

        if not (self.offline or _offline_by_environment()):
            if not _in_reach():
                raise self._absent()
            try:
                return list(HfApi().list_repo_files(self.home, revision=self.revision))
            except errors.RepositoryNotFoundError:
                raise RungError(f"model {self.model!r} is not on the hub; check it.") from None
            except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
                first = first_line(error)
                raise RungError(f"model {self.model!r} could not be looked up ({first}); try again later.") from None
        try:
            folder = Path(snapshot_download(self.home, revision=self.revision, local_files_only=True))
        except (errors.LocalEntryNotFoundError, OSError):
            raise self._absent() from None
        return [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]

    def get(self, file: str) -> Path | None:
        """The file's place in the cache; None where the model has no such file."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        cached = file != "config.json" or try_to_load_from_cache(self.home, file, revision=self.revision)
        if not (cached or self.offline or _offline_by_environment() or _in_reach()):
            raise self._absent()
        try:
            return Path(hf_hub_download(self.home, file, revision=self.revision, local_files_only=self.offline))
        except errors.LocalEntryNotFoundError:
            if file == "config.json":
                raise self._absent() from None
            if self.offline or _offline_by_environment():
                return None  # an optional file of a model that was downloaded completely
            raise self._absent() from None
        except errors.EntryNotFoundError:
            return None
        except errors.RevisionNotFoundError:
            raise RungError(
                f"model {self.model!r} has no revision {self.revision!r}; see its page on the hub."
            ) from None
        except errors.GatedRepoError:
            raise RungError(f"model {self.model!r} requires permission; log in with `hf auth login` first.") from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise RungError(
                f"model {self.model!r} is neither a folder here nor on the hub{_suggestion(self.model)}; check it."
            ) from None
        except (errors.HfHubHTTPError, OSError) as error:
            first = first_line(error)
            raise RungError(f"model {self.model!r} could not be downloaded ({first}); try again later.") from None

    def _absent(self) -> RungError:
        where = "is not in the hub's cache" if self.offline or _offline_by_environment() else "cannot be downloaded"
        reason = "rung is offline" if self.offline or _offline_by_environment() else "the hub is out of reach"
        remedy = "go online once, name a folder, or use the model inside the package (inner)"
        return RungError(f"model {self.model!r}{_suggestion(self.model)} {where} and {reason}; {remedy}.")


def _suggestion(model: str) -> str:
    close = difflib.get_close_matches(model, [*HOMES, "inner"], n=1)
    return f" (did you mean {close[0]}?)" if close and close[0] != model else ""


def _in_reach() -> bool:
    """Whether the hub accepts a connection; tested first, since the library retries for half a minute."""
    from huggingface_hub import constants

    if urllib.request.getproxies():
        return True  # only the proxy can tell
    where = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((where.hostname or "", where.port or 443), timeout=PATIENCE):
            return True
    except OSError:
        return False


def _offline_by_environment() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
