"""One storm over HTTP with pools too small: invariants hold after every step, texts equal a cold run.

Whether small pools lead to a retraction depends on how fast requests arrive, and so on the machine. The storm
therefore requests some retractions itself.
"""

import random
from pathlib import Path

import pytest
from tests.e2e.storm import FLAGS, WINDOW, requests, require_cold, storm
from tests.over_http import is_settled, samples, until
from tests.serving import serving
from tests.tiny import TinyShape, write_tiny_gguf

REQUESTS, COMPARED = 160, 40


@pytest.mark.parametrize("seed", [5])
def test_texts_equal_a_cold_run_while_clients_disconnect_flush_and_retract(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bodies = requests(rng, REQUESTS)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(window=WINDOW))
    with serving(*FLAGS, model=model) as server, server.client() as http:
        answers = storm(http, rng, bodies)
        until(lambda: is_settled(http))
        assert samples(http)["transom:num_retracted_requests_total"] > 0
        assert samples(http)["transom:cached_tokens_total"] > 0
        for number in rng.sample([*answers], COMPARED):
            require_cold(http, bodies[number], answers[number])
