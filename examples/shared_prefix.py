"""Asks several questions about one long text. The engine computes the text once and reuses its KV cache.

python examples/shared_prefix.py
"""

from transom import LLM

TEXT = "The transom is the small window above a door. " * 60
QUESTIONS = ("What is a transom?", "Where is it?", "Is it large?")


def main() -> None:
    llm = LLM()
    for question in QUESTIONS:
        (answer,) = llm.generate([f"{TEXT}\n\nQuestion: {question}\nAnswer:"], max_tokens=12)
        usage = answer.usage
        print(f"{question}{answer.text!r}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached")


if __name__ == "__main__":
    main()
