"""Everything at once over HTTP, pools too small, invariants checked after every step; texts stay cold.

How often pools too small lead to a retraction hangs on how fast requests come, and so on the machine. So some
are asked for.
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
def test_texts_stay_cold_while_clients_come_leave_flush_and_retract(tmp_path: Path, seed: int) -> None:
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
