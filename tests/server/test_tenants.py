"""Who asks, from the body or from the key that came with it, on its way to the scheduler."""

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from transom import values, wire
from transom.server.app import _named
from transom.server.protocol import CompletionRequest


def named(user: str | None, key: str | None) -> str | None:
    headers = [] if key is None else [(b"authorization", key.encode())]
    return _named(
        CompletionRequest(prompt="x", user=user), Request({"type": "http", "headers": headers})
    ).user


def test_a_user_in_the_body_goes_before_the_key() -> None:
    assert named("ann", "Bearer secret") == "ann"


def test_a_key_is_told_apart_from_others_and_not_kept() -> None:
    one, two = named(None, "Bearer secret"), named(None, "Bearer other")
    assert one != two and one is not None and "secret" not in one
    assert one == named("", "Bearer secret")


def test_nobody_is_nobody() -> None:
    assert named(None, None) is None


def test_the_scheduler_is_told() -> None:
    submitted = values.Request(values.RequestId(1), np.zeros(1, np.int32), max_tokens=1, tenant="ann")
    received = wire.decode_to_engine(wire.encode(wire.Submit(submitted)))
    assert isinstance(received, wire.Submit) and received.request.tenant == "ann"


@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_a_name_too_long_is_refused(http: httpx.Client, endpoint: str) -> None:
    body = {"prompt": "x"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    answer = http.post(f"/v1/{endpoint}", json={"model": "toy", "user": "u" * 10_000, **body})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user"
