"""The engine process and its client over the real socket, with a fake model that repeats its prompt."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests import over_http
from tests.over_http import is_alive
from tests.serving import descendants

from transom import wire
from transom.config import EngineConfig
from transom.engine.child import EngineProcess
from transom.engine.client import EngineClient, Replies
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import EngineDied, TransomError
from transom.values import Ended, FinishReason, Request, RequestId, Sampling, TokenSampled

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))
DEADLINE_SECONDS = 30
LARGE_TOKENS = 50_000
TOKEN_BYTES_MIN = 12
"""Bytes of an encoded token: a float and its surroundings."""


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), DEADLINE_SECONDS)

    asyncio.run(bounded())


@asynccontextmanager
async def engine(model: str = "echo") -> AsyncIterator[EngineClient]:
    """A client whose engine is not replaced: `test_resumption` has the other kind."""
    supervisor = await start(model)
    try:
        yield supervisor.client
    finally:
        await supervisor.stop()


async def start(model: str, command: Sequence[str] = COMMAND) -> Supervisor:
    return await Supervisor.start(EngineLaunch(EngineConfig(model=model), command=command, crashes_max=1))


def process(client: EngineClient) -> EngineProcess:
    assert client._process is not None
    return client._process


REQUEST_IDS = count(1)


def submit(replies: Replies, text: str, max_tokens: int = 8) -> RequestId:
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    number = RequestId(next(REQUEST_IDS))
    replies.submit(Request(number, tokens, max_tokens, frozenset({257}), Sampling(seed=2**64 - 1)))
    return number


async def collect(replies: Replies, count: int) -> tuple[dict[RequestId, list[int]], dict[RequestId, Ended]]:
    """Tokens and ends by number, until `count` requests have ended."""
    tokens: dict[RequestId, list[int]] = {}
    ends: dict[RequestId, Ended] = {}
    while len(ends) < count:
        for reply in await replies.take():
            if isinstance(reply, Ended):
                ends[reply.request] = reply
            elif isinstance(reply, TokenSampled):
                tokens.setdefault(reply.request, []).append(reply.token)
    return tokens, ends


async def until(condition: Callable[[], bool]) -> None:
    """Runs the event loop until the condition holds; `run` sets the deadline."""
    while not condition():
        await asyncio.sleep(0.001)


def unread_bytes(client: EngineClient) -> int:
    """Bytes that the engine has sent and the client has not received."""
    count = bytearray(4)
    fcntl.ioctl(process(client)._channel.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_tokens_and_one_end_arrive_in_order_for_each_of_many_requests() -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as replies:
                texts = {submit(replies, f"text {i}", 5 + i): f"text {i}" for i in range(20)}
                tokens, ends = await collect(replies, len(texts))
            for number, text in texts.items():
                echoed = text * 5
                assert bytes(tokens[number]).decode() == echoed[: len(tokens[number])]
                assert ends[number].reason is FinishReason.LENGTH
                assert ends[number].usage.completion_tokens == len(tokens[number])
            assert client.in_flight == 0
            assert client.stats.requests_finished == 20

    run(body)


def test_leaving_the_replies_aborts_unfinished_requests() -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as replies:
                submit(replies, "STALL")
                await replies.take()
                assert client.stats.running == 1
            assert client.in_flight == 0
            await until(lambda: client.stats.running == 0)

    run(body)


def test_cancelling_the_reader_aborts_its_request() -> None:
    async def body() -> None:
        async with engine() as client:

            async def read() -> None:
                with client.replies() as replies:
                    submit(replies, "STALL")
                    await collect(replies, 1)

            reading = asyncio.ensure_future(read())
            await until(lambda: client.stats.running == 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await until(lambda: client.stats.running == 0)

    run(body)


def test_an_abort_is_answered_with_an_end_that_has_the_usage() -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as replies:
                number = submit(replies, "STALL")
                await replies.take()
                replies.abort(number)
                _, ends = await collect(replies, 1)
                assert ends[number].reason is FinishReason.ABORT
                assert ends[number].usage.prompt_tokens == 5
                replies.abort(number)

    run(body)


def test_a_refused_request_ends_with_the_reason_and_the_other_continues() -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as replies:
                refused, good = submit(replies, "REJECT"), submit(replies, "good")
                tokens, ends = await collect(replies, 2)
                assert refused not in tokens
                end = ends[refused]
                assert end.reason is FinishReason.ERROR
                assert (end.message, end.code, end.param) == (
                    "no pool holds it",
                    "context_length_exceeded",
                    "prompt",
                )
                assert bytes(tokens[good]) == b"goodgood"

    run(body)


def test_requests_that_end_by_themselves_are_never_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with engine() as client:
            sent: list[wire.ToEngine] = []
            send = process(client).send

            def record(message: wire.ToEngine) -> None:
                sent.append(message)
                send(message)

            monkeypatch.setattr(process(client), "send", record)
            for _ in range(10):
                with client.replies() as replies:
                    submit(replies, "short")
                    await collect(replies, 1)
            assert not [message for message in sent if not isinstance(message, wire.Submit)]

    run(body)


def test_flush_returns_after_the_engine_has_flushed() -> None:
    async def body() -> None:
        async def cached(client: EngineClient) -> int:
            with client.replies() as replies:
                number = submit(replies, "again")
                _, ends = await collect(replies, 1)
            return ends[number].usage.cached_tokens

        async with engine() as client:
            assert [await cached(client), await cached(client)] == [0, 4]
            await client.flush()
            assert await cached(client) == 0

    run(body)


@pytest.mark.parametrize("how", ["CRASH", "EXIT"])
def test_when_the_engine_dies_every_request_in_flight_gets_an_error(how: str) -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as bystander, client.replies() as culprit:
                submit(bystander, "STALL")
                await bystander.take()
                submit(culprit, how)
                for replies in (culprit, bystander):
                    with pytest.raises(EngineDied):
                        await collect(replies, 1)
            assert client.in_flight == 0
            with client.replies() as replies, pytest.raises(EngineDied):
                submit(replies, "too late")
            with pytest.raises(EngineDied):
                await client.flush()

    run(body)


def test_an_engine_that_is_killed_is_noticed_while_idle() -> None:
    async def body() -> None:
        async with engine() as client:
            os.kill(process(client).pid, signal.SIGKILL)
            await until(lambda: client.death is not None)

    run(body)


def test_a_crash_says_why_to_the_server_and_not_to_its_clients() -> None:
    async def body() -> None:
        supervisor = await start("echo")
        try:
            with supervisor.client.replies() as replies:
                submit(replies, "CRASH")
                with pytest.raises(EngineDied) as caught:
                    await collect(replies, 1)
            assert "the fake broke as asked" in await supervisor.gave_up()
            assert "broke" not in str(caught.value)
        finally:
            await supervisor.stop()

    run(body)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("broken", "tensor x is truncated"),
        ("bug", "has a bug"),
        ("memory", r"not enough memory .*--kv-bytes .*160\. MiB for an array"),
    ],
)
def test_an_engine_that_cannot_load_gives_one_line_and_leaves_nothing(model: str, message: str) -> None:
    async def body() -> None:
        with pytest.raises(TransomError, match=message) as caught:
            await start(model)
        assert "\n" not in str(caught.value)

    run(body)


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    async def body() -> None:
        before = set(descendants(os.getpid()))  # servers of other tests
        starting = asyncio.ensure_future(start("slow"))
        await until(lambda: bool(set(descendants(os.getpid())) - before))
        (pid,) = set(descendants(os.getpid())) - before
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not is_alive(pid)

    run(body)


def test_stopping_leaves_no_process() -> None:
    async def body() -> None:
        async with engine() as client:
            pid = process(client).pid
            assert is_alive(pid)
        assert not is_alive(pid)

    run(body)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("""os.write(0, b"\\x10\\0\\0\\0half a")""", "ended unexpectedly"),
        ("""os.write(0, b"\\xff" * 9); os.read(0, 1 << 20); os.read(0, 1)""", "are not a message"),
        ("""os.write(0, b"\\1\\0\\0\\0\\xc1"); os.read(0, 1 << 20); os.read(0, 1)""", "are not a message"),
    ],
    ids=["half a frame", "an absurd length", "no message"],
)
def test_an_engine_that_sends_nonsense_is_killed(words: str, message: str) -> None:
    async def body() -> None:
        before = set(descendants(os.getpid()))  # servers of other tests
        with pytest.raises(TransomError, match=message):
            await start("any", (sys.executable, "-c", f"import os; {words}"))
        assert set(descendants(os.getpid())) <= before

    run(body)


def test_text_that_an_engine_prints_is_not_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    async def body() -> None:
        async with engine("chatty") as client:
            await client.flush()

    run(body)
    assert capfd.readouterr().out == "on standard output\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_the_engine_and_sigint_does_not(number: signal.Signals) -> None:
    async def body() -> None:
        async with engine() as client:
            child = process(client)._child
            os.kill(child.pid, number)
            if number is signal.SIGTERM:
                await until(lambda: client.death is not None)
                assert await asyncio.to_thread(child.wait) == 0
            else:
                await client.flush()

    run(body)


@pytest.mark.parametrize("last", [b"", b"\x10\0\0\0half a"], ids=["between frames", "in a frame"])
def test_the_engine_ends_when_its_parent_is_gone(last: bytes) -> None:
    async def body() -> None:
        async with engine() as client:
            child = process(client)._child
            # The kernel closes the socket of a killed parent in the same way.
            process(client)._channel._socket.sendall(last)
            process(client)._channel._socket.shutdown(socket.SHUT_RDWR)
            assert await asyncio.to_thread(child.wait) == 0

    run(body)


def test_an_engine_that_never_receives_a_launch_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(COMMAND, stdin=theirs.fileno())
        ours.close()
        assert child.wait(DEADLINE_SECONDS) == 0


def test_an_engine_that_does_not_read_blocks_nothing_and_gets_all_messages_in_order() -> None:
    """The prompts exceed the socket's buffer: the client keeps the rest without blocking its event loop."""

    async def body() -> None:
        async with engine() as client:
            texts = [f"{i}:" + "x" * LARGE_TOKENS for i in range(20)]
            os.kill(process(client).pid, signal.SIGSTOP)
            with client.replies() as replies:
                numbers = [submit(replies, text, 3) for text in texts]
                assert process(client)._channel.unsent
                os.kill(process(client).pid, signal.SIGCONT)
                tokens, _ = await collect(replies, len(texts))
                assert not process(client)._channel.unsent
            # A dict keeps the order in which first tokens came.
            assert list(tokens) == numbers
            assert [bytes(tokens[number]).decode() for number in numbers] == [text[:3] for text in texts]

    run(body)


def test_a_server_that_does_not_read_gets_all_messages_in_order_later() -> None:
    async def body() -> None:
        async with engine() as client:
            with client.replies() as replies:
                numbers = [submit(replies, "abc", 2000) for _ in range(30)]
                # No await: nothing is read here until the engine has nothing left to compute.
                over_http.until(lambda: unread_bytes(client) > 10_000 and is_asleep(process(client).pid))
                assert unread_bytes(client) < 2000 * 30 * TOKEN_BYTES_MIN
                tokens, ends = await collect(replies, len(numbers))
            assert all(ends[number].reason is FinishReason.LENGTH for number in numbers)
            echoed = (b"abc" * 2000)[:2000]
            assert all(bytes(tokens[number]) == echoed for number in numbers)

    run(body)


def test_replies_to_abandoned_requests_are_ignored() -> None:
    async def body() -> None:
        async with engine() as client:
            for _ in range(20):
                with client.replies() as replies:
                    submit(replies, "gone", 1000)
                    await replies.take()
            with client.replies() as replies:
                number = submit(replies, "here", 4)
                tokens, _ = await collect(replies, 1)
                assert bytes(tokens[number]) == b"here"

    run(body)
