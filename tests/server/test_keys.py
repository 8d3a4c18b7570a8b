"""API keys over HTTP: authentication, names, rights, reload, and what one key cannot do to another."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, cached_tokens, complete, refused, samples, until
from tests.server.toy import Running, running_server

from transom.cli.main import main
from transom.config import ServerConfig
from transom.errors import ConfigError
from transom.server.callers import KEYS_MAX, Caller, KeyRing, read_keys
from transom.server.errors import Refused
from transom.values import Request, RequestId

FILE = """
alice = "key of alice"
[bob]
key = ["bob's old key", "bob's new key"]
[batch]
key = "key of batch"
priority = true
"""
ADMIN = "the admin's key"
COMMANDS = ("/flush_cache", "/pause_generation", "/continue_generation", "/update_weights_from_disk")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the keys of FILE and an admin."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(FILE)
    with running_server(flags=("--api-key-file", str(path), "--admin-api-key", ADMIN)) as server:
        yield server


@pytest.fixture
def client(keyed: Running) -> Iterator[Any]:
    """Clients by key."""
    clients: list[httpx.Client] = []

    def with_key(key: str, url: str = keyed.url) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        clients.append(httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_SECONDS))
        return clients[-1]

    yield with_key
    for one in clients:
        one.close()


@pytest.fixture
def unknown(keyed: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, timeout=DEADLINE_SECONDS) as http:
        yield http


# ---------------------------------------------------------------- authentication


@pytest.mark.parametrize("key", ["key of alice", "bob's old key", "bob's new key", "key of batch", ADMIN])
def test_each_key_is_taken_from_either_header(unknown: httpx.Client, key: str) -> None:
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"authorization": f"bearer  {key}"},
        {"x-api-key": key},
        {"authorization": "Basic proxy", "x-api-key": key},
    ):
        assert unknown.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer key of"},
        {"authorization": "Bearer key of alice s"},
        {"authorization": "Basic key of alice"},
        {"authorization": "Bearer wrong", "x-api-key": "key of alice"},
        {"x-api-key": "KEY OF ALICE"},
        {"x-api-key": b"\xff\xfe"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/metrics", "/flush_cache", "/nowhere", "/health/"])
def test_a_request_without_a_valid_key_is_refused_on_every_path(
    unknown: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    answer = unknown.post(path, headers=headers)
    assert refused(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
    assert "alice" not in answer.text


def test_probes_need_no_key(unknown: httpx.Client) -> None:
    assert unknown.get("/health").status_code == unknown.get("/ready").status_code == 200


def test_a_server_without_keys_serves_clients_that_insist_on_sending_one(toy: Running) -> None:
    with httpx.Client(base_url=toy.url, headers={"authorization": "Bearer none"}) as http:
        complete(http, "abc", max_tokens=1)


# ---------------------------------------------------------------- rights


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_needs_the_admin_key(client: Any, path: str) -> None:
    for key in ("key of alice", "key of batch"):
        error = refused(
            client(key).post(path, content=b"{", headers={"content-type": "application/json"}), 403
        )
        assert error["code"] == "commands_not_allowed" and "--admin-api-key" in error["message"]
    if path not in ("/pause_generation", "/update_weights_from_disk"):
        assert client(ADMIN).post(path).status_code == 200


@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request", "/pause_generation"])
def test_reading_changes_nothing(client: Any, path: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        assert client(ADMIN).request(method, path).status_code == 405


def test_the_server_is_not_ready_while_it_is_paused_and_stays_healthy(client: Any) -> None:
    admin = client(ADMIN)
    assert admin.post("/pause_generation").status_code == 200
    try:
        answer = admin.get("/ready")
        assert refused(answer, 503)["message"] == "generation is paused" and answer.headers["retry-after"]
        assert admin.get("/health").status_code == 200
    finally:
        admin.post("/continue_generation")
    assert admin.get("/ready").status_code == 200


def test_a_request_is_aborted_by_its_own_key_or_an_admin_only(client: Any) -> None:
    alice, bob, admin = client("key of alice"), client("bob's old key"), client(ADMIN)
    for owner in (client("key of alice"), admin):
        before = samples(admin)["transom:num_running_reqs"]
        with ThreadPoolExecutor(1) as threads:
            body = {"prompt": "STALL", "max_tokens": 9}
            answer = threads.submit(
                alice.post, "/v1/completions", json=body, headers={"x-request-id": "guessed"}
            )
            until(lambda before=before: samples(admin)["transom:num_running_reqs"] > before)
            assert bob.post("/abort_request", json={"rid": "guessed"}).json()["aborted"] == 0
            assert refused(bob.post("/abort_request", json={"abort_all": True}), 403)
            assert not answer.done()
            assert owner.post("/abort_request", json={"rid": "guessed"}).json()["aborted"] == 1
            assert answer.result().json()["choices"][0]["finish_cause"] == "abort"


def test_priority_above_0_is_for_keys_that_may(client: Any) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        error = refused(client("key of alice").post(path, json={**body, "priority": 1}), 403)
        assert (error["param"], error["code"]) == ("priority", "priority_not_allowed")
        assert client("key of alice").post(path, json={**body, "priority": -1}).status_code == 200
        for key in ("key of batch", ADMIN):
            assert client(key).post(path, json={**body, "priority": 1}).status_code == 200


# ---------------------------------------------------------------- isolation


def test_a_key_never_finds_prefixes_of_another(client: Any) -> None:
    """The attack: exact counts of cached tokens spell another key's prompt, one piece after the other."""
    secret = "the secret of alice is long enough for pages"
    complete(client("key of alice"), secret, max_tokens=1)
    assert cached_tokens(complete(client("key of alice"), secret, max_tokens=1)) > 16
    for salt in ({}, {"cache_salt": "alice"}, {"cache_salt": "alice/"}, {"cache_salt": "/"}):
        for key in ("bob's old key", ADMIN):
            assert cached_tokens(complete(client(key), secret, max_tokens=1, **salt)) == 0
            complete(client(ADMIN), "x", max_tokens=1)
            client(ADMIN).post("/flush_cache")
            complete(client("key of alice"), secret, max_tokens=1)


