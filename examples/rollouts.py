"""Rollouts for reinforcement learning, with log-probabilities that are those of a cold run.

A token's logits are a function, to the bit, of the tokens before it. So what was sampled in a batch, with a
prefix in memory, has exactly the log-probabilities that a run alone computes: no correction is needed.

python examples/rollouts.py
"""

from transom import LLM

PROMPT = "Once upon a time there was a door with a window above it, and behind it"
SAMPLES = 4


def main() -> None:
    llm = LLM()
    samples = [
        llm.generate([PROMPT], max_tokens=16, temperature=1.0, seed=seed)[0] for seed in range(SAMPLES)
    ]
    cold = LLM(disable_radix_cache=True)
    for seed, sample in enumerate(samples):
        (alone,) = cold.generate([PROMPT], max_tokens=16, temperature=1.0, seed=seed)
        assert alone.token_ids == sample.token_ids and alone.logprobs == sample.logprobs
        print(f"seed {seed}: {sum(sample.logprobs):8.3f}  {sample.text!r}")
    print("every log-probability is that of a cold run, to the bit")


if __name__ == "__main__":
    main()
