"""A server under test: how to reach it, its model, and streamed completions from it."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from transom.bench.http import Address, Broken, ask
from transom.errors import ConfigError, TransomError

WARM_UP = "The first words of a server that was asked nothing before are"
OWN = "transom"
"""The `owned_by` of models on a Transom server."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server. The key is sent to this server only, and never printed or written."""

    address: Address
    model: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("a key has letters, digits and signs only, and no line break")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that has answered. `extra` are request fields beyond OpenAI's that it accepts."""

    label: str
    access: Access
    model: str
    owner: str
    extra: tuple[tuple[str, object], ...] = (("ignore_eos", True),)

    @property
    def is_transom(self) -> bool:
        return self.owner == OWN


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. `times` are the arrivals of its pieces of text, on the clock of `began`.

    `cached_tokens` is None if the server does not report it.
    """

    began: float
    times: tuple[float, ...]
    text: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A request without a complete answer."""

    reason: str


async def complete(server: Server, prompt: str, tokens: int) -> Answer | Failed:
    """A greedy, streamed completion. It has `tokens` tokens if the server can ignore the end token."""
    stream = _Stream()
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **dict(server.extra),
    }
    access = server.access
    try:
        encoded = msgspec.json.encode(body)
        reply = await ask(access.address, "/v1/completions", access.headers, encoded, stream.line)
    except Broken as error:
        return Failed(str(error))
    if reply.status != 200:
        return Failed(f"HTTP {reply.status}: {_message(reply.body)}")
    if reply.body:
        return Failed("the answer is not an event stream, although the request asked for one")
    return stream.answer(reply.began)


def _message(body: bytes) -> str:
    """The message of an error in OpenAI's format, otherwise the beginning of the body. One line."""
    try:
        error = msgspec.json.decode(body, type=_Problem).error
    except msgspec.DecodeError:
        error = body[:200].decode("utf-8", "replace")
    return _words(error)


def _words(error: object) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return printable(" ".join(str(text).split())[:300])


def printable(text: str) -> str:
    """Text from a server, without control characters: these could move the cursor of the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# ---------------------------------------------------------------- streams


class _Problem(msgspec.Struct):
    error: Any


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's own count."""

    cache_n: int | None = None


class _Choice(msgspec.Struct):
    text: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class _Stream:
    """Collects the events of one stream. Mutable."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._pieces: list[str] = []
        self._usage: _Usage | None = None
        self._timings: _Timings | None = None
        self._trouble: str | None = None

    def line(self, data: bytes, at: float) -> None:
        if data == b"[DONE]":
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            self._trouble = f"an event of the stream is not a completion: {error}"
            return
        if event.error is not None:
            self._trouble = _words(event.error)
        self._usage = event.usage or self._usage
        self._timings = event.timings or self._timings
        for choice in event.choices or ():
            if choice.text:
                self._times.append(at)
                self._pieces.append(choice.text)

    def answer(self, began: float) -> Answer | Failed:
        if self._trouble is not None:
            return Failed(self._trouble)
        if self._usage is None:
            return Failed("the stream does not report its tokens (stream_options.include_usage)")
        usage = self._usage
        return Answer(
            began=began,
            times=tuple(self._times),
            text="".join(self._pieces),
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=self._cached(usage),
        )

    def _cached(self, usage: _Usage) -> int | None:
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        return None if self._timings is None else self._timings.cache_n


# ---------------------------------------------------------------- first contact


class _Card(msgspec.Struct):
    """A model in the list of a server."""

    id: str
    owned_by: str = ""


class _Cards(msgspec.Struct):
    data: list[_Card]


async def meet(label: str, access: Access) -> Server:
    """Asks for the model, then for a few tokens. That warms the server up, and shows that it reports usage.

    Raises TransomError if the server cannot be measured.
    """
    card = await _card(access)
    server = Server(label, access, access.model or card.id, card.owned_by)
    first = await complete(server, WARM_UP, 8)
    if isinstance(first, Failed) and first.reason.startswith(("HTTP 400", "HTTP 422")):
        # The server may refuse fields that OpenAI does not have. Without ignore_eos answers may be shorter.
        server = replace(server, extra=())
        first = await complete(server, WARM_UP, 8)
    if isinstance(first, Failed):
        raise TransomError(f"{access.address}/v1/completions: {first.reason}")
    return server


async def _card(access: Access) -> _Card:
    """The entry of the model that the user named, otherwise the first in the list."""
    url = f"{access.address}/v1/models"
    try:
        reply = await ask(access.address, "/v1/models", access.headers)
    except Broken as error:
        raise TransomError(f"{access.address}: {error}") from None
    if reply.status in (401, 403):
        raise TransomError(f"{url}: HTTP {reply.status}: give a key with --api-key or OPENAI_API_KEY")
    cards = _cards(reply.body) if reply.status == 200 else []
    named = [card for card in cards if access.model in (None, card.id)]
    if named:
        return named[0]
    if access.model is not None:
        return _Card(access.model)  # it may still exist: some servers list other names or nothing
    if reply.status != 200:
        raise TransomError(f"{url}: HTTP {reply.status}: is the path right? --model NAME needs no list")
    raise TransomError(f"{url} lists no model; name one with --model")


def _cards(body: bytes) -> list[_Card]:
    try:
        return msgspec.json.decode(body, type=_Cards).data
    except msgspec.DecodeError:
        return []
