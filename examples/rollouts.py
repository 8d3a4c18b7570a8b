"""Rollouts for reinforcement learning, with log-probabilities that are those of a cold scoring.

A token's logits are a function, to the bit, of the tokens before it. So what was sampled token by token, with
a prefix in memory, has exactly the log-probabilities that one pass over the finished text computes; here
another engine does that, which keeps nothing. The policy that sampled is the one that is scored, and no
correction for a difference between the two is needed.

python examples/rollouts.py
"""

from transom import LLM

PROMPT = "Once upon a time there was a door with a window above it, and behind it"
SAMPLES = 4


def main() -> None:
    with LLM() as llm:
        prompt = llm.tokenizer.encode(PROMPT).tolist()
        samples = [
            llm.generate([prompt], max_tokens=16, temperature=1.0, seed=seed)[0] for seed in range(SAMPLES)
        ]
    with LLM(disable_radix_cache=True) as cold:
        scores = cold.score([[*prompt, *sample.token_ids] for sample in samples])
    for seed, (sample, score) in enumerate(zip(samples, scores, strict=True)):
        assert score.usage.cached_tokens == 0
        assert score.logprobs[-len(sample.token_ids) :] == sample.logprobs
        print(f"seed {seed}: {sum(sample.logprobs):8.3f}  {sample.text!r}")
    cached = sum(sample.usage.cached_tokens for sample in samples)
    print(f"{cached} prompt tokens were in memory while sampling, and none while scoring")
    print("every log-probability is that of a cold scoring, to the bit")


if __name__ == "__main__":
    main()
