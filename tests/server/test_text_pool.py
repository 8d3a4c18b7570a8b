"""Large prompts are prepared in a few threads: bounded, and not for clients that have left."""

import asyncio
import json
import threading
from collections.abc import Callable

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, refused, until
from tests.server.raw import connected, post
from tests.server.toy import running_server

from transom.errors import BadRequest
from transom.limits import LIMITS, Limits
from transom.server.errors import Refused
from transom.server.text_pool import CarryOn, TextPool


def test_a_client_that_leaves_frees_the_thread_that_tokenizes_for_it() -> None:
    with (
        running_server(text_threads=1, text_queue=0) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
    ):
        large = {"prompt": "x" * (LIMITS.loop_characters + 1), "max_tokens": 1}

        def status() -> int:
            return http.post("/v1/completions", json=large).status_code

        with connected(server.url) as connection:
            post(connection, prompt="SLOW" * 2000, max_tokens=1)
            until(lambda: status() == 429)
            assert "retry-after" in http.post("/v1/completions", json=large).headers
            assert complete(http, "small", max_tokens=1)["usage"]["prompt_tokens"] == 6
        # The text takes 20 seconds; a prompt beyond the context is a 400.
        until(lambda: status() == 400)


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ([{"role": "user", "content": ""}] * 4097, "4097 messages"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * 4097}], "4097 parts"),
    ],
)
def test_too_many_messages_or_parts_are_refused(http: httpx.Client, messages: object, count: str) -> None:
    # Without spaces: the toy accepts small bodies only.
    body = json.dumps({"messages": messages}, separators=(",", ":"))
    headers = {"content-type": "application/json"}
    error = refused(http.post("/v1/chat/completions", content=body, headers=headers))
    assert count in error["message"]


def test_work_that_waits_is_bounded_and_does_not_begin_for_a_caller_that_was_cancelled() -> None:
    begun, release = [], threading.Event()

    def work(number: int) -> Callable[[CarryOn], int]:
        def wait(_: CarryOn) -> int:
            begun.append(number)
            release.wait(DEADLINE_SECONDS)
            return number

        return wait

    async def body() -> None:
        pool = TextPool(Limits(text_threads=1, text_queue=2))
        tasks = [asyncio.ensure_future(pool.run(work(number))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refusal:
            await pool.run(lambda _: None)
        assert refusal.value.problem.status == 429
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        release.set()
        assert await asyncio.gather(tasks[0], tasks[2]) == [0, 2]
        assert await pool.run(lambda _: "free again") == "free again"

    asyncio.run(body())
    assert begun == [0, 2]


def test_work_that_takes_too_long_is_a_bad_request() -> None:
    def endless(carry_on: CarryOn) -> None:
        while True:
            carry_on()

    with pytest.raises(BadRequest, match=r"0\.01 s"):
        asyncio.run(TextPool(Limits(text_seconds=0.01)).run(endless))
