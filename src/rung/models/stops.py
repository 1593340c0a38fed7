"""Stop strings: found across token boundaries, and never shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes text through until one of the strings appears; holds back what might become one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [s for s in strings if s]
        self._pending = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown now."""
        if not self._strings:
            return text
        pending = self._pending + text
        found = [at for at in (pending.find(s) for s in self._strings) if at >= 0]
        if found:
            self.stopped, self._pending = True, ""
            return pending[: min(found)]
        overlap = max(self._overlap(pending, s) for s in self._strings)
        self._pending = pending[len(pending) - overlap :]
        return pending[: len(pending) - overlap]

    def flush(self) -> str:
        """Returns what was held back, at the end of the text."""
        pending, self._pending = self._pending, ""
        return pending

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        # How many of the text's last characters begin the string.
        return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)
