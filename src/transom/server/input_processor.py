"""Turns a decoded request into a generation: tokenizes it, and makes the checks that need the model."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np

from transom.errors import RequestTooLarge
from transom.limits import LIMITS, Limits
from transom.sampling import shown
from transom.server import protocol
from transom.server.errors import bad_request, model_not_found
from transom.server.grammars import grammar_of, is_constrained
from transom.server.output_processor import Generation
from transom.server.protocol import ChatRequest, CompletionRequest
from transom.server.responses import ChatFormat, CompletionFormat, Contents, ResponseFormat
from transom.server.sampling_params import SamplingParams, chat_params, completion_params, rendering_of
from transom.server.text_pool import TextPool
from transom.server.tools import ToolChoices, ToolUse, chat_grammar, description_length, tool_use
from transom.text.budget import StepsSpent, TextBudget
from transom.text.model_text import Message, ModelText
from transom.text.output import OutputRules, OutputText
from transom.text.stops import StopStrings
from transom.text.tools import arguments_object
from transom.values import Logprobs, Request, RequestId, Sampling, Sibling, Tokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InputProcessor:
    """The model as the HTTP side knows it. `context`: most tokens of prompt and output together."""

    text: ModelText
    served_name: str
    context: int
    limits: Limits = LIMITS
    pool: TextPool = field(default_factory=TextPool)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Ids of engine requests. A new engine continues the sequence, so an id is never reused."""
    weights: Callable[[], str] = str
    """Identity of the weights that serve now."""
    checking: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "grammar"))
    """Checks grammars, one after the other."""

    async def completion(self, request: CompletionRequest) -> Generation:
        """Refused or BadRequest if the request cannot be served."""
        self.check_model(request.model)
        params = completion_params(request, self.text.vocabulary, self._word)
        if is_constrained(request):
            params = replace(params, grammar=await self._checked(partial(grammar_of, request)))
        bos = request.add_special_tokens is not False
        given = _prompts(request.prompt)

        def encode(budget: TextBudget) -> list[Tokens]:
            return [self._prompt(prompt, param, budget, bos=bos) for prompt, param in given]

        prompts = await self._prepared(encode, sum(len(prompt) for prompt, _ in given), len(given))
        format = CompletionFormat(self.served_name, self.text.piece, self._contents(params, prompts))
        return self._generation(prompts, params, format, "prompt")

    async def chat(self, request: ChatRequest) -> Generation:
        """Refused or BadRequest if the request cannot be served."""
        self.check_model(request.model)
        params = chat_params(request, self.text.vocabulary, self._word)
        _check_messages(request.messages)
        use = tool_use(request, self.text)
        if is_constrained(request) or (use is not None and use.forced):
            grammar = await self._checked(partial(chat_grammar, request, use, self.text))
            params = replace(params, grammar=grammar)
        if use is not None:
            params = replace(params, visible=use.visible)
        tokens = await self._chat_tokens(request, use)
        choices = None if use is None else ToolChoices(use)
        format = ChatFormat(self.served_name, self.text.piece, self._contents(params, [tokens]), choices)
        return self._generation([tokens], params, format, "messages")

    async def chat_tokens(self, request: ChatRequest) -> Tokens:
        """The tokens of a conversation, up to where the answer goes on. Refused or BadRequest."""
        _check_messages(request.messages)
        return await self._chat_tokens(request, tool_use(request, self.text))

    async def _chat_tokens(self, request: ChatRequest, use: ToolUse | None) -> Tokens:
        definitions = () if use is None else use.definitions
        rendering = rendering_of(request)

        def encode(budget: TextBudget) -> Tokens:
            messages = _messages(request.messages)
            return self.text.encode_chat(messages, rendering, tools=definitions, budget=budget)

        characters = sum(_length(message.content) for message in request.messages) + description_length(use)
        items = len(request.messages) + sum(_parts(message.content) for message in request.messages)
        return await self._prepared(encode, characters, items)

    def _contents(self, params: SamplingParams, prompts: Sequence[Tokens]) -> Contents:
        ids = [tokens.tolist() for tokens in prompts] if params.token_ids else None
        return Contents(
            null_usage=params.streaming is not None and params.streaming.usage_at_end,
            logprobs=params.logprobs,
            names_are_ids=params.names_are_ids,
            outputs=params.outputs,
            prompts=ids,
            prompt_top=params.prompt_top,
            weights=self.weights,
        )

    def check_model(self, name: str | None) -> None:
        if name and name not in (self.served_name, "default"):
            raise model_not_found(name, self.served_name)

    async def _checked(self, make: Callable[[], str]) -> str:
        """The grammar that `make` returns. Refused or BadRequest, naming the field."""
        # Not asyncio's threads: large grammars of one client would keep the prompts of others waiting.
        return await asyncio.get_running_loop().run_in_executor(self.checking, make)

    # ---------------------------------------------------------------- prompts

    async def _prepared(self, work: Callable[[TextBudget], T], characters: int, items: int) -> T:
        """The result of `work`, from a thread if it would delay the streams of other clients."""
        budget = TextBudget(self.context, self.limits.template_steps)
        if characters <= self.limits.loop_characters and items <= self.limits.loop_items:
            try:
                return work(replace(budget, steps=self.limits.loop_steps))
            except StepsSpent:
                pass  # a template decides how long its rendering takes, also for a short conversation
        return await self.pool.run(lambda carry_on: work(replace(budget, carry_on=carry_on)))

    def _prompt(self, prompt: str | list[int], param: str, budget: TextBudget, *, bos: bool) -> Tokens:
        if isinstance(prompt, list):
            return self.token_ids(prompt, param)
        try:
            tokens = self.text.encode(prompt, bos=bos, budget=budget)
        except RequestTooLarge as error:
            raise RequestTooLarge(error.message, param=param) from None
        if not len(tokens):
            raise bad_request(f"{param} is empty", param)
        return tokens

    async def encode(self, text: str, *, bos: bool) -> Tokens:
        """BadRequest if it is not valid Unicode, or longer than the context."""
        return await self._prepared(
            lambda budget: self.text.encode(text, bos=bos, budget=budget), len(text), items=1
        )

    def _word(self, word: str) -> Tokens:
        return self.text.encode(word, bos=False)

    def token_ids(self, ids: list[int], param: str) -> Tokens:
        if not ids:
            raise bad_request(f"{param} is empty", param)
        # Checked as Python integers: they may be too large for int32.
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.text.vocabulary:
            wrong = low if low < 0 else high
            raise bad_request(
                f"{param} holds the token id {shown(wrong)}; "
                f"ids are between 0 and {self.text.vocabulary - 1}",
                param,
            )
        return np.array(ids, dtype=np.int32)

    # ---------------------------------------------------------------- the engine's request

    def _generation(
        self, prompts: Sequence[Tokens], params: SamplingParams, format: ResponseFormat, param: str
    ) -> Generation:
        outputs = len(prompts) * params.outputs
        if outputs > self.limits.outputs:
            raise bad_request(
                f"{len(prompts)} prompts with n {params.outputs} have {outputs} outputs; "
                f"at most {self.limits.outputs} are allowed",
                "n",
            )
        # The model ends a constrained output where the grammar allows nothing else, so it must be able to.
        endless = params.ignore_eos and not params.grammar
        model_stop_ids = frozenset[int]() if endless else self.text.stop_ids
        stop_ids = model_stop_ids | frozenset(params.stop_ids)
        rules = OutputRules(
            partial(self.text.detokenizer, skip_special=params.skip_special, visible=params.visible),
            StopStrings(params.stop),
            stop_ids,
            params.logprobs,
            top=params.top,
            ids=params.token_ids,
            told_stop_ids=frozenset(params.stop_ids),
            include_stop=params.include_stop,
            min_tokens=0 if params.rules is None else params.rules.min_tokens,
        )
        echoes = [tokens if params.echo else None for tokens in prompts for _ in range(params.outputs)]
        return Generation(
            requests=tuple(
                self._request(tokens, params, params.samplings(number), stop_ids, param)
                for number, tokens in enumerate(prompts)
            ),
            outputs=tuple(OutputText(rules, echo) for echo in echoes),
            format=format,
            streaming=params.streaming,
            param=param,
        )

    def _request(
        self,
        tokens: Tokens,
        params: SamplingParams,
        samplings: Sequence[Sampling],
        stop_ids: frozenset[int],
        param: str,
    ) -> Request:
        """RequestTooLarge if the prompt does not fit: prompts are never truncated.

        `max_tokens` beyond the context is no error. The output then ends with the context, by `length`.
        """
        free = self.context - len(tokens)
        max_tokens = free if params.max_tokens is None else params.max_tokens
        if free < min(1, max_tokens) or free < 0:
            raise RequestTooLarge(
                f"the prompt has {len(tokens)} tokens, and the served context is {self.context}, "
                f"of which the output needs at least 1",
                param=param,
            )
        first, *siblings = samplings
        # With `echo`, the log-probabilities of the prompt are wanted too, from its first token on.
        prompt_from = 0 if params.prompt_top is not None or (params.echo and params.logprobs) else None
        seconds = self.limits.request_seconds
        if params.timeout_seconds is not None:
            seconds = min(seconds, params.timeout_seconds)
        return Request(
            id=RequestId(next(self.ids)),
            prompt=tokens,
            max_tokens=min(max_tokens, free),
            stop_ids=stop_ids,
            sampling=first,
            priority=params.priority,
            salt=params.salt,
            siblings=tuple(Sibling(RequestId(next(self.ids)), sampling) for sampling in siblings),
            logprobs=Logprobs(max(params.top, params.prompt_top or 0), prompt_from),
            # Both processes read the same monotonic clock.
            deadline=time.monotonic() + seconds,
            tenant=params.tenant,
            grammar=params.grammar,
            rules=params.rules,
        )