def test_two_keys_of_one_name_share_their_cache(client: Any) -> None:
    complete(client("bob's old key"), "a prompt that bob has sent before", max_tokens=1)
    assert cached_tokens(complete(client("bob's new key"), "a prompt that bob has sent before", max_tokens=1))


def test_keys_that_share_prefixes_are_told_whole_pages(client: Any) -> None:
    flags = ("--api-key", "a", "--api-key", "b", "--admin-api-key", ADMIN, "--share-prefixes")
    with running_server(flags=flags) as server:
        one, other = client("a", server.url), client("b", server.url)
        for letters in (9, 16, 20, 40):
            complete(one, "x" * letters, max_tokens=1)
            page = 16
            assert cached_tokens(complete(other, "x" * letters, max_tokens=1)) == letters // page * page
        assert refused(other.get("/metrics"), 403)


def test_no_salt_reaches_into_the_namespace_of_another_key() -> None:
    salts = ("", "a", "/", "a/", "/a", "b/a", "a/b", "b/")
    keys = ("", "a", "b")
    request = Request(RequestId(1), (), 1)  # type: ignore[arg-type]
    spaces = [
        Caller(key).claim(Request(RequestId(1), request.prompt, 1, salt=salt)).salt
        for key in keys
        for salt in salts
    ]
    assert len(set(spaces)) == len(spaces)


# ---------------------------------------------------------------- the key file


