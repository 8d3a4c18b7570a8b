"""Rollouts for reinforcement learning: sampling and a separate scoring pass give equal log-probabilities.

A token's logits depend only on the tokens before it, to the bit. Tokens that are sampled one by one, with a
cached prefix, therefore have exactly the log-probabilities that one pass over the text computes. Here a
second engine, without a prefix cache, computes them for comparison. The sampling policy equals the scored
policy, so a trainer needs no correction for a difference.

python examples/rollouts.py
"""

from transom import LLM

PROMPT = "Once upon a time there was a door with a window above it, and behind it"
SAMPLES = 4


def main() -> None:
    with LLM() as llm:
        prompt = llm.tokenizer.encode(PROMPT).tolist()
        # One call: the samples run in one batch, and sample i has the seed 0 + i.
        samples = llm.generate([prompt] * SAMPLES, max_tokens=16, temperature=1.0, seed=0)
    with LLM(disable_radix_cache=True) as cold:
        scores = cold.score([[*prompt, *sample.token_ids] for sample in samples])
    for seed, (sample, score) in enumerate(zip(samples, scores, strict=True)):
        assert score.usage.cached_tokens == 0
        assert score.logprobs[-len(sample.token_ids) :] == sample.logprobs
        print(f"seed {seed}: {sum(sample.logprobs):8.3f}  {sample.text!r}")
    cached = sum(sample.usage.cached_tokens for sample in samples)
    print(f"{cached} prompt tokens were cached while sampling, 0 while scoring")
    print("all log-probabilities are equal to those of a cold scoring, to the bit")


if __name__ == "__main__":
    main()
