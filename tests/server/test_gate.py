"""Requests of foreign web pages over HTTP: Host, Origin, preflights, content types."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.over_http import refused, samples
from tests.server.toy import Running, running_server

from transom.config import ServerConfig
from transom.errors import ConfigError
from transom.server.gate import Hosts, Origins

PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """A server that one site and one name may use."""
    flags = ("--cors-origin", PAGE, "--allowed-host", "LLM.example", "--api-key", "secret")
    with running_server(flags=flags) as server:
        yield server


@pytest.fixture
def site(shared: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared.url, headers={"authorization": "Bearer secret"}, timeout=30) as http:
        yield http


# ---------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "0.0.0.0", "[::2]", "", "10.0.0.1"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/flush_cache", "/nowhere"])
def test_a_loopback_server_answers_under_names_of_loopback_only(
    http: httpx.Client, host: str, path: str
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert refused(http.request(method, path, headers={"host": host}), 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1:80", "127.8.8.8", "[::1]:8000", "a.localhost", "localhost.:5"],
)
def test_every_name_of_loopback_is_answered(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/models", headers={"host": host}).status_code == 200


def test_other_names_are_answered_by_a_flag(site: httpx.Client) -> None:
    for host in ("llm.example", "LLM.EXAMPLE:443", "localhost"):
        assert site.get("/v1/models", headers={"host": host}).status_code == 200
    assert refused(site.get("/v1/models", headers={"host": "llm.example.evil"}), 403)


def test_two_hosts_are_refused_and_none_is_not() -> None:
    hosts = Hosts(frozenset())
    assert hosts.refusal(["localhost", "localhost"]) and not hosts.refusal([])


# ---------------------------------------------------------------- origins


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "http://localhost", "http://127.0.0.1:1", "file://", "x" * 5000],
)
def test_a_foreign_page_is_refused_before_anything_happens(http: httpx.Client, origin: str) -> None:
    headers = {"origin": origin}
    before = samples(http)
    for body in ({}, {"json": {"prompt": "abc"}}, {"content": b'{"prompt": "abc"}'}):
        for path in ("/v1/completions", "/flush_cache", "/pause_generation", "/abort_request"):
            error = refused(http.post(path, headers=headers, **body), 403)  # type: ignore[arg-type]
            assert error["code"] == "origin_not_allowed" and len(error["message"]) < 300
    assert refused(http.get("/v1/models", headers=headers), 403)
    assert refused(http.options("/v1/completions", headers=headers), 403)
    assert samples(http) == before


def test_a_page_of_the_same_site_may_use_the_server(http: httpx.Client) -> None:
    headers = {"host": "localhost:8000", "origin": "http://localhost:8000"}
    assert http.get("/v1/models", headers=headers).status_code == 200
    assert refused(http.get("/v1/models", headers=headers | {"origin": "http://localhost:8001"}), 403)


def test_a_site_of_the_flag_gets_preflights_answers_and_refusals_that_it_can_read(site: httpx.Client) -> None:
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    site.headers.pop("authorization")
    preflight = site.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for headers, status in (
        ({"authorization": "Bearer secret"}, 200),
        ({}, 401),
        ({"authorization": "Bearer secret", "content-type": "text/plain"}, 415),
    ):
        answer = site.post(
            "/v1/completions",
            headers={"content-type": "application/json", "origin": PAGE, **headers},
            content=b'{"prompt": "a", "max_tokens": 1}',
        )
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert refused(site.options("/v1/completions", headers=asked | {"origin": "https://evil.example"}), 403)


def test_a_star_lets_all_pages() -> None:
    assert Origins(frozenset({"*"})).refusal(["https://any.example"], ["localhost"]) is None


@pytest.mark.parametrize(
    "settings",
    [{"cors_origins": (one,)} for one in ("chat.example", "https://chat.example/", "https://a b", "", "null")]
    + [{"allowed_hosts": (one,)} for one in ("", "http://a", "a:80", "a b", "*", "a.")],
)
def test_a_flag_that_matches_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--cors-origin|--allowed-host"):
        ServerConfig(**settings)


# ---------------------------------------------------------------- content types


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/jsonx",
        "application/json; charset=utf-16",
        "application/json, text/plain",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/flush_cache", "/abort_request", "/nowhere"])
def test_a_body_that_is_not_declared_as_json_is_refused(
    http: httpx.Client, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for content in (b'{"prompt": "abc"}', iter([b"{", b"}"])):
        error = refused(http.post(path, content=content, headers=headers), 415)
        assert error["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON ; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_json_is_taken_in_every_spelling(http: httpx.Client, kind: str) -> None:
    answer = http.post(
        "/v1/completions", content=b'{"prompt": "a", "max_tokens": 1}', headers={"content-type": kind}
    )
    assert answer.status_code == 200


def test_a_command_without_a_body_needs_no_type(http: httpx.Client) -> None:
    assert http.post("/flush_cache").status_code == 200