def test_the_file_is_read_again_at_a_hangup_and_a_bad_one_changes_nothing(
    tmp_path: Path, client: Any
) -> None:
    path, log = tmp_path / "keys.toml", tmp_path / "log"
    path.write_text('a = "first"')
    with running_server(flags=("--api-key-file", str(path)), log=log) as server:
        first, second = client("first", server.url), client("second", server.url)
        assert (first.get("/v1/models").status_code, second.get("/v1/models").status_code) == (200, 401)
        path.write_text('b = "second"\nthis is not TOML and has a sec-ret')
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "SIGHUP" in log.read_text())
        assert (first.get("/v1/models").status_code, second.get("/v1/models").status_code) == (200, 401)
        path.write_text('b = "second"')
        server.process.send_signal(signal.SIGHUP)
        until(lambda: second.get("/v1/models").status_code == 200)
        assert first.get("/v1/models").status_code == 401
    text = log.read_text()
    assert "is not valid TOML" in text and "stays in use" in text and "sec-ret" not in text


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has 0 keys"),
        ("a = 1", "a.key must be a string"),
        ("a = []", "a.key must be a string"),
        ("[a]", "a.key must be a string"),
        ('a = ""', "must be printable ASCII, not empty"),
        ('a = " hidden"', "must not begin or end with a space"),
        ('a = ["x", 1]', "a.key must be a string"),
        ('"a b" = "x"', "is not a name"),
        ('"a/b" = "x"', "is not a name"),
        (f'"{"n" * 65}" = "x"', "is not a name"),
        ('[a]\nkey = "x"\nadmin = 1', "a.admin must be true or false"),
        ('[a]\nkey = "x"\nroot = true', "it can have key, priority and admin"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a", "is not valid TOML"),
        ("".join(f'k{n} = "{n}"\n' for n in range(KEYS_MAX + 1)), f"has {KEYS_MAX + 1} keys"),
        ("#" * (1 << 20) + "\n", "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_keys(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value) and "hidden" not in str(error.value)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe", "x" * 300, "nul\0"):
        with pytest.raises(ConfigError, match="--api-key-file"):
            read_keys(tmp_path / name)


def ring(tmp_path: Path, text: str = "", *, is_local: bool = True, **settings: Any) -> KeyRing:
    if text:
        (tmp_path / "keys.toml").write_text(text)
        settings["api_key_file"] = str(tmp_path / "keys.toml")
    return KeyRing(ServerConfig(**settings), is_local=is_local)


@pytest.mark.parametrize(
    "text, settings, message",
    [
        ('a = "x"', {"api_keys": ("x",)}, "key-1 and a are the same key"),
        ('a = "x"\nb = "x"', {}, "a and b are the same key"),
        ('key-1 = "x"', {"api_keys": ("y",)}, "key-1 is the name of a key of the command line"),
        ('admin = "x"', {"admin_api_key": "y"}, "admin is the name"),
        ("", {"api_keys": ("x",), "admin_api_key": "x"}, "the same key"),
        ("", {"admin_api_key": "x", "allow_commands": True}, "give one of them"),
        ('[a]\nkey = "x"\nadmin = true', {"allow_commands": True}, "give one of them"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(
    tmp_path: Path, text: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ring(tmp_path, text, **settings)


@pytest.mark.parametrize(
    "is_local, settings, secret, may_command",
    [
        (True, {}, None, True),
        (False, {}, None, False),
        (False, {"allow_commands": True}, None, True),
        (True, {"api_keys": ("x",)}, "x", True),
        (False, {"api_keys": ("x",)}, "x", False),
        (True, {"api_keys": ("x", "y")}, "x", False),
        (False, {"api_keys": ("x", "y"), "allow_commands": True}, "x", True),
        (True, {"admin_api_key": "z"}, None, False),
        (True, {"admin_api_key": "z"}, "wrong", False),
        (False, {"admin_api_key": "z"}, "z", True),
        (True, {"api_keys": ("x",), "admin_api_key": "z"}, "x", False),
    ],
)
def test_commands_are_open_where_all_clients_are_one(
    tmp_path: Path, is_local: bool, settings: dict[str, Any], secret: str | None, may_command: bool
) -> None:
    caller = ring(tmp_path, is_local=is_local, **settings).caller(secret)
    assert caller.may_command is may_command
    if not may_command:
        with pytest.raises(Refused):
            caller.require_command()


@pytest.mark.parametrize("key", ["", " ", "a ", "ä", "a\nb"])
def test_a_key_that_no_header_could_carry_is_refused(key: str) -> None:
    for setting in ({"api_keys": (key,)}, {"admin_api_key": key}):
        with pytest.raises(ConfigError, match="must be printable ASCII, not empty"):
            ServerConfig(**setting)  # type: ignore[arg-type]


def test_a_key_left_empty_by_mistake_does_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `--api-key "$KEY"` where there is no KEY."""
    assert main(["serve", "--port", "0", "--api-key", ""]) == 1
    assert "TRANSOM_API_KEY" in capsys.readouterr().err
    assert main(["serve", "--port", "0", "--admin-api-key", ""]) == 1
    assert "TRANSOM_ADMIN_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("TRANSOM_API_KEY", "")
    assert main(["serve", "--port", "0"]) == 1
    assert "TRANSOM_API_KEY is empty" in capsys.readouterr().err


def test_keys_are_not_shown_with_the_configuration() -> None:
    shown = repr(ServerConfig(api_keys=("secret",), admin_api_key="another secret"))
    assert "secret" not in shown
