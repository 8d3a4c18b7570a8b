"""Whom one talks to: a model in this process, or any server that speaks OpenAI's API."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from transom.errors import TransomError
from transom.kv.explain import Diverged, Evicted, Explanation, Hole, Reason
from transom.llm import LLM
from transom.values import Tokens

CONNECT_SECONDS = 10


class Message(TypedDict):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Style:
    """How answers are made."""

    max_tokens: int
    temperature: float
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of one answer: of the prompt, those of them that were in memory, of the answer."""

    prompt: int
    cached: int
    output: int


class Partner(Protocol):
    """Answers one conversation at a time."""

    @property
    def name(self) -> str: ...

    def answer(self, messages: Sequence[Message], style: Style) -> Iterator[str | Spent]:
        """Pieces of text as they come, then what it took; TransomError if there is none."""
        ...

    def interrupt(self) -> None:
        """End the answer that is being made: called by a signal handler, at any moment."""
        ...

    def explain(self, messages: Sequence[Message]) -> list[str]:
        """Lines on what the next answer would find in memory, and why no more."""
        ...


# ---------------------------------------------------------------- in this process


class LocalPartner:
    """Owns the engine. Mutable."""

    def __init__(self, llm: LLM, name: str) -> None:
        """Raises ConfigError for a model without a chat template."""
        self.name = name
        self._llm = llm
        self._template = llm.tokenizer.chat_template()
        self._interrupted = False

    def answer(self, messages: Sequence[Message], style: Style) -> Iterator[str | Spent]:
        self._interrupted = False
        tokens = self._tokens(messages)
        room = self._llm.context - len(tokens)
        if room < 1:
            raise TransomError(f"a conversation of {len(tokens)} tokens does not fit; /reset begins anew")
        options: dict[str, Any] = {"seed": style.seed} if style.seed is not None else {}
        pieces = self._llm.stream(
            tokens, max_tokens=min(style.max_tokens, room), temperature=style.temperature, **options
        )
        with closing(pieces):
            for piece in pieces:
                yield piece.text
                if piece.usage is not None:
                    usage = piece.usage
                    yield Spent(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
                # Asked between steps: an engine that is stopped within one has lost count of its pages.
                if self._interrupted:
                    return

    def interrupt(self) -> None:
        self._interrupted = True

    def explain(self, messages: Sequence[Message]) -> list[str]:
        tokens = self._tokens(messages)
        return explained(self._llm.explain(tokens), len(tokens))

    def _tokens(self, messages: Sequence[Message]) -> Tokens:
        return self._llm.tokenizer.encode_chat(self._template.render(list(messages)))


def explained(found: Explanation, tokens: int) -> list[str]:
    lines = [f"of {tokens} tokens, {found.start} are in memory; {tokens - found.start} would be computed"]
    lines += [_reason(reason) for reason in found.reasons]
    if found.repair is not None:
        lines.append(f"a repair would begin at token {found.repair}")
    return lines


def _reason(reason: Reason) -> str:
    match reason:
        case Diverged(at):
            return f"nobody computed this text beyond token {at}"
        case Evicted(component, at, step, _):
            return f"{component}: what came from token {at} on was given up in step {step}, to make room"
        case Hole(component, start, end, step, _):
            gone = "was never kept" if step is None else f"was given up in step {step}, to make room"
            return f"{component}: tokens {start} to {end}, which are needed, {gone}"


# ---------------------------------------------------------------- over HTTP


class RemotePartner:
    """One server, one model of it. Mutable: the response being read."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """TransomError if nobody answers there. `url` with or without `/v1`."""
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._reading: Any = None
        self._interrupted = False
        self.name = model or self._first_model()
        self._last = Spent(0, 0, 0)

    def answer(self, messages: Sequence[Message], style: Style) -> Iterator[str | Spent]:
        self._interrupted = False
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": style.max_tokens,
            "temperature": style.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if style.seed is not None:
            body["seed"] = style.seed
        with self._open("/chat/completions", json.dumps(body).encode()) as self._reading:
            try:
                for line in self._reading:
                    yield from self._heard(line)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not self._interrupted:
                    raise TransomError(f"the server's answer broke off: {error}") from error

    def interrupt(self) -> None:
        """Hang up: the server aborts a request whose client is gone."""
        self._interrupted = True
        connection = getattr(getattr(self._reading, "fp", None), "raw", None)
        sock: socket.socket | None = getattr(connection, "_sock", None)
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)

    def explain(self, messages: Sequence[Message]) -> list[str]:
        spent = self._last
        if not spent.prompt:
            return ["nothing was said yet"]
        computed = spent.prompt - spent.cached
        return [
            f"of the last prompt's {spent.prompt} tokens, {spent.cached} were in the server's memory, "
            f"{computed} were computed"
        ]

    def _heard(self, line: bytes) -> Iterator[str | Spent]:
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return
        event = json.loads(line[5:])
        if error := event.get("error"):
            raise TransomError(f"the server says: {error.get('message', error)}")
        for choice in event.get("choices") or ():
            if text := (choice.get("delta") or {}).get("content"):
                yield text
        if usage := event.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens") or 0
            self._last = Spent(usage["prompt_tokens"], cached, usage["completion_tokens"])
            yield self._last

    def _first_model(self) -> str:
        with self._open("/models", None) as answer:
            try:
                return str(json.load(answer)["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise TransomError(f"{self._base}/models does not list a model") from error

    def _open(self, path: str, body: bytes | None) -> Any:
        try:
            request = urllib.request.Request(self._base + path, body, self._headers)
            return urllib.request.urlopen(request, timeout=CONNECT_SECONDS if body is None else None)
        except urllib.error.HTTPError as error:
            raise TransomError(f"the server says: {_said(error)}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TransomError(f"no server answers at {self._base}: {reason}") from error


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
