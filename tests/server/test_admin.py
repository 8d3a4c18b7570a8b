"""Models, health and metrics."""

from typing import Any

import httpx
from tests.over_http import samples
from tests.server.toy import CONTEXT


def test_the_model_is_listed_with_its_context(http: httpx.Client) -> None:
    listed: dict[str, Any] = http.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("toy", "model", CONTEXT)
    assert http.get("/v1/models/toy").json() == card


def test_health_says_ok(http: httpx.Client) -> None:
    answer = http.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_metrics_parse_and_count_requests_and_tokens(http: httpx.Client) -> None:
    http.post("/flush_cache")  # other tests may have sent the same prompt
    before = samples(http)
    for _ in range(2):
        http.post("/v1/completions", json={"prompt": "measured", "max_tokens": 5})
    http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 50, "stop": "b"})
    after = samples(http)

    def grown(name: str) -> float:
        return after[f"transom:{name}"] - before.get(f"transom:{name}", 0)

    assert grown("num_requests_total") == 3
    assert grown("prompt_tokens_total") == 9 + 9 + 3
    assert grown("cached_tokens_total") == 8
    assert grown("generation_tokens_total") >= 12
    assert grown("request_finish_total/length") == 2
    assert grown("request_finish_total/stop") == 1
    assert grown("time_to_first_token_seconds_count") == 3
    assert grown("e2e_request_latency_seconds_count") == 3


def test_metrics_show_the_pools_and_retractions(http: httpx.Client) -> None:
    assert 'model_name="toy"' in http.get("/metrics").text
    found = samples(http)
    assert found["transom:num_retracted_requests_total"] >= 0
    assert {"transom:num_running_reqs", "transom:num_queue_reqs", "transom:context_len"} <= set(found)
    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    found = samples(http)
    for pool in ("full", "swa"):
        assert found[f"transom:{pool}_capacity_tokens"] == 1024
        used = found[f"transom:{pool}_used_tokens"]
        assert found[f"transom:{pool}_token_usage"] == used / 1024
        assert (
            found[f"transom:{pool}_available_tokens"] + used + found[f"transom:{pool}_evictable_tokens"]
            == 1024
        )
