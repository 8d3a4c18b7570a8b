"""Plays a workload against a server: a turn of a conversation for each client at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transom.bench.server import Answer, Failed, Server, complete
from transom.bench.workloads import Prompts, Workload

Told = Callable[[], None]
"""Told of each answer."""


@dataclass(frozen=True, slots=True)
class Played:
    """Of each conversation the answers, by turn; one that failed is the last."""

    conversations: tuple[tuple[Answer | Failed, ...], ...]
    seconds: float
    client_cpu_seconds: float
    """Of this process meanwhile."""
    shared_tokens: int
    """Of the text that all prompts begin with, asked alone when all was over; 0 if there is none."""


async def play(server: Server, workload: Workload, prompts: Prompts, told: Told) -> Played:
    """All conversations at once, as many turns at a time as there are clients, first come, first served."""
    clients = asyncio.Semaphore(workload.clients)
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_converse(server, workload.output_tokens, texts, clients, told))
            for texts in prompts.conversations
        ]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    conversations = tuple(task.result() for task in tasks)
    return Played(conversations, seconds, cpu, await _shared_tokens(server, prompts))


async def _converse(
    server: Server, tokens: int, texts: Sequence[str], clients: asyncio.Semaphore, told: Told
) -> tuple[Answer | Failed, ...]:
    prompt = ""
    answers: list[Answer | Failed] = []
    for text in texts:
        prompt += text
        async with clients:
            answer = await complete(server, prompt, tokens)
        answers.append(answer)
        told()
        if isinstance(answer, Failed):
            break
        prompt += answer.text
    return tuple(answers)


async def _shared_tokens(server: Server, prompts: Prompts) -> int:
    if not prompts.shared or len(prompts.conversations) == 1:
        return 0
    answer = await complete(server, prompts.shared, 1)
    return answer.prompt_tokens if isinstance(answer, Answer) else 0
