"""A few threads for the text work of large requests, so that the event loop goes on serving the others."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from transom.errors import BadRequest
from transom.limits import LIMITS, Limits
from transom.server.errors import Problem, Refused

T = TypeVar("T")

CarryOn = Callable[[], None]
"""Called between pieces of the work. Raises if it is not wanted any more, or has taken too long."""


class Abandoned(Exception):
    """The client of the work has left."""


class TextPool:
    """Owns the threads, and counts the work that is not finished. Mutable; belongs to one event loop."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._executor = ThreadPoolExecutor(limits.text_threads, "transom-text")
        self._unfinished = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[[CarryOn], T]) -> T:
        """The result of `work` from a thread. Refused with 429 if too much work waits.

        If the caller is cancelled, the work ends the next time that it looks, or does not begin.
        """
        most = self._limits.text_threads + self._limits.text_queue
        with self._lock:
            if self._unfinished >= most:
                raise _busy(self._unfinished)
            self._unfinished += 1
        abandoned = threading.Event()
        future = self._executor.submit(lambda: work(self._started(abandoned)))
        future.add_done_callback(lambda _: self._finished())
        try:
            return await asyncio.wrap_future(future)
        finally:
            abandoned.set()

    def _started(self, abandoned: threading.Event) -> CarryOn:
        """Called in the thread: the time of waiting does not count."""
        end = time.monotonic() + self._limits.text_seconds

        def carry_on() -> None:
            if abandoned.is_set():
                raise Abandoned
            if time.monotonic() > end:
                raise BadRequest(f"the prompt takes more than {self._limits.text_seconds:g} s to prepare")

        carry_on()
        return carry_on

    def _finished(self) -> None:
        with self._lock:
            self._unfinished -= 1


def _busy(unfinished: int) -> Refused:
    message = f"{unfinished} large prompts are being tokenized or wait for it; try again"
    headers = {"retry-after": str(LIMITS.retry_seconds)}
    return Refused(Problem(429, message, "rate_limit_error", None, "rate_limit_exceeded", headers))
