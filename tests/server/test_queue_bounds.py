"""A full queue: who is refused, and what Retry-After says."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, complete, refused, samples, until
from tests.server.raw import connected, post, stalled
from tests.server.toy import Running, running_server

from transom.limits import LIMITS, Limits
from transom.server.errors import Refused
from transom.server.queue_bounds import Bounds, Load, QueueBounds

RUNNING = 32
"""What the fake engine says that it computes at the same time."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def retry_after(queue: QueueBounds, key: str, load: Load) -> int:
    with pytest.raises(Refused) as refusal:
        queue.check(key, load)
    assert refusal.value.problem.status == 429
    return int(refusal.value.problem.headers["retry-after"])


def test_retry_after_is_the_excess_at_the_measured_rate() -> None:
    clock = Clock()
    queue = QueueBounds(Bounds(Load(10, 1000), Load(10, 1000)), clock)
    with queue.hold("a", Load(4, 100)):
        with ExitStack() as held:
            held.enter_context(queue.hold("a", Load(6, 300)))
            assert retry_after(queue, "a", Load(1, 1)) == LIMITS.retry_seconds, "nothing has ended yet"
            clock.now = 12.0
        # Six outputs and 300 tokens have ended in 12 seconds: an output takes 2 seconds, a token 0.04.
        with queue.hold("a", Load(6, 600)):
            assert retry_after(queue, "a", Load(3, 0)) == 6
            assert retry_after(queue, "b", Load(3, 0)) == 6
            assert retry_after(queue, "a", Load(0, 400)) == 4
        queue.check("a", Load(6, 900))


def test_the_rate_is_that_of_the_time_since_the_server_was_idle() -> None:
    clock = Clock()
    queue = QueueBounds(Bounds(Load(1, 9), Load(1, 9)), clock)
    with queue.hold("a", Load(1, 1)):
        clock.now = 1000.0
    clock.now = 2000.0
    with ExitStack() as held:
        held.enter_context(queue.hold("a", Load(1, 1)))
        with queue.hold("a", Load(1, 1)):
            clock.now = 2003.0
        assert retry_after(queue, "a", Load(1, 1)) == 3


def test_one_key_cannot_fill_the_queue_of_the_others() -> None:
    queue = QueueBounds(Bounds.of(Limits(queued_requests=100), running=10, keys=2))
    with ExitStack() as held:
        for _ in range(60):
            queue.check("a", Load(1, 1))
            held.enter_context(queue.hold("a", Load(1, 1)))
        retry_after(queue, "a", Load(1, 1))
        for _ in range(50):
            queue.check("b", Load(1, 1))
            held.enter_context(queue.hold("b", Load(1, 1)))
        retry_after(queue, "b", Load(1, 1))
        retry_after(queue, "c", Load(1, 1))
    queue.check("a", Load(60, 1))
    assert not queue._of_key


def test_a_request_beyond_every_bound_runs_alone() -> None:
    queue = QueueBounds(Bounds.of(Limits(queued_requests=0, queued_tokens=5), running=2, keys=1))
    queue.check("", Load(64, 100))
    with queue.hold("", Load(64, 100)):
        retry_after(queue, "", Load(1, 1))


@pytest.fixture(scope="module")
def narrow() -> Iterator[Running]:
    with running_server(queued_requests=1, queued_tokens=400, request_seconds=2.0) as server:
        yield server


def test_a_full_queue_is_a_429_with_retry_after_and_empties(narrow: Running) -> None:
    with httpx.Client(base_url=narrow.url, timeout=DEADLINE_SECONDS) as http:
        with connected(narrow.url) as busy:
            post(busy, prompt="STALL", n=RUNNING + 1, max_tokens=9)
            until(lambda: samples(http)["transom:num_running_reqs"] == RUNNING + 1)
            answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
            error = refused(answer, 429)
            assert error["type"] == "rate_limit_error"
            assert 1 <= int(answer.headers["retry-after"]) <= LIMITS.retry_seconds_at_most
        until(lambda: samples(http)["transom:num_running_reqs"] == 0)
        assert complete(http, "a", max_tokens=1)["choices"][0]["text"] == "a"


def test_prompt_tokens_in_flight_are_bounded_too(narrow: Running) -> None:
    with httpx.Client(base_url=narrow.url, timeout=DEADLINE_SECONDS) as http, connected(narrow.url) as busy:
        post(busy, prompt="STALL" + "x" * 295, max_tokens=9)
        until(lambda: samples(http)["transom:num_running_reqs"] == 1)
        assert "400" in refused(http.post("/v1/completions", json={"prompt": "y" * 200}), 429)["message"]
        assert complete(http, "short", max_tokens=1)["usage"]["prompt_tokens"] == 6


def test_a_request_ends_at_the_server_s_time_limit(narrow: Running) -> None:
    with httpx.Client(base_url=narrow.url, timeout=DEADLINE_SECONDS) as http:
        answer = complete(http, "STALL", max_tokens=9, timeout=3600)
        assert answer["choices"][0]["finish_cause"] == "deadline"
    with stalled(narrow.url, stream=False):
        pass
