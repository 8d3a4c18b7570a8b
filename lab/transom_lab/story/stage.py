"""Where our side of a story is played: the real memory core and scheduler, and a runner without a model."""

from collections.abc import Sequence

import numpy as np

from transom.kv.cache import CacheLayout, Holding, HybridCache
from transom.kv.check import check, inside
from transom.kv.component_specs import Full, Window
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration, iterate
from transom.sched.scheduler import Scheduler
from transom.values import Ended, Request, RequestId
from transom.wire import Command, Submit
from transom_lab.story.runner import TokenRunner

PAGE: int = 4
"""Tokens per page in every story."""
FULL, WINDOW = 0, 1
CONTEXT = 64
LETTERS = 1000
"""Token ids say which text they are of, and where: the letter's number x LETTERS + position."""


def text(letter: str, start: int, end: int) -> list[int]:
    """Tokens `[start, end)` of a text that goes by a letter."""
    return [(ord(letter) - 64) * LETTERS + position for position in range(start, end)]


def label(token: int) -> str:
    """How the page that begins with `token` is called: its text, and which page of it."""
    letter, position = divmod(token, LETTERS)
    index = position // PAGE
    assert index < 10, token
    return f"{chr(64 + letter)}{index}"


def small(*, full: int, window: int, width: int, rows: int = 4, layers: Sequence[int] = ()) -> CacheLayout:
    """Pools of so many pages; a query of the window layers reads `width` tokens."""
    return CacheLayout(
        components=(Full(), Window(width)),
        pages=(full, window),
        page_size=PAGE,
        rows=rows,
        context=CONTEXT,
        layers=tuple(layers),
    )


class Stage:
    """Owns a real cache, a real scheduler, and what came out of them. Mutable; checked after each turn."""

    def __init__(self, layout: CacheLayout, *, chunk: int) -> None:
        self.cache = HybridCache(layout)
        limits = SchedulerConfig(
            max_running=layout.rows,
            chunk_tokens=chunk,
            context=layout.context,
            first_outputs_expected=1,
            prefix_gain_min=PAGE,
        )
        self.scheduler = Scheduler(self.cache, limits)
        self.runner = TokenRunner(self.cache, self._token)
        self.requests: dict[str, Request] = {}
        self.ended: dict[str, Ended] = {}
        self._inbox: list[Command] = []

    # ------------------------------------------------------------ what happens

    def ask(self, letter: str, prompt: Sequence[int], outputs: int = 1) -> None:
        """A request by that letter, which has not been asked before or has ended. It begins next turn."""
        assert letter not in self.requests or letter in self.ended, letter
        number = RequestId(len(self.runner.known) + 1)
        request = Request(number, np.array(prompt, np.int32), outputs)
        self.requests[letter] = request
        self.ended.pop(letter, None)
        self.runner.known[number] = list(prompt)
        self._inbox.append(Submit(request))

    def iterate(self) -> Iteration:
        """One step."""
        commands, self._inbox = self._inbox, []
        taken = iterate(self.scheduler, commands, self.runner)
        assert taken.failure is None and not taken.rejected, taken
        for event in taken.events:
            if isinstance(event, Ended):
                self.ended[self._letter(event.request)] = event
        check(self.cache)
        return taken

    def serve(self, letter: str, prompt: Sequence[int], outputs: int = 1) -> Ended:
        """A request from beginning to end; whoever runs goes on beside it."""
        self.ask(letter, prompt, outputs)
        return self.finish(letter)

    def finish(self, letter: str) -> Ended:
        while letter not in self.ended:
            self.iterate()
        return self.ended[letter]

    # ------------------------------------------------------------ what is

    def holding(self, letter: str) -> Holding | None:
        """What the request holds while it runs."""
        number = self.requests[letter].id
        return next((h for h in inside(self.cache).holdings if h is not None and h.request == number), None)

    def known(self, letter: str) -> list[int]:
        """Tokens of the request so far, prompt and outputs."""
        return self.runner.known[self.requests[letter].id]

    def spans(self, letter: str) -> list[tuple[int, int]]:
        """All that was computed for the request, in order."""
        number = self.requests[letter].id
        return [(s.start, s.end) for work in self.runner.steps for s in work.spans if s.request == number]

    def _letter(self, number: RequestId) -> str:
        return next(letter for letter, request in self.requests.items() if request.id == number)

    def _token(self, number: RequestId, position: int) -> int:
        return text(self._letter(number), position, position + 1)[0]
