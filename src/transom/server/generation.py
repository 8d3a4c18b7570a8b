"""Runs one HTTP request's generation: prompts to the engine, answers to the client, until either is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from transom import wire
from transom.engine.client import Replies
from transom.engine.supervisor import Supervisor
from transom.server.errors import Refused, problem_of
from transom.server.output_processor import Answer
from transom.server.request_log import REQUEST_ID, Account
from transom.server.responses import DONE, Choice, PromptDetails, Shape, UsageBody, error_event
from transom.server.sampling_params import Streaming
from transom.values import Request, RequestId

log = logging.getLogger("transom.server")

T = TypeVar("T")

_PLAIN_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of nginx's kind hold a stream back unless told not to.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated for one HTTP request: as many answers to each prompt, in the prompts' order."""

    prompts: tuple[Request, ...]
    answers: tuple[Answer, ...]
    shape: Shape
    streaming: Streaming | None

    @property
    def families(self) -> Iterator[tuple[Request, tuple[Answer, ...]]]:
        each = len(self.answers) // len(self.prompts)
        for number, prompt in enumerate(self.prompts):
            yield prompt, self.answers[number * each : (number + 1) * each]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.prompt) for prompt in self.prompts)


class Exchange:
    """A job in the hands of the engine. Mutable."""

    def __init__(self, job: Job, replies: Replies, account: Account) -> None:
        self.answers = job.answers
        self._prompt_tokens = job.prompt_tokens
        self._replies = replies
        self._account = account
        self._by_number: dict[RequestId, Answer] = {}
        self._families: dict[RequestId, tuple[Answer, ...]] = {}
        for prompt, family in job.families:
            replies.submit(prompt)
            self._families[prompt.id] = family
            self._by_number.update(zip(prompt.ids, family, strict=True))

    @property
    def done(self) -> bool:
        return all(answer.usage is not None for answer in self.answers)

    async def advance(self) -> None:
        """Wait for the engine's next words and work them in. Refused, EngineDied."""
        for reply in await self._replies.take():
            match reply:
                case wire.TokenOut():
                    self._token(self._by_number[reply.id], reply)
                case wire.PromptLogprobOut():
                    for answer in self._families[reply.id]:
                        answer.score(reply)
                case wire.EndOut():
                    self._end(self._by_number[reply.id], reply)

    def _token(self, answer: Answer, reply: wire.TokenOut) -> None:
        if answer.tokens == 0:
            self._account.first_token()
        finished_before = answer.finish is not None
        answer.token(reply)
        if answer.finish is not None and not finished_before:
            self._replies.abort(reply.id)

    def _end(self, answer: Answer, reply: wire.EndOut) -> None:
        answer.end(reply)
        self._account.answered(answer, reply.queue_seconds)

    def usage(self) -> UsageBody:
        """So far; with the cached tokens once all has ended."""
        made = sum(answer.tokens for answer in self.answers)
        firsts = [family[0].usage for family in self._families.values()]
        cached = [usage.cached_tokens for usage in firsts if usage is not None]
        details = PromptDetails(sum(cached)) if self.done else None
        return UsageBody(self._prompt_tokens, made, self._prompt_tokens + made, details)


class Going:
    """Owns what is being answered, by the id of the HTTP request: several may have the same. Mutable."""

    def __init__(self) -> None:
        self._replies: dict[str, list[Replies]] = {}

    @contextmanager
    def on(self, name: str, replies: Replies) -> Iterator[None]:
        """`replies` go on while it lasts."""
        self._replies.setdefault(name, []).append(replies)
        try:
            yield
        finally:
            self._replies[name].remove(replies)
            if not self._replies[name]:
                del self._replies[name]

    def abort(self, name: str) -> int:
        """Ask for an early end of all outputs of a request. How many that are."""
        return sum(replies.abort_all() for replies in self._replies.get(name, ()))


class GenerationResponse:
    """An ASGI response that makes its answer while it is sent, and stops making it when nobody listens."""

    def __init__(self, job: Job, engine: Supervisor, account: Account, going: "Going") -> None:
        self._job = job
        self._engine = engine
        self._account = account
        self._going = going

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._answer(scope, send))
        except Disconnected:
            self._account.disconnected()
        except Exception as error:
            self._account.failed(error, len(self._job.answers))
            raise
        finally:
            self._account.close()

    async def _answer(self, scope: Scope, send: Send) -> None:
        with self._engine.client.replies() as replies, self._going.on(scope[REQUEST_ID], replies):
            exchange = Exchange(self._job, replies, self._account)
            # The first words come before the status: a refusal by the engine is still a 400.
            await exchange.advance()
            if self._job.streaming is None:
                await self._whole(exchange, send)
            else:
                await self._stream(exchange, self._job.streaming, send)

    async def _whole(self, exchange: Exchange, send: Send) -> None:
        while not exchange.done:
            await exchange.advance()
        choices = [Choice(a.index, a.take(), a.finish or "") for a in exchange.answers]
        body = self._job.shape.whole(choices, exchange.usage())
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*_PLAIN_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, exchange: Exchange, streaming: Streaming, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async for events in self._events(exchange, streaming):
                await send({"type": "http.response.body", "body": events, "more_body": True})
            last = DONE
        except Exception as error:  # the edge of one request: the status is out, the stream tells the rest
            self._account.failed(error, sum(answer.finish is None for answer in exchange.answers))
            last = _told(error) + DONE
        await send({"type": "http.response.body", "body": last})

    async def _events(self, exchange: Exchange, streaming: Streaming) -> AsyncIterator[bytes]:
        """What each word of the engine gives to send; several tokens of an answer come as one event."""
        shape = self._job.shape
        events = [shape.opening(answer.index) for answer in exchange.answers]
        going = list(exchange.answers)
        while True:
            usage = exchange.usage() if streaming.usage_always else None
            for answer in going:
                events += answer_events(answer, shape, usage)
            going = [answer for answer in going if answer.finish is None]
            if exchange.done:
                break
            if body := b"".join(events):
                yield body
            events.clear()
            await exchange.advance()
        if streaming.usage_at_end:
            events.append(shape.usage(exchange.usage()))
        yield b"".join(events)


def answer_events(answer: Answer, shape: Shape, usage: UsageBody | None) -> Sequence[bytes]:
    """The events an answer has for its client now: text if there is any, then its end."""
    delta = answer.take()
    events = [shape.chunk(answer.index, delta, usage)] if delta.text or delta.logprobs else []
    if answer.finish is not None:
        events.append(shape.ending(answer.index, answer.finish, usage))
    return events


def _told(error: Exception) -> bytes:
    problem = problem_of(error)
    if problem.status == 500 and not isinstance(error, Refused):
        log.error("a stream failed", exc_info=error)
    return error_event(problem)


# ---------------------------------------------------------------- disconnects


class Disconnected(Exception):
    """The client left before its answer was complete."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and Disconnected raised, as soon as the client is gone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
