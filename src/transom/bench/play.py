"""Plays a workload against a server. Each client runs one turn of one conversation at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transom.bench.server import Answer, Failed, Server, complete
from transom.bench.workloads import Prompts, Workload

OnAnswer = Callable[[], None]
"""Called after each answer."""


@dataclass(frozen=True, slots=True)
class Played:
    """The answers by conversation and turn; a conversation ends with its first failure.

    client_cpu_seconds
                  CPU time of this process during the run
    shared_tokens tokens of the common prefix of all prompts, counted by the server; 0 without a prefix
    """

    conversations: tuple[tuple[Answer | Failed, ...], ...]
    seconds: float
    client_cpu_seconds: float
    shared_tokens: int


async def play(server: Server, workload: Workload, prompts: Prompts, on_answer: OnAnswer) -> Played:
    """Plays all conversations, with as many turns at a time as the workload has clients, in order."""
    clients = asyncio.Semaphore(workload.clients)
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_converse(server, workload.output_tokens, texts, clients, on_answer))
            for texts in prompts.conversations
        ]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    conversations = tuple(task.result() for task in tasks)
    return Played(conversations, seconds, cpu, await _shared_tokens(server, prompts))


async def _converse(
    server: Server, tokens: int, texts: Sequence[str], clients: asyncio.Semaphore, on_answer: OnAnswer
) -> tuple[Answer | Failed, ...]:
    prompt = ""
    answers: list[Answer | Failed] = []
    for text in texts:
        prompt += text
        async with clients:
            answer = await complete(server, prompt, tokens)
        answers.append(answer)
        on_answer()
        if isinstance(answer, Failed):
            break
        prompt += answer.text
    return tuple(answers)


async def _shared_tokens(server: Server, prompts: Prompts) -> int:
    if not prompts.shared or len(prompts.conversations) == 1:
        return 0
    # After the workload: before it, this request would warm the cache.
    answer = await complete(server, prompts.shared, 1)
    return answer.prompt_tokens if isinstance(answer, Answer) else 0
