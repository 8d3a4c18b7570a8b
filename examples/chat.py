"""Streams a chat answer from a server, with OpenAI's own client.

transom models add smollm2-135m-instruct && transom serve smollm2-135m-instruct
pip install openai && python examples/chat.py
"""

import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=url, api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    stream = client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=32,
        temperature=0,
    )
    for event in stream:
        for choice in event.choices:
            print(choice.delta.content or "", end="", flush=True)
        if event.usage is not None:
            print(f"\n{event.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
