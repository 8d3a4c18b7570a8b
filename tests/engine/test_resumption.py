"""Requests and commands outlive the engine: what the next one is sent, and what each client receives."""

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.test_process_client import COMMAND, REQUEST_IDS, collect, process, run, submit, until

from transom.config import EngineConfig
from transom.engine import supervisor as supervisor_module
from transom.engine.child import Pulse, Watchdog
from transom.engine.client import DEADLINE_GRACE_SECONDS, EngineClient, Family, Replies
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import BadRequest
from transom.values import (
    FinishReason,
    Logprobs,
    PauseMode,
    PromptLogprobs,
    Request,
    RequestId,
    Sampling,
    Sibling,
    TokenSampled,
    UpdateMode,
)


@asynccontextmanager
async def supervised(model: str = "echo") -> AsyncIterator[Supervisor]:
    launch = EngineLaunch(EngineConfig(model=model), command=COMMAND)
    supervisor = await Supervisor.start(launch)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def kill(client: EngineClient) -> None:
    os.kill(process(client).pid, signal.SIGKILL)


async def killed(supervisor: Supervisor) -> None:
    """Kills the engine and waits for the next one."""
    restarts = supervisor.restarts
    kill(supervisor.client)
    await until(lambda: supervisor.restarts > restarts)


async def delivered(supervisor: Supervisor, least: int) -> None:
    """Waits until the outputs in flight have more tokens than `least`, or none is in flight."""
    outputs = supervisor.client._outputs
    await until(lambda: not outputs or sum(len(one.tokens) for one in outputs.values()) > least)


def family(text: str, n: int, max_tokens: int, **fields: object) -> Request:
    ids = [RequestId(next(REQUEST_IDS)) for _ in range(n)]
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    siblings = tuple(Sibling(number, Sampling(seed=number)) for number in ids[1:])
    return Request(ids[0], tokens, max_tokens, siblings=siblings, **fields)  # type: ignore[arg-type]


def test_every_output_is_whole_after_kills_at_any_time() -> None:
    async def body() -> None:
        async with supervised() as supervisor:
            for kills in range(1, 4):
                with supervisor.client.replies() as replies:
                    request = family("abcdefgh", 3, 2000, logprobs=Logprobs(top=2, prompt_from=0))
                    replies.submit(request)
                    collecting = asyncio.ensure_future(everything(replies, 3))
                    for kill in range(kills):
                        await delivered(supervisor, 100 * kill)
                        await killed(supervisor)
                    tokens, scored, ends = await collecting
                assert scored == list(range(1, 8))
                for number in request.ids:
                    assert bytes(tokens[number]) == b"abcdefgh" * 250
                    assert ends[number] == (FinishReason.LENGTH, 2000)

    run(body)


