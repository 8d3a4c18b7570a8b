"""From a decoded request to a job for the engine: tokens, and the checks that need the model."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from transom.errors import RequestTooLarge
from transom.server import protocol
from transom.server.errors import bad_request, not_found
from transom.server.generation import Job
from transom.server.output_processor import Answer, Rules
from transom.server.protocol import ChatRequest, CompletionRequest
from transom.server.responses import ChatShape, CompletionShape
from transom.server.sampling_params import Params, chat_params, completion_params
from transom.text.model_text import Message, ModelText
from transom.values import Logprobs, Request, RequestId, Sibling, Tokens

PROMPTS_MAX = 256
LONG_TEXT_CHARACTERS = 4096
"""Texts above are tokenized in a thread: on the event loop they would hold up everybody's stream."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What turns requests into jobs: the model as the HTTP side knows it."""

    text: ModelText
    served_name: str
    context: int
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Request ids, never used twice: an engine that replaces another goes on counting."""

    async def completion(self, request: CompletionRequest) -> Job:
        """Refused or BadRequest for what cannot be served."""
        self._check_model(request.model)
        params = completion_params(request, self.text.vocabulary)
        prompts = [await self._prompt(prompt, param) for prompt, param in _prompts(request.prompt)]
        shape = CompletionShape(self.served_name, null_usage=_null_usage(params), logprobs=params.logprobs)
        return self._job(prompts, params, shape, "prompt")

    async def chat(self, request: ChatRequest) -> Job:
        """Refused or BadRequest for what cannot be served."""
        self._check_model(request.model)
        params = chat_params(request, self.text.vocabulary)
        messages = _messages(request.messages)
        if sum(_length(message.content) for message in request.messages) > LONG_TEXT_CHARACTERS:
            tokens = await asyncio.to_thread(self.text.encode_chat, messages)
        else:
            tokens = self.text.encode_chat(messages)
        shape = ChatShape(self.served_name, null_usage=_null_usage(params), logprobs=params.logprobs)
        return self._job([tokens], params, shape, "messages")

    def _check_model(self, name: str | None) -> None:
        if name and name not in (self.served_name, "default"):
            raise not_found(
                f"the model {name[:200]!r} is not served here; {self.served_name!r} is",
                "model",
                "model_not_found",
            )

    async def _prompt(self, prompt: str | list[int], param: str) -> Tokens:
        if isinstance(prompt, list):
            return self._checked_ids(prompt, param)
        if len(prompt) > LONG_TEXT_CHARACTERS:
            tokens = await asyncio.to_thread(self.text.encode, prompt)
        else:
            tokens = self.text.encode(prompt)
        if not len(tokens):
            raise bad_request(f"{param} is empty", param)
        return tokens

    def _checked_ids(self, ids: list[int], param: str) -> Tokens:
        if not ids:
            raise bad_request(f"{param} is empty", param)
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.text.vocabulary:
            worst = low if low < 0 else high
            raise bad_request(
                f"{param} holds the token id {worst:.30g}; ids are between 0 and {self.text.vocabulary - 1}",
                param,
            )
        return np.array(ids, dtype=np.int32)

    def _job(
        self, prompts: Sequence[Tokens], params: Params, shape: CompletionShape | ChatShape, param: str
    ) -> Job:
        stop_ids = self._stop_ids(params)
        rules = Rules(self.text, params.stop, stop_ids, params.logprobs, param)
        told = [tokens if params.echo else None for tokens in prompts for _ in range(params.outputs)]
        return Job(
            tuple(self._limited(tokens, params, stop_ids, param) for tokens in prompts),
            tuple(Answer(index, rules, echo) for index, echo in enumerate(told)),
            shape,
            params.streaming,
        )

    def _stop_ids(self, params: Params) -> frozenset[int]:
        ends = frozenset[int]() if params.ignore_eos else self.text.stop_ids
        return ends | frozenset(params.stop_ids)

    def _limited(self, tokens: Tokens, params: Params, stop_ids: frozenset[int], param: str) -> Request:
        """A prompt is never cut. An answer may be, by the context, and then says `length`."""
        room = self.context - len(tokens)
        wanted = room if params.max_tokens is None else params.max_tokens
        if room < min(1, wanted) or room < 0:
            raise RequestTooLarge(
                f"the prompt has {len(tokens)} tokens and the served context is {self.context}, "
                f"of which the answer needs at least 1",
                param=param,
            )
        first, *siblings = params.samplings
        scored = 0 if params.echo and params.logprobs else None
        timeout = params.timeout_seconds
        return Request(
            id=RequestId(next(self.ids)),
            prompt=tokens,
            max_tokens=min(wanted, room),
            stop_ids=stop_ids,
            sampling=first,
            priority=params.priority,
            salt=params.salt,
            siblings=tuple(Sibling(RequestId(next(self.ids)), sampling) for sampling in siblings),
            logprobs=Logprobs(params.top, scored),
            deadline=None if timeout is None else time.monotonic() + timeout,
            tenant=params.tenant,
        )


def _null_usage(params: Params) -> bool:
    return params.streaming is not None and params.streaming.usage_at_end


def _prompts(prompt: str | list[str | int | list[int]]) -> list[tuple[str | list[int], str]]:
    """Each single prompt and the name to blame it by: a text, ids, or a batch of either."""
    if isinstance(prompt, str):
        return [(prompt, "prompt")]
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [(ids, "prompt")]
    if ids:
        raise bad_request("prompt mixes token ids with other things; give one list per prompt", "prompt")
    if len(prompt) > PROMPTS_MAX:
        raise bad_request(f"prompt holds {len(prompt)} prompts; at most {PROMPTS_MAX} are allowed", "prompt")
    return [(item, f"prompt[{i}]") for i, item in enumerate(prompt) if not isinstance(item, int)]


def _messages(messages: Sequence[protocol.Message]) -> list[Message]:
    if not messages:
        raise bad_request("messages is empty", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: protocol.Message, param: str) -> Message:
    if message.tool_calls:
        raise bad_request(f"{param}.tool_calls is not supported", f"{param}.tool_calls", "unsupported_value")
    if message.content is None:
        raise bad_request(f"{param}.content is required", f"{param}.content", "missing_required_parameter")
    return {"role": message.role, "content": msgspec.to_builtins(message.content)}


def _length(content: str | Sequence[protocol.Part] | None) -> int:
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(part.text or "") for part in content)
