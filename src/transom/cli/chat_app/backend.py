"""Where answers come from: a model in this process, or any server with OpenAI's API."""

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
from transom.sampling import SamplingOptions
from transom.values import Tokens

CONNECT_SECONDS = 10


class Message(TypedDict):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How answers are generated."""

    max_tokens: int
    sampling: SamplingOptions


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Token counts of one answer: the prompt, its cached part, and the output."""

    prompt: int
    cached: int
    output: int


class Backend(Protocol):
    """Answers one conversation at a time."""

    @property
    def name(self) -> str: ...

    def answer(self, messages: Sequence[Message], settings: Settings) -> Iterator[str | AnswerUsage]:
        """Parts of the text as they are generated, then the token counts. TransomError if it fails."""
        ...

    def interrupt(self) -> None:
        """Ends the answer in progress. A signal handler calls it, at any moment."""
        ...

    def explain(self, messages: Sequence[Message]) -> list[str]:
        """Lines that say how much of the next prompt is cached, and why not more."""
        ...


# ---------------------------------------------------------------- in this process


class LocalBackend:
    """A model in this process. Mutable."""

    def __init__(self, llm: LLM, name: str) -> None:
        """Raises ConfigError for a model without a chat template."""
        self.name = name
        self._llm = llm
        self._template = llm.tokenizer.chat_template()
        self._interrupted = False

    def answer(self, messages: Sequence[Message], settings: Settings) -> Iterator[str | AnswerUsage]:
        self._interrupted = False
        tokens = self._tokens(messages)
        free = self._llm.context - len(tokens)
        if free < 1:
            raise TransomError(
                f"the conversation of {len(tokens)} tokens does not fit; /reset starts a new one"
            )
        max_tokens = min(settings.max_tokens, free)
        pieces = self._llm.stream(tokens, max_tokens=max_tokens, **settings.sampling)
        with closing(pieces):
            for piece in pieces:
                yield piece.text
                if piece.usage is not None:
                    usage = piece.usage
                    yield AnswerUsage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
                # Checked between steps: interrupting a step would lose its events and end other streams.
                if self._interrupted:
                    return

    def interrupt(self) -> None:
        self._interrupted = True

    def explain(self, messages: Sequence[Message]) -> list[str]:
        tokens = self._tokens(messages)
        return explanation_lines(self._llm.explain(tokens), len(tokens))

    def _tokens(self, messages: Sequence[Message]) -> Tokens:
        return self._llm.tokenizer.encode_chat(self._template.render(list(messages)))


def explanation_lines(found: Explanation, tokens: int) -> list[str]:
    missing = tokens - found.start
    lines = [f"{found.start} of {tokens} prompt tokens are cached; {missing} would be computed"]
    lines += [_reason_line(reason) for reason in found.reasons]
    if found.repair is not None:
        lines.append(f"a repair would start at token {found.repair}")
    return lines


def _reason_line(reason: Reason) -> str:
    match reason:
        case Diverged(at):
            return f"no earlier request had the same text beyond token {at}"
        case Evicted(component, at, step, _):
            return f"{component}: the tokens from {at} on were evicted in step {step}"
        case Hole(component, start, end, step, _):
            missing = "were never cached" if step is None else f"were evicted in step {step}"
            return f"{component}: tokens {start} to {end}, which are needed, {missing}"


# ---------------------------------------------------------------- over HTTP


class RemoteBackend:
    """One model of one server. Mutable: it holds the response that is being read."""

    def __init__(self, url: str, model: str | None = None, key: str | None = None) -> None:
        """`url` may end in `/v1`. TransomError if no server answers there."""
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._response: Any = None
        self._interrupted = False
        self.name = model or self._first_model()
        self._last = AnswerUsage(0, 0, 0)

    def answer(self, messages: Sequence[Message], settings: Settings) -> Iterator[str | AnswerUsage]:
        self._interrupted = False
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "max_tokens": settings.max_tokens,
            **settings.sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with self._open("/chat/completions", json.dumps(body).encode()) as self._response:
            try:
                for line in self._response:
                    yield from self._event(line)
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not self._interrupted:
                    raise TransomError(f"the server's answer broke off: {error}") from error

    def interrupt(self) -> None:
        """Closes the connection: a server aborts the request of a client that has disconnected."""
        self._interrupted = True
        # The blocking read ends at once only if the socket itself is shut down. urllib does not expose it.
        connection = getattr(getattr(self._response, "fp", None), "raw", None)
        sock: socket.socket | None = getattr(connection, "_sock", None)
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)

    def explain(self, messages: Sequence[Message]) -> list[str]:
        """Counts of the previous answer: a server cannot be asked about the next one."""
        usage = self._last
        if not usage.prompt:
            return ["the conversation has no answer yet"]
        return [
            f"{usage.cached} of the last prompt's {usage.prompt} tokens were cached on the server, "
            f"{usage.prompt - usage.cached} were computed"
        ]

    def _event(self, line: bytes) -> Iterator[str | AnswerUsage]:
        """Text and token counts in one line of the event stream."""
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
            self._last = AnswerUsage(usage["prompt_tokens"], cached, usage["completion_tokens"])
            yield self._last

    def _first_model(self) -> str:
        with self._open("/models", None) as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise TransomError(f"{self._base}/models does not list a model") from error

    def _open(self, path: str, body: bytes | None) -> Any:
        try:
            request = urllib.request.Request(self._base + path, body, self._headers)
            # An answer may take arbitrarily long: only requests without a body have a timeout.
            return urllib.request.urlopen(request, timeout=CONNECT_SECONDS if body is None else None)
        except urllib.error.HTTPError as error:
            raise TransomError(f"the server says: {_error_message(error)}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TransomError(f"no server answers at {self._base}: {reason}") from error


def _error_message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