def _prompts(prompt: str | list[str | int | list[int]]) -> list[tuple[str | list[int], str]]:
    """Each prompt with its name for error messages. The field is a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [(prompt, "prompt")]
    # A list of integers is one prompt; a list of lists or texts is a batch of prompts. A mixture is neither.
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [(ids, "prompt")]
    if ids:
        raise bad_request("prompt mixes token ids with texts or lists; give one list per prompt", "prompt")
    if len(prompt) > LIMITS.prompts:
        raise bad_request(
            f"prompt holds {len(prompt)} prompts; at most {LIMITS.prompts} are allowed", "prompt"
        )
    return [(item, f"prompt[{i}]") for i, item in enumerate(prompt) if not isinstance(item, int)]


def _check_messages(messages: Sequence[protocol.Message]) -> None:
    """Refused for a number of messages or parts that no conversation has."""
    if not messages:
        raise bad_request("messages is empty", "messages")
    parts = sum(_parts(message.content) for message in messages)
    for count, most, what in ((len(messages), LIMITS.messages, "messages"), (parts, LIMITS.parts, "parts")):
        if count > most:
            raise bad_request(f"messages holds {count} {what}; at most {most} are allowed", "messages")


def _messages(messages: Sequence[protocol.Message]) -> list[Message]:
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: protocol.Message, param: str) -> Message:
    if message.content is None and message.role != "assistant":
        raise bad_request(f"{param}.content is required", f"{param}.content", "missing_required_parameter")
    fields: dict[str, object] = msgspec.to_builtins(message)
    # An assistant that called a tool or refused has said nothing.
    content = "" if message.content is None else _content(message.content)
    given = {name: value for name, value in fields.items() if value is not None}
    if message.tool_calls:
        given["tool_calls"] = [
            _call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    return {**given, "content": content}


def _call(call: protocol.ToolCall, param: str) -> dict[str, object]:
    """A call with its arguments as an object: templates write it as JSON themselves."""
    arguments = arguments_object(call.function.arguments, f"{param}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {**({} if call.id is None else {"id": call.id}), "type": "function", "function": function}


TEXT_PARTS = ("text", "input_text", "output_text")
"""Names of a text in chats and in OpenAI's newer API."""


def _content(content: str | Sequence[protocol.Part]) -> str | list[dict[str, str]]:
    """A text, or its parts. The template refuses a part of another type."""
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: protocol.Part) -> dict[str, str]:
    text = part.refusal if part.type == "refusal" else part.text
    kind = "text" if part.type in (*TEXT_PARTS, "refusal") else part.type
    return {"type": kind} if text is None else {"type": kind, "text": text}


def _parts(content: str | Sequence[protocol.Part] | None) -> int:
    return 0 if content is None or isinstance(content, str) else len(content)


def _length(content: str | Sequence[protocol.Part] | None) -> int:
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(part.text or part.refusal or "") for part in content)
