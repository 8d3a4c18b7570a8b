"""A long prefix of many prompts is computed once, even when the first eight requests arrive together."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.english import passage, random_words
from tests.over_http import Json, cached_tokens, complete, samples

from transom.weights.tokenizer import load_tokenizer

pytestmark = pytest.mark.model

REQUESTS, AT_ONCE = 32, 8
PREFIX_TOKENS = 1500
SUFFIX_WORDS = 26
"""About 48 tokens."""
CACHED_TOKENS_LEAST = 1450


@pytest.mark.parametrize("seed", [0])
def test_a_common_prefix_is_computed_once(http: httpx.Client, seed: int) -> None:
    http.post("/flush_cache")
    before = samples(http)
    prefix = cut(passage(seed, 20_000), PREFIX_TOKENS)
    prompts = [f"{prefix}\n\n{random_words(1000 * seed + n, SUFFIX_WORDS)}" for n in range(REQUESTS)]

    def ask(prompt: str) -> Json:
        return complete(http, prompt, max_tokens=16, temperature=0, ignore_eos=True)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(ask, prompts))
    cached = [cached_tokens(answer) for answer in answers]
    assert sum(count >= CACHED_TOKENS_LEAST for count in cached) >= REQUESTS - 1, cached
    lengths = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert all(PREFIX_TOKENS + 30 <= length <= PREFIX_TOKENS + 70 for length in lengths), lengths
    after = samples(http)
    computed = after["transom:computed_tokens_total"] - before["transom:computed_tokens_total"]
    assert computed <= sum(lengths) - sum(cached) + 16 * REQUESTS, "the prefix was computed twice"


def cut(text: str, tokens: int) -> str:
    """The longest prefix of `text` with at most `tokens` tokens, not counting the begin token."""
    tokenizer = load_tokenizer(None)
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.encode(text[:middle], bos=False)) <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low]
