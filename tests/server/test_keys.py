"""API keys: a request without a valid key gets 401 on every path but /health."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.over_http import refused

from transom.cli.main import main
from transom.config import ServerConfig
from transom.errors import ConfigError
from transom.server.middleware import ApiKeys, RequestIds
from transom.server.responses import json_response

KEYS = ("first key", "zweiter-Schlüssel".encode().hex())


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await json_response({"path": scope["path"]})(scope, receive, send)


def ask(path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(RequestIds(ApiKeys(app, KEYS)))
        async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
            return await http.post(path, headers=headers)

    return asyncio.run(post())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_request_with_a_key_is_served(scheme: str, key: str) -> None:
    assert ask("/v1/models", {"authorization": f"{scheme} {key}"}).json() == {"path": "/v1/models"}


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer first", "Bearer first keys", "Basic first key", "first key"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/metrics", "/flush_cache", "/nowhere", "/health/"])
def test_a_request_without_a_valid_key_is_refused_on_every_path(path: str, authorization: str | None) -> None:
    answer = ask(path, None if authorization is None else {"authorization": authorization})
    error = refused(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
    assert not any(key in answer.text for key in KEYS)


def test_health_needs_no_key() -> None:
    assert ask("/health").status_code == 200


@pytest.mark.parametrize("key", ["", " ", "a ", "ä", "a\nb"])
def test_a_key_that_no_header_could_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="must be printable ASCII, not empty"):
        ServerConfig(api_keys=(key,))


def test_a_key_left_empty_by_mistake_does_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `--api-key "$KEY"` where there is no KEY."""
    assert main(["serve", "--port", "0", "--api-key", ""]) == 1
    assert "TRANSOM_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("TRANSOM_API_KEY", "")
    assert main(["serve", "--port", "0"]) == 1
    assert "TRANSOM_API_KEY is empty" in capsys.readouterr().err


def test_keys_are_not_shown_with_the_configuration() -> None:
    assert "secret" not in repr(ServerConfig(api_keys=("secret",)))
