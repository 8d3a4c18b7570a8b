"""A model calls a function and answers with its result, with OpenAI's client.

transom serve
pip install openai && python examples/tools.py
"""

import json
import sys
from typing import Any

from openai import OpenAI

ROOMS = {"kitchen": 21.5, "cellar": 12.0}
TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "description": "The temperature of a room, in degrees Celsius.",
        "parameters": {
            "type": "object",
            "properties": {"room": {"type": "string", "enum": list(ROOMS)}},
            "required": ["room"],
            "additionalProperties": False,
        },
    },
}


def main(url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=url, api_key="none")
    ask: dict[str, Any] = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 60}
    messages: list[Any] = [{"role": "user", "content": "How warm is the cellar?"}]
    # The default model is small. A grammar makes it call, and makes the call valid.
    answer = client.chat.completions.create(
        messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **ask
    )
    message = answer.choices[0].message
    messages.append(message)
    for call in message.tool_calls or []:
        room = json.loads(call.function.arguments)["room"]
        print(f"{call.function.name} of the {room}: {ROOMS[room]}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{ROOMS[room]} degrees"})
    last = client.chat.completions.create(messages=messages, **ask)
    print(last.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
