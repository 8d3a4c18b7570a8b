from collections.abc import Iterator

import httpx
import pytest
from tests.server.toy import Running, running_server


@pytest.fixture(scope="session")
def toy() -> Iterator[Running]:
    """One server for all tests that do not end it."""
    with running_server() as running:
        yield running


@pytest.fixture
def http(toy: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=toy.url, timeout=30) as client:
        yield client
