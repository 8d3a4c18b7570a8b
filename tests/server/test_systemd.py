"""The messages to systemd: ready, alive, stopping."""

import os
import signal
import socket
from pathlib import Path

import pytest
from tests.over_http import DEADLINE_SECONDS
from tests.server.toy import running_server

from transom.server.systemd import watchdog_seconds


def test_systemd_hears_that_the_server_is_ready_alive_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(DEADLINE_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        with running_server() as server:
            heard = [listener.recv(100) for _ in range(4)]
            assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            server.process.send_signal(signal.SIGTERM)
            while listener.recv(100) != b"STOPPING=1":
                pass
            assert server.process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "many"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
    ],
)
def test_signs_of_life_are_sent_twice_per_limit(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_seconds(environment) == seconds
