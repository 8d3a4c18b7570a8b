"""TLS, Unix sockets and path prefixes, each against a server of its own."""

import os
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.certificates import certificate
from tests.over_http import DEADLINE_SECONDS, complete, events, streamed_text, until
from tests.server.toy import Running, running_server

from transom.cli.main import main


def over_tls(server: Running, cert: Path) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=str(cert))
    return httpx.Client(base_url=server.url, verify=trusted, timeout=DEADLINE_SECONDS)


def over_socket(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path))
    return httpx.Client(base_url="http://localhost", transport=transport, timeout=DEADLINE_SECONDS)


def answers(http: httpx.Client) -> None:
    """Fails unless plain and streamed answers arrive whole."""
    plain = complete(http, "abc", max_tokens=300)["choices"][0]["text"]
    streamed = events(http, "/v1/completions", {"prompt": "abc", "max_tokens": 300})
    assert plain and streamed_text(streamed) == plain


# ---------------------------------------------------------------- TLS


def test_tls_is_served_and_a_reload_changes_the_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    first, log = cert.read_text(), tmp_path / "log"
    flags = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
    with running_server(flags=flags, log=log) as server, over_tls(server, cert) as http:
        assert server.url.startswith("https://")
        answers(http)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        assert ssl.get_server_certificate(address) == first

        def hang_up(sign: str) -> None:
            server.process.send_signal(signal.SIGHUP)
            until(lambda: sign in log.read_text())
            answers(http)  # over the connection of before

        key.write_text("no key")
        hang_up("not a certificate and its private key")
        assert ssl.get_server_certificate(address) == first
        certificate(tmp_path, "second")
        hang_up("read again")
        assert ssl.get_server_certificate(address) == cert.read_text() != first
        with over_tls(server, cert) as trusting_the_second:
            answers(trusting_the_second)


def test_a_client_without_tls_and_an_old_version_of_tls_are_turned_away(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "only")
    cert.write_text(cert.read_text() + key.read_text())  # the key may be in the same file
    with running_server(flags=("--ssl-certfile", str(cert))) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=DEADLINE_SECONDS) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(1000)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning):
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection(address) as raw, pytest.raises(ssl.SSLError):
            old.wrap_socket(raw)
        with over_tls(server, cert) as http:
            answers(http)


def test_a_handshake_that_does_not_end_is_closed(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "only")
    flags = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
    with running_server(flags=flags, head_seconds=0.1) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        for first in (b"", b"\x16\x03\x01\x02\x00"):
            with socket.create_connection(address, timeout=DEADLINE_SECONDS) as silent:
                silent.sendall(first)
                assert silent.recv(1000) == b""


# ---------------------------------------------------------------- Unix sockets


def test_a_unix_socket_is_open_to_owner_and_group_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(flags=("--uds", str(path))) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with over_socket(path) as http:
            answers(http)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE_SECONDS) == 0
        assert not path.exists()


def test_a_socket_that_a_killed_server_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(flags=("--uds", str(path))) as server:
        server.process.kill()
        server.process.wait()
    assert path.is_socket()
    with running_server(flags=("--uds", str(path))), over_socket(path) as http:
        answers(http)


def test_a_socket_that_another_server_has_taken_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(flags=("--uds", str(path))) as server:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(DEADLINE_SECONDS) == 0
            assert path.is_socket()


# ---------------------------------------------------------------- a prefix of paths


def test_paths_are_served_with_and_without_the_prefix() -> None:
    with (
        running_server(flags=("--root-path", "/models/toy")) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
    ):
        assert http.get("/models/toy/v1/models").json() == http.get("/v1/models").json()
        for path in ("/models/toyv1/models", "/models/toy", "/models/toy/models/toy/v1/models"):
            assert http.get(path).status_code == 404
        with httpx.Client(base_url=f"{server.url}/models/toy", timeout=DEADLINE_SECONDS) as behind:
            answers(behind)


def test_the_prefix_opens_no_path_that_needs_a_key() -> None:
    flags = ("--root-path", "/toy", "--api-key", "k")
    with (
        running_server(flags=flags) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
    ):
        assert http.get("/toy/health").status_code == 200
        for path in ("/toy/v1/models", "/toy/toy/health", "/v1/models", "/toy//health"):
            assert http.get(path).status_code == 401


# ---------------------------------------------------------------- what cannot start


@contextmanager
def a_folder(path: Path) -> Iterator[None]:
    path.mkdir()
    yield


@contextmanager
def a_file(path: Path) -> Iterator[None]:
    path.write_text("kept")
    yield


@contextmanager
def a_listener(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


@pytest.mark.parametrize("taken", [a_folder, a_file, a_listener])
def test_a_path_that_is_taken_is_refused_and_kept(
    taken: Callable[[Path], AbstractContextManager[None]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "socket"
    with taken(path):
        before = path.stat().st_ino
        assert refusal(capsys, "--uds", str(path)).startswith(f"transom: cannot listen on --uds {path}: ")
        assert path.stat().st_ino == before


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that `transom serve WORDS` ends with, before it looks for the model."""
    assert main(["serve", "no such model", *words]) == 1
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "no such model" not in text
    return text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--uds", "x" * 200), "too long"),
        (("--uds", ""), "--uds must not be empty"),
        (("--uds", "/no/such/folder/socket"), "No such file"),
        (("--uds", "a\0b"), "null byte"),
        (("--uds", "s", "--port", "1"), "--uds takes the place of --host and --port"),
        (("--host", ""), "--host must not be empty"),
        (("--host", "x" * 70), "cannot listen on"),
        (("--ssl-keyfile", "k.pem"), "give --ssl-certfile too"),
        (("--ssl-certfile", "/no/such.pem"), "/no/such.pem: cannot be read: No such file"),
        (("--ssl-certfile", __file__, "--ssl-keyfile", "/no/key"), "/no/key: cannot be read"),
        (("--ssl-certfile", "/"), "/: cannot be read"),
        (("--ssl-certfile", __file__), "not a certificate and its private key"),
        (("--root-path", "llm"), "--root-path is 'llm'; it must begin with /"),
        (("--root-path", "/llm/"), "--root-path"),
        (("--root-path", "/a/../b"), "--root-path"),
        (("--root-path", "/a?b"), "--root-path"),
        (("--root-path", "/ä"), "--root-path"),
        (("--trusted-proxy", "nginx"), "--trusted-proxy is 'nginx'; it must be an address"),
        (("--trusted-proxy", "10.0.0.1/8"), "--trusted-proxy"),
        (("--trusted-proxy", "*"), "--trusted-proxy"),
    ],
)
def test_a_transport_that_cannot_work_is_one_line(
    words: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in refusal(capsys, *words)


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, key = certificate(tmp_path, "locked")
    locked = tmp_path / "locked.pem"
    words = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:x1234", "-out", str(locked)]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ})
    text = refusal(capsys, "--ssl-certfile", str(cert), "--ssl-keyfile", str(locked))
    assert "without a passphrase" in text
