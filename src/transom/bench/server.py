"""The server under test: its model and abilities, and streamed completions from it."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from transom.bench.http import Address, NoResponse, request
from transom.errors import ConfigError, TransomError

WARM_UP = "The first words of a server that was asked nothing before are"
"""The prompt of the first request, which is not measured."""
OWN = "transom"
"""The owner of models in our server's model list."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server, as given by the user. The key is sent to this server only."""

    address: Address
    model: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("an API key must be printable ASCII, without line breaks")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that has answered once. `extra`: request fields beyond OpenAI's that it accepts."""

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
    """One answer. `times`: arrivals of its pieces of text. `cached_tokens` is None if not reported."""

    sent_at: float
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
    """A greedy, streamed completion. It has `tokens` tokens if the server accepts `ignore_eos`."""
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
        response = await request(access.address, "/v1/completions", access.headers, encoded, stream.add)
    except NoResponse as error:
        return Failed(str(error))
    if response.status != 200:
        return Failed(f"HTTP {response.status}: {_message(response.body)}")
    if response.body:
        return Failed("the response is not an event stream, although the request has stream: true")
    return stream.answer(response.sent_at)


def _message(body: bytes) -> str:
    """One line: the message of an error in OpenAI's shape, otherwise the start of the body."""
    try:
        found = msgspec.json.decode(body, type=_Problem).error
    except msgspec.DecodeError:
        found = body[:200].decode("utf-8", "replace")
    return _one_line(found)


def _one_line(error: object) -> str:
    text = error.get("message", error) if isinstance(error, dict) else error
    return printable(" ".join(str(text).split())[:300])


def printable(text: str) -> str:
    """Text from a server without control characters, which could manipulate the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# ---------------------------------------------------------------- the event stream


class _Problem(msgspec.Struct):
    error: Any


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's count of cached tokens."""

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
    """The events of one stream so far. Mutable."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._pieces: list[str] = []
        self._usage: _Usage | None = None
        self._timings: _Timings | None = None
        self._error: str | None = None

    def add(self, data: bytes, at: float) -> None:
        if data == b"[DONE]":
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            self._error = f"the stream contains an event that is not a completion: {error}"
            return
        if event.error is not None:
            self._error = _one_line(event.error)
        self._usage = event.usage or self._usage
        self._timings = event.timings or self._timings
        for choice in event.choices or ():
            if choice.text:
                self._times.append(at)
                self._pieces.append(choice.text)

    def answer(self, sent_at: float) -> Answer | Failed:
        if self._error is not None:
            return Failed(self._error)
        if self._usage is None:
            return Failed("the stream does not report token counts (stream_options.include_usage)")
        usage = self._usage
        return Answer(
            sent_at=sent_at,
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


# ---------------------------------------------------------------- the first contact


class _Card(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Cards(msgspec.Struct):
    data: list[_Card]


async def connect(label: str, access: Access) -> Server:
    """Finds the model, and requests a few tokens: the server must work and count them. TransomError."""
    card = await _card(access)
    server = Server(label, access, access.model or card.id, card.owned_by)
    first = await complete(server, WARM_UP, 8)
    if isinstance(first, Failed) and first.reason.startswith(("HTTP 400", "HTTP 422")):
        # The server may have refused the field `ignore_eos`. Without it, answers have any length.
        server = replace(server, extra=())
        first = await complete(server, WARM_UP, 8)
    if isinstance(first, Failed):
        raise TransomError(f"{access.address}/v1/completions: {first.reason}")
    return server


async def _card(access: Access) -> _Card:
    """The list entry of the model that the user named, or of the first model."""
    url = f"{access.address}/v1/models"
    try:
        response = await request(access.address, "/v1/models", access.headers)
    except NoResponse as error:
        raise TransomError(f"{access.address}: {error}") from None
    if response.status in (401, 403):
        raise TransomError(
            f"{url}: HTTP {response.status}: the server requires a key: --api-key, or OPENAI_API_KEY"
        )
    cards = _cards(response.body) if response.status == 200 else []
    named = [card for card in cards if access.model in (None, card.id)]
    if named:
        return named[0]
    if access.model is not None:
        return _Card(access.model)  # some servers list no model, or other names; the completion will show
    if response.status != 200:
        raise TransomError(
            f"{url}: HTTP {response.status}: is the path right? With --model NAME it is not needed"
        )
    raise TransomError(f"{url} lists no model; name one with --model")


def _cards(body: bytes) -> list[_Card]:
    try:
        return msgspec.json.decode(body, type=_Cards).data
    except msgspec.DecodeError:
        return []
