"""Plays a workload against a server."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transom.bench.server import Answer, Failed, Server, complete
from transom.bench.workloads import Prompts, Workload

Progress = Callable[[], None]
"""Called after each answer."""


@dataclass(frozen=True, slots=True)
class Played:
    """The answers of each conversation, by turn. A conversation ends with its first failure."""

    conversations: tuple[tuple[Answer | Failed, ...], ...]
    seconds: float
    client_cpu_seconds: float
    """CPU time that this process used meanwhile."""
    shared_tokens: int
    """Length of the text that all prompts begin with, in the server's tokens; 0 if they share no text."""


async def play(server: Server, workload: Workload, prompts: Prompts, progress: Progress) -> Played:
    """Runs all conversations concurrently, with at most `workload.clients` requests at a time."""
    clients = asyncio.Semaphore(workload.clients)
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_converse(server, workload.output_tokens, texts, clients, progress))
            for texts in prompts.conversations
        ]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    conversations = tuple(task.result() for task in tasks)
    return Played(conversations, seconds, cpu, await _shared_tokens(server, prompts))


async def _converse(
    server: Server, tokens: int, texts: Sequence[str], clients: asyncio.Semaphore, progress: Progress
) -> tuple[Answer | Failed, ...]:
    prompt = ""
    answers: list[Answer | Failed] = []
    for text in texts:
        prompt += text
        async with clients:
            answer = await complete(server, prompt, tokens)
        answers.append(answer)
        progress()
        if isinstance(answer, Failed):
            break
        prompt += answer.text
    return tuple(answers)


async def _shared_tokens(server: Server, prompts: Prompts) -> int:
    # Measured after the workload: before it, the request would warm the cache.
    if not prompts.shared or len(prompts.conversations) == 1:
        return 0
    answer = await complete(server, prompts.shared, 1)
    return answer.prompt_tokens if isinstance(answer, Answer) else 0
