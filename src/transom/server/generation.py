"""Sends the response of one generation, whole or as a stream, and aborts it if the client disconnects."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from transom.engine.client import Replies
from transom.engine.supervisor import Supervisor
from transom.server.callers import Caller, caller_of
from transom.server.errors import Refused, problem_of
from transom.server.output_processor import Generation, OutputProcessor
from transom.server.request_log import REQUEST_ID, RequestLog
from transom.server.responses import DONE, Choice, UsageBody, error_event
from transom.server.sampling_params import Streaming

log = logging.getLogger("transom.server")

T = TypeVar("T")

_PLAIN_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx, for one, buffers a response unless this header tells it not to.
    (b"x-accel-buffering", b"no"),
]


class InFlight:
    """Generations in flight, by HTTP request id, for `/abort_request`. Mutable.

    Clients choose the ids, so several generations may have the same one, also of different keys.
    """

    def __init__(self) -> None:
        self._replies: dict[str, list[tuple[str, Replies]]] = {}

    @contextmanager
    def register(self, request_id: str, key: str, replies: Replies) -> Iterator[None]:
        """`replies` can be aborted by `request_id` inside the block, by the key's own clients."""
        entry = (key, replies)
        self._replies.setdefault(request_id, []).append(entry)
        try:
            yield
        finally:
            self._replies[request_id].remove(entry)
            if not self._replies[request_id]:
                del self._replies[request_id]

    def abort(self, request_id: str, caller: Caller) -> int:
        """Ends all outputs of a request early, if it is the caller's own. Returns their number."""
        return sum(
            replies.abort_all()
            for key, replies in self._replies.get(request_id, ())
            if caller.may_command or key == caller.key
        )


class GenerationResponse:
    """An ASGI response that runs a generation while it is sent, and aborts it if the client disconnects."""

    def __init__(
        self,
        generation: Generation,
        engine: Supervisor,
        request_log: RequestLog,
        in_flight: InFlight,
        held: AbstractContextManager[None],
    ) -> None:
        """`held`: the block in which the generation counts as in flight."""
        self._generation = generation
        self._engine = engine
        self._log = request_log
        self._in_flight = in_flight
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._respond(scope, send))
        except Disconnected:
            self._log.disconnected()
        except Exception as error:
            self._log.failed(error, len(self._generation.outputs))
            raise
        finally:
            self._log.close()

    async def _respond(self, scope: Scope, send: Send) -> None:
        # Leaving the block of `replies` aborts all outputs that the engine has not finished.
        with (
            self._held,
            self._engine.client.replies() as replies,
            self._in_flight.register(scope[REQUEST_ID], caller_of(scope).key, replies),
        ):
            processor = OutputProcessor(self._generation, replies, self._log)
            # The status line waits for the first replies, so that a refusal by the engine is still a 400.
            await processor.advance()
            if self._generation.streaming is None:
                await self._send_whole(processor, send)
            else:
                await self._send_stream(processor, self._generation.streaming, send)

    async def _send_whole(self, processor: OutputProcessor, send: Send) -> None:
        while not processor.done:
            await processor.advance()
        choices = [
            Choice(index, output.take(), output.finish, output.prompt_logprobs, output.stop)
            for index, output in enumerate(self._generation.outputs)
        ]
        body = self._generation.format.whole(choices, processor.usage())
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [*_PLAIN_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})

    async def _send_stream(self, processor: OutputProcessor, streaming: Streaming, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async for events in self._events(processor, streaming):
                await send({"type": "http.response.body", "body": events, "more_body": True})
            last = DONE
        except Exception as error:  # the edge of one request
            # Status 200 is already sent: the error becomes an event of the stream.
            unfinished = sum(output.finish is None for output in self._generation.outputs)
            self._log.failed(error, unfinished)
            last = _error_event(error) + DONE
        await send({"type": "http.response.body", "body": last})

    async def _events(self, processor: OutputProcessor, streaming: Streaming) -> AsyncIterator[bytes]:
        """Events to send, once per batch of replies. Tokens of an output in one batch share an event."""
        outputs = self._generation.outputs
        events = [self._generation.format.opening(index) for index in range(len(outputs))]
        unfinished = list(range(len(outputs)))
        while True:
            usage = processor.usage() if streaming.usage_always else None
            for index in unfinished:
                events += self._events_of(index, usage)
            unfinished = [index for index in unfinished if outputs[index].finish is None]
            if processor.done:
                break
            if body := b"".join(events):
                yield body
            events.clear()
            await processor.advance()
        if streaming.usage_at_end:
            events.append(self._generation.format.usage(processor.usage()))
        yield b"".join(events)

    def _events_of(self, index: int, usage: UsageBody | None) -> list[bytes]:
        """New events of one output: its new text, then its end."""
        output, format = self._generation.outputs[index], self._generation.format
        delta = output.take()
        events = [format.chunk(index, delta, usage)] if delta.text or delta.tokens or delta.ids else []
        if output.finish is not None:
            events.append(format.ending(index, output.finish, usage, output.stop))
        return events


def _error_event(error: Exception) -> bytes:
    problem = problem_of(error)
    # Unexpected errors of other responses propagate to uvicorn, which logs them. In a stream they end here.
    if problem.status == 500 and not isinstance(error, Refused):
        log.error("a stream failed", exc_info=error)
    return error_event(problem)


# ---------------------------------------------------------------- disconnects


class Disconnected(Exception):
    """The client disconnected before its response was complete."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancels `work` and raises Disconnected."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        # Also reached when this task itself is cancelled: no task may outlive the request.
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
