"""The tenant of a request: the field `user` or a digest of the API key, as far as the scheduler."""

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from transom import values, wire
from transom.server.app import _set_default_tenant
from transom.server.protocol import CompletionRequest


def tenant(user: str | None, key: str | None) -> str | None:
    headers = [] if key is None else [(b"authorization", key.encode())]
    body = CompletionRequest(prompt="x", user=user)
    _set_default_tenant(body, Request({"type": "http", "headers": headers}))
    return body.user


def test_the_field_user_takes_precedence_over_the_key() -> None:
    assert tenant("ann", "Bearer secret") == "ann"


def test_keys_are_distinguished_by_a_digest_and_not_stored() -> None:
    one, two = tenant(None, "Bearer secret"), tenant(None, "Bearer other")
    assert one != two and one is not None and "secret" not in one
    assert one == tenant("", "Bearer secret")


def test_a_request_without_user_or_key_has_no_tenant() -> None:
    assert tenant(None, None) is None


def test_the_tenant_reaches_the_scheduler() -> None:
    submitted = values.Request(values.RequestId(1), np.zeros(1, np.int32), max_tokens=1, tenant="ann")
    received = wire.decode_to_engine(wire.encode(wire.Submit(submitted)))
    assert isinstance(received, wire.Submit) and received.request.tenant == "ann"


@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
def test_a_name_too_long_is_refused(http: httpx.Client, endpoint: str) -> None:
    body = {"prompt": "x"} if endpoint == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    answer = http.post(f"/v1/{endpoint}", json={"model": "toy", "user": "u" * 10_000, **body})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user"
