import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from tests.serving import Serving, serving
from tests.tiny import write_tiny_gguf

from transom.weights.builtin import resolve_model


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """Restores the handler of SIGINT: a background job ignores the signal, and its children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[Serving]:
    """A server with the default model, shared by all tests that do not stop it."""
    resolve_model(None)
    with serving() as started:
        yield started


@pytest.fixture
def http(server: Serving) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def openai(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
