"""Interim."""

from typing import NamedTuple


class Found(NamedTuple):
    text: str
    stopped: bool


class StopStrings:
    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> Found:
        if not self._stops:
            return Found(text, False)
        self._held += text
        hits = [i for i in (self._held.find(s) for s in self._stops) if i >= 0]
        if hits:
            return Found(self._held[: min(hits)], True)
        keep = max(
            (n for s in self._stops for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0
        )
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return Found(out, False)

    def finish(self) -> str:
        out, self._held = self._held, ""
        return out
