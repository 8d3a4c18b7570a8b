"""The tenant of a request: the field `user` and the name of the API key, as far as the scheduler."""

import httpx
import numpy as np
import pytest

from transom import values, wire
from transom.server.callers import Caller


def submitted(caller: Caller, user: str = "") -> values.Request:
    """The request of a user of this caller, as the engine receives it."""
    request = values.Request(values.RequestId(1), np.zeros(1, np.int32), max_tokens=1, tenant=user)
    received = wire.decode_to_engine(wire.encode(wire.Submit(caller.claim(request))))
    assert isinstance(received, wire.Submit)
    return received.request


def test_the_key_and_the_user_reach_the_scheduler() -> None:
    request = submitted(Caller("alice"), "ann")
    assert (request.key, request.tenant) == ("alice", "alice/ann")
    assert submitted(Caller("alice")).tenant == "alice/"


def test_a_user_cannot_take_the_name_of_a_key() -> None:
    request = submitted(Caller(), "alice")
    assert request.tenant not in ("alice", submitted(Caller("alice")).tenant)
    assert submitted(Caller(), "alice/").tenant != submitted(Caller("alice")).tenant
    assert submitted(Caller()).tenant == ""


@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_a_name_too_long_is_refused(http: httpx.Client, endpoint: str) -> None:
    body = {"prompt": "x"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    answer = http.post(f"/v1/{endpoint}", json={"model": "toy", "user": "u" * 10_000, **body})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user"