def test_a_system_that_refuses_to_start_processes_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More often than engines may crash: refusals are no crashes."""
    refusals = iter(range(8))
    pair = socket.socketpair

    def refusing(*arguments: Any) -> Any:
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return pair(*arguments)

    async def body() -> None:
        async with supervised() as supervisor:
            with supervisor.client.replies() as replies:
                replies.submit(family("abc", 1, 2000))
                collecting = asyncio.ensure_future(everything(replies, 1))
                await delivered(supervisor, 10)
                monkeypatch.setattr(socket, "socketpair", refusing)
                await killed(supervisor)
                tokens, _, _ = await collecting
            assert [len(one) for one in tokens.values()] == [2000]

    monkeypatch.setattr(supervisor_module, "BACK_OFF_SECONDS", 0.001)
    run(body)
    assert next(refusals, None) is None


async def everything(
    replies: Replies, count: int
) -> tuple[dict[RequestId, list[int]], list[int], dict[RequestId, tuple[FinishReason, int]]]:
    """Tokens, positions with prompt logprobs, and ends with their numbers of tokens."""
    tokens: dict[RequestId, list[int]] = {}
    scored: list[int] = []
    ends: dict[RequestId, tuple[FinishReason, int]] = {}
    while len(ends) < count:
        for reply in await replies.take():
            assert reply.request not in ends
            match reply:
                case TokenSampled(number, token):
                    tokens.setdefault(number, []).append(token)
                case PromptLogprobs():
                    scored += range(reply.first, reply.first + len(reply.tokens))
                case ended:
                    ends[ended.request] = (ended.reason, ended.usage.completion_tokens)
    return tokens, scored, ends


def test_a_request_that_breaks_two_engines_is_ended_and_the_others_are_whole() -> None:
    async def body() -> None:
        async with supervised() as supervisor:
            with supervisor.client.replies() as poison, supervisor.client.replies() as others:
                numbers = [submit(others, "good", 600) for _ in range(4)]
                bad = submit(poison, "CRASH", 8)
                numbers += [submit(others, "also", 600) for _ in range(4)]
                tokens, ends = await collect(poison, 1)
                assert ends[bad].reason is FinishReason.ERROR and "repeatedly" in ends[bad].message
                assert bytes(tokens[bad]) == b"CRA"
                tokens, ends = await collect(others, len(numbers))
                assert [len(tokens[number]) for number in numbers] == [600] * 8
                assert {end.reason for end in ends.values()} == {FinishReason.LENGTH}
                assert supervisor.restarts == 2

    run(body)


def test_a_request_that_no_engine_can_accept_is_ended_and_the_others_are_whole() -> None:
    """The engine dies before it has said that it computes the request."""

    async def body() -> None:
        async with supervised() as supervisor:
            with supervisor.client.replies() as poison, supervisor.client.replies() as others:
                numbers = [submit(others, "good", 3000) for _ in range(2)]
                await others.take()
                bad = submit(poison, "MEMORY", 8)
                numbers.append(submit(others, "also", 3000))
                _, ends = await collect(poison, 1)
                assert ends[bad].reason is FinishReason.ERROR and "repeatedly" in ends[bad].message
                assert ends[bad].usage.completion_tokens == 0
                _, ends = await collect(others, len(numbers))
                assert {ends[number].reason for number in numbers} == {FinishReason.LENGTH}

    run(body)


def test_a_request_that_makes_progress_is_never_quarantined() -> None:
    async def body() -> None:
        async with supervised() as supervisor:
            with supervisor.client.replies() as replies:
                number = submit(replies, "long", 30000)
                for _ in range(6):
                    await replies.take()
                    await killed(supervisor)
                _, ends = await collect(replies, 1)
                assert ends[number].reason is FinishReason.LENGTH

    run(body)


def test_between_two_engines_requests_wait_aborts_end_at_once_and_deadlines_pass(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(f"gate {tmp_path}") as supervisor:
            client = supervisor.client
            with client.replies() as replies:
                aborted = submit(replies, "STALL")
                late = Request(
                    RequestId(next(REQUEST_IDS)),
                    np.array([65, 66], np.int32),
                    500,
                    deadline=time.monotonic() - DEADLINE_GRACE_SECONDS,
                )
                await replies.take()
                kill(client)
                await until(lambda: supervisor.trouble is not None)
                replies.submit(late)
                replies.abort(aborted)
                _, ends = await collect(replies, 2)
                assert ends[aborted].reason is FinishReason.ABORT
                assert ends[aborted].usage.completion_tokens in range(1, 4)
                assert ends[late.id].reason is FinishReason.DEADLINE
                waiting = submit(replies, "next", 4)
                (tmp_path / "open").write_text("echo")
                tokens, ends = await collect(replies, 1)
                assert bytes(tokens[waiting]) == b"next"

    run(body)


def test_pause_and_weights_outlive_the_engine() -> None:
    async def body() -> None:
        async with supervised() as supervisor:
            client = supervisor.client
            await client.update_weights("weights-b", UpdateMode.DRAIN)
            await client.pause(PauseMode.IN_PLACE)
            with client.replies() as replies:
                number = submit(replies, "abcd", 4)
                await killed(supervisor)
                assert process(client).ready.weights == supervisor.weights_version == "weights-b"
                await client.flush()
                assert client.stats.generated_tokens == 0 and client.in_flight == 1
                await client.resume()
                tokens, _ = await collect(replies, 1)
                assert bytes(tokens[number]) == b"abcd"

    run(body)


def test_a_command_without_an_answer_is_sent_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(f"gate {tmp_path}") as supervisor:
            client = supervisor.client
            kill(client)
            commands = [
                asyncio.ensure_future(client.flush()),
                asyncio.ensure_future(client.update_weights("weights-b", UpdateMode.RETRACT)),
                asyncio.ensure_future(client.update_weights("missing", UpdateMode.RETRACT)),
            ]
            await until(lambda: supervisor.trouble is not None)
            (tmp_path / "open").write_text("echo")
            flushed, updated, refused = await asyncio.gather(*commands, return_exceptions=True)
            assert (flushed, updated) == (None, None) and isinstance(refused, BadRequest)
            assert supervisor.weights_version == "weights-b"

    run(body)


def test_an_abort_of_all_ends_the_requests_before_it_and_no_later_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(f"gate {tmp_path}") as supervisor:
            client = supervisor.client
            with client.replies() as before, client.replies() as after:
                old = [submit(before, "STALL") for _ in range(3)]
                await before.take()
                kill(client)
                await until(lambda: supervisor.trouble is not None)
                aborting = asyncio.ensure_future(client.abort_all())
                await asyncio.sleep(0)
                new = submit(after, "next", 4)
                (tmp_path / "open").write_text("echo")
                _, ends = await collect(before, 3)
                assert {ends[number].reason for number in old} == {FinishReason.ABORT}
                tokens, _ = await collect(after, 1)
                assert bytes(tokens[new]) == b"next"
                await aborting

    run(body)


def test_a_stopped_engine_is_replaced_and_a_stopped_idle_one_when_a_request_arrives() -> None:
    async def body() -> None:
        async with supervised() as supervisor:
            os.kill(process(supervisor.client).pid, signal.SIGSTOP)
            with supervisor.client.replies() as replies:
                number = submit(replies, "abcd", 4)
                tokens, _ = await collect(replies, 1)
                assert bytes(tokens[number]) == b"abcd"
                assert supervisor.restarts == 1

    run(body)


@pytest.mark.parametrize(
    ("silent", "stopped", "ticks", "verdict"),
    [
        (1.0, True, [5, 5], None),
        (3.0, True, [5, 5], "was stopped"),
        (60.0, False, [5, 6], None),
        (60.0, False, [5, 5], "has computed nothing for 60 seconds"),
        (121.0, False, [5, 6], "has not finished a step"),
        (121.0, False, None, "has not finished a step"),
        (60.0, False, None, None),
        (0.0, True, [5, 5], None),
    ],
)
def test_the_watchdog_waits_for_an_engine_that_computes(
    silent: float, stopped: bool, ticks: list[int] | None, verdict: str | None
) -> None:
    watchdog = Watchdog(busy_seconds=120)
    pulses = [None, None] if ticks is None else [Pulse(stopped, count) for count in ticks]
    watchdog.verdict(1, 0.0, 0.0, pulses[0])
    found = watchdog.verdict(1, silent, silent, pulses[1])
    assert (found is None) if verdict is None else (found is not None and verdict in found.reason)


def test_a_continuation_asks_for_the_prompt_logprobs_that_are_missing() -> None:
    request = family("abcdefgh", 3, 10, logprobs=Logprobs(top=2, prompt_from=0))
    asked = Family(request, replies=None)  # type: ignore[arg-type]
    asked.prompt_from = 5
    (again,) = asked.continuations()
    assert again.ids == request.ids and again.logprobs == Logprobs(2, 5)
    asked.outputs[1].is_ended = True
    asked.prompt_from = 8
    (again,) = asked.continuations()
    assert again.ids == (request.ids[0], request.ids[2]) and again.logprobs == Logprobs(2)
    asked.outputs[0].tokens = [7]
    begun, fresh = asked.continuations()
    assert (begun.id, begun.outputs, begun.siblings) == (request.id, (7,), ())
    assert (fresh.id, fresh.sampling, fresh.siblings) == (request.ids[2], request.siblings[1].sampling, ())
