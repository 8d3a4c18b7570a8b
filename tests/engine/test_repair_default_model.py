"""Repair on the default model: fifteen layers with a window of 512, between three full layers.

A repair reads 7,665 tokens back, so the prompt cannot be short, and the test is slow. test_repair_bits.py
proves the same of a tiny model, in the fast lane.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from tests.engine.schedules import RecordingRunner, build, play
from tests.english import passage

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.kv import match
from transom.kv.cache import StartPoint
from transom.models.load import load_model
from transom.ops.backend import choose_ops
from transom.values import Request, RequestId, Tokens
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.tokenizer import load_tokenizer
from transom.wire import Submit

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = 9072
FULL_UNTIL = 9056
"""The last page boundary with a token after it: pages of 16."""
WINDOWS, WINDOW = 15, 512
STEP = 512


@dataclass(slots=True)
class Stage:
    engine: Engine
    runner: RecordingRunner
    served: int = 0

    def serve(self, tokens: Tokens) -> bytes:
        """A digest of the logits after the last token."""
        self.served += 1
        play(self.engine, self.runner, [(0, Submit(Request(RequestId(self.served), tokens, 1)))])
        return self.runner.digests[RequestId(self.served), len(tokens)]

    def begin(self, tokens: Tokens) -> StartPoint:
        cache = self.engine.cache
        return cache.offer(cache.namespace(RequestId(999), ""), tokens).begin

    def evict_windows_by(self, other: Tokens) -> None:
        """Serves another prompt, which evicts windows but no full pages."""
        self.serve(other)
        full, windows = self.engine.cache.stats().components
        assert full.evicted == 0 < windows.evicted


def test_a_lost_window_is_rebuilt_to_the_bit_from_full_pages_and_not_from_a_window_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(
        chunked_prefill_size=STEP,
        max_total_tokens=PROMPT + 3 * 2048,
        swa_full_tokens_ratio=0.09,
        max_running_requests=2,
    )
    stage = Stage(*build(load_model(read_gguf(resolve_model(None))), choose_ops(2), config))
    text = load_tokenizer(None).encode(passage(3, 80_000), bos=False)
    prompt = np.append(np.int32(2), text[: PROMPT - 1]).astype(np.int32)
    first, second = text[10_000:12_000], text[12_000:14_000]
    cold = stage.serve(prompt)

    stage.evict_windows_by(first)
    begin = stage.begin(prompt)
    assert begin.full_until == FULL_UNTIL and begin.clip == begin.start > 0
    assert WINDOWS * (WINDOW - 1) <= FULL_UNTIL - begin.start < WINDOWS * (WINDOW - 1) + 16
    assert stage.serve(prompt) == cold
    assert stage.engine.scheduler.stats().repaired_tokens == FULL_UNTIL - begin.start
    assert stage.begin(prompt) == StartPoint(PROMPT - 1, PROMPT - 1, PROMPT - 1), "a hit again"
    assert stage.serve(prompt) == cold

    stage.evict_windows_by(second)
    right = match.repair_start
    monkeypatch.setattr(match, "repair_start", lambda *way: right(*way) + WINDOW - 1)
    assert stage.begin(prompt).start == begin.start + WINDOW - 1
    assert stage.serve(prompt) != cold
