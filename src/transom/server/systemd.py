"""Tells systemd that the server is ready, alive and stopping: the protocol of sd_notify(3).

Does nothing unless systemd, or a test, has set NOTIFY_SOCKET.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping

READY = "READY=1"
ALIVE = "WATCHDOG=1"
STOPPING = "STOPPING=1"


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Sends one message. A service manager that does not listen is no reason to stop serving."""
    address = environment.get("NOTIFY_SOCKET")
    if not address:
        return
    # A leading @ stands for the null byte of Linux's abstract names.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two signs of life, half of WatchdogSec; None if systemd expects no sign."""
    limit = environment.get("WATCHDOG_USEC", "")
    if not limit.isdecimal() or int(limit) == 0:
        return None
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit) / 2e6


async def stay_alive(seconds: float | None, send: Callable[[str], None] = notify) -> None:
    """Sends signs of life until cancelled. They stop if the event loop does."""
    while seconds is not None:
        send(ALIVE)
        await asyncio.sleep(seconds)
