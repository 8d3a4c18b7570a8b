"""Our side of a story: the real cache and scheduler, with a runner that checks every read."""

from collections.abc import Sequence

import numpy as np

from transom.kv.cache import CacheLayout, Holding
from transom.kv.check import inside
from transom.kv.component_specs import Full, Window
from transom.sched.config import SchedulerConfig
from transom.sched.loop import Iteration
from transom.values import Ended, Request, RequestId, TokenSampled
from transom.wire import Submit
from transom_lab.worlds.contents import Repair, chain_of, prefix_digests
from transom_lab.worlds.expected import ExpectedOutput
from transom_lab.worlds.scheduler_world import SchedulerWorld

PAGE: int = 4
"""Tokens per page in every story."""
FULL, WINDOW = 0, 1
CONTEXT = 64
LETTERS = 1000
"""A token id is the number of its text's letter x LETTERS + its position, so that pages can be labelled."""


def text(letter: str, start: int, end: int) -> list[int]:
    """Tokens `[start, end)` of the text that a letter names."""
    return [(ord(letter) - 64) * LETTERS + position for position in range(start, end)]


def label(token: int) -> str:
    """The label of the page that begins with `token`: its text, and the index of the page in it."""
    letter, position = divmod(token, LETTERS)
    index = position // PAGE
    assert index < 10, token
    return f"{chr(64 + letter)}{index}"


def small(*, full: int, window: int, width: int, rows: int = 4, layers: Sequence[int] = ()) -> CacheLayout:
    """A layout with pools of `full` and `window` pages. A query of a window layer reads `width` tokens."""
    return CacheLayout(
        components=(Full(), Window(width)),
        pages=(full, window),
        page_size=PAGE,
        rows=rows,
        context=CONTEXT,
        layers=tuple(layers),
    )


class Stage:
    """Owns a scheduler world and its requests, which are named by letters. Mutable.

    The output of request B continues text B, so the label of a page also names the request that sampled it.
    """

    def __init__(self, layout: CacheLayout, *, chunk: int) -> None:
        config = SchedulerConfig(
            max_running=layout.rows,
            chunk_tokens=chunk,
            context=layout.context,
            first_outputs_expected=1,
            prefix_gain_min=PAGE,
        )
        self.outputs: dict[RequestId, ExpectedOutput] = {}
        self.world = SchedulerWorld(layout, config, self.outputs)
        self.cache, self.scheduler, self.runner = self.world.cache, self.world.scheduler, self.world.runner
        self.requests: dict[str, Request] = {}
        self.ended: dict[str, Ended] = {}

    # ------------------------------------------------------------ events

    def ask(self, letter: str, prompt: Sequence[int], outputs: int = 1) -> None:
        """Sends a request under a letter that is new, or free because its last request has ended."""
        assert letter not in self.requests or letter in self.ended, letter
        number, length = RequestId(len(self.outputs) + 1), len(prompt)
        request = Request(number, np.array(prompt, np.int32), outputs)
        self.requests[letter] = request
        self.ended.pop(letter, None)
        output = tuple(text(letter, length, length + outputs))
        self.outputs[number] = ExpectedOutput(request, length + outputs, output)
        self.world.send(Submit(request))

    def iterate(self) -> Iteration:
        """Runs one iteration."""
        done = self.world.iterate()
        assert done.failure is None and not done.rejected, done
        for event in done.events:
            if isinstance(event, TokenSampled):
                self.outputs[event.request].receive(event)
            elif isinstance(event, Ended):
                self.ended[self._letter(event.request)] = event
        return done

    def serve(self, letter: str, prompt: Sequence[int], outputs: int = 1) -> Ended:
        """Serves a request from beginning to end, beside any that are running."""
        self.ask(letter, prompt, outputs)
        return self.finish(letter)

    def finish(self, letter: str) -> Ended:
        while letter not in self.ended:
            self.iterate()
        return self.ended[letter]

    # ------------------------------------------------------------ queries

    def holding(self, letter: str) -> Holding | None:
        """The holding of the request while it runs."""
        number = self.requests[letter].id
        return next((h for h in inside(self.cache).holdings if h is not None and h.request == number), None)

    def known(self, letter: str) -> list[int]:
        """The prompt, and the output so far."""
        output = self.outputs[self.requests[letter].id]
        tokens: list[int] = output.tokens[: output.known].tolist()
        return tokens

    def spans(self, letter: str) -> list[tuple[int, int]]:
        """Every span that was computed for the request, in order."""
        number = self.requests[letter].id
        return [(s.start, s.end) for work in self.runner.steps for s in work.spans if s.request == number]

    def page(self, component: int, page: int) -> list[int]:
        """The tokens of the keys that the last layer of a component holds in a page.

        A token is negative if its key is inexact. 0 is an empty slot.
        """
        memory = self.world.memory
        layer = max(i for i, kind in enumerate(memory.contents.layers) if kind == component)
        token_of = {0: 0}
        for output in self.outputs.values():
            tokens = output.tokens.tolist()
            embedded = prefix_digests(self.cache.namespace(RequestId(0), ""), output.tokens)
            cold = chain_of(memory.model, embedded)
            spans = [span for work in self.runner.steps for span in work.spans]
            repairs = {(s.clip, s.store_from) for s in spans if s.clip and s.request == output.request.id}
            for start, full_until in sorted(repairs):
                keys = chain_of(memory.model, embedded, (Repair(start, full_until), cold)).keys[layer]
                token_of.update((key, -token) for key, token in zip(keys.tolist(), tokens, strict=True))
            token_of.update(zip(cold.keys[layer].tolist(), tokens, strict=True))
        contents = memory.contents
        return [token_of[digest] for digest in contents.pages(component, np.array([page]))[0].tolist()]

    def _letter(self, number: RequestId) -> str:
        return next(letter for letter, request in self.requests.items() if request.id == number)
