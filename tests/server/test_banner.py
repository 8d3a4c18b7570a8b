"""The start screen."""

import json
import shlex

import httpx
import msgspec
import pytest
from tests.engine.fake_engine import ready
from tests.server.toy import Running

from transom.server import banner
from transom.server.listening import Address


def test_the_start_screen_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    banner.show(ready(), "toy", Address("http://127.0.0.1:8000"))
    shown = capsys.readouterr().out
    for part in (
        "toy (echo), 3 full layers, 15 layers of window 512",
        "11.8 MiB",
        "KV memory   6.0 MiB",
        "1,024 tokens, 1.0 MiB",
        "1,024 tokens, 5.0 MiB",
        "512 tokens served",
        "threads",
        "http://127.0.0.1:8000",
        "curl ",
    ):
        assert part in shown
    assert shown.count("\n") <= 24
    assert "\x1b" not in shown


def test_a_shared_budget_is_shown_once_with_the_maximum_of_each_pool() -> None:
    parts = tuple(msgspec.structs.replace(part, shared=True, bytes=6 << 20) for part in ready().components)
    lines = banner.banner_lines(
        msgspec.structs.replace(ready(), components=parts), "toy", Address("http://127.0.0.1:8000")
    )
    texts = {line.label: line.text for line in lines}
    assert texts["KV memory"] == "6.0 MiB, shared by all layers"
    assert texts["KV full"] == "up to 1,024 tokens"


def test_the_curl_line_works(toy: Running, http: httpx.Client) -> None:
    words = shlex.split(banner.curl_line("toy", Address(toy.url)))
    url, body = words[1], json.loads(words[words.index("-d") + 1])
    assert http.post(url, json=body).status_code == 200
