"""The nginx configuration of docs/proxies.md, run by nginx in front of a server."""

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.certificates import certificate
from tests.docs.pages import DOCS, blocks
from tests.over_http import DEADLINE_SECONDS, complete, events, samples, streamed_text, until
from tests.server.toy import running_server

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

AROUND = """
daemon off;
user root;
error_log stderr;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {block}
}}
"""


@contextmanager
def nginx(folder: Path, upstream: str, *, location: str = "/v1/", target: str = "") -> Iterator[httpx.Client]:
    """A client of nginx with the page's configuration, with addresses and files of this machine."""
    (block,) = [block.text for block in blocks(DOCS / "proxies.md") if block.language == "nginx"]
    cert, key = certificate(folder, "llm.example.com")
    port = free_port()
    for given, ours in {
        "server 127.0.0.1:8000;": f"server {upstream};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/llm.pem": str(cert),
        "/etc/ssl/llm.key": str(key),
        "location /v1/ {": f"location {location} {{",
        "proxy_pass http://transom;": f"proxy_pass http://transom{target};",
    }.items():
        assert given in block
        block = block.replace(given, ours)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder, block=block))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    trusted = ssl.create_default_context(cafile=str(cert))
    # From an address of its own, so that the log can tell the client from the proxy.
    transport = httpx.HTTPTransport(verify=trusted, local_address="127.0.0.2")
    try:
        until(lambda: is_open(port))
        url = f"https://127.0.0.1:{port}"
        with httpx.Client(base_url=url, transport=transport, timeout=DEADLINE_SECONDS) as http:
            yield http
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_answers_streams_and_departures_pass_through(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--trusted-proxy", "127.0.0.1")
    with (
        running_server(log=log, log_format="json", flags=flags) as server,
        httpx.Client(base_url=server.url) as direct,
        nginx(tmp_path, server.url.removeprefix("http://")) as http,
    ):
        plain = complete(http, "abc", max_tokens=300)["choices"][0]["text"]
        assert plain == complete(direct, "abc", max_tokens=300)["choices"][0]["text"]
        assert streamed_text(events(http, "/v1/completions", {"prompt": "abc", "max_tokens": 300})) == plain

        # An event arrives while the answer is still being computed; the client then leaves.
        stalled = {"prompt": "STALL", "stream": True}
        with http.stream("POST", "/v1/completions", json=stalled) as answer:
            lines = answer.iter_lines()  # kept: httpx closes the connection when it is collected
            assert "text" in next(lines)
            until(lambda: samples(direct)["transom:num_running_reqs"] == 1)
        until(lambda: samples(direct)["transom:num_running_reqs"] == 0)

        large = http.post("/v1/completions", json={"prompt": "a" * (1 << 20)})
        assert large.status_code == 413
        assert "nginx" in large.text
        for path in ("/metrics", "/flush_cache", "/v1/../metrics"):
            answer = http.get(path)
            assert answer.status_code == 404
            assert "nginx" in answer.text  # not the server's own answer

        forged = {"x-forwarded-for": "6.6.6.6"}
        assert http.post("/v1/completions", json={"prompt": 1}, headers=forged).status_code == 400
        until(lambda: '"finish": "refused"' in log.read_text())
    logged = [json.loads(line) for line in log.read_text().splitlines() if '"transom.request"' in line]
    assert [line["client"] for line in logged].count("127.0.0.1") == 1  # the direct request
    assert {line["client"] for line in logged} == {"127.0.0.1", "127.0.0.2"}


def test_a_unix_socket_is_an_upstream(tmp_path: Path) -> None:
    path, log = tmp_path / "socket", tmp_path / "log"
    flags = ("--uds", str(path), "--trusted-proxy", "unix")
    with running_server(log=log, log_format="json", flags=flags):
        with nginx(tmp_path, f"unix:{path}") as http:
            complete(http, "abc", max_tokens=3)
        until(lambda: '"transom.request"' in log.read_text())
    assert '"client": "127.0.0.2"' in log.read_text()


@pytest.mark.parametrize("target", ["", "/"])
def test_a_prefix_works_whether_nginx_takes_it_off_or_not(target: str, tmp_path: Path) -> None:
    with (
        running_server(flags=("--root-path", "/llm")) as server,
        nginx(tmp_path, server.url.removeprefix("http://"), location="/llm/", target=target) as http,
    ):
        assert http.get("/llm/v1/models").json()["data"][0]["id"] == "toy"
        answer = http.post("/llm/v1/completions", json={"prompt": "abc", "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3
