"""Turns the engine's replies to one HTTP request into the text of its outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

from transom.engine.client import Replies
from transom.server.errors import Refused, bad_request, internal, unavailable
from transom.server.queue_bounds import Load
from transom.server.request_log import RequestLog
from transom.server.responses import PromptDetails, ResponseFormat, UsageBody
from transom.server.sampling_params import Streaming
from transom.text.output import OutputText
from transom.values import Ended, FinishReason, PromptLogprobs, Request, RequestId, TokenSampled


@dataclass(frozen=True, slots=True)
class Generation:
    """One HTTP request, ready for the engine: a request to the engine per prompt, and the outputs of all.

    Each prompt has the same number of outputs; outputs are in the order of the prompts. `param` is the field
    that holds the prompt, for error messages. Clients are told multiples of `cached_unit` cached tokens.
    """

    requests: tuple[Request, ...]
    outputs: tuple[OutputText, ...]
    format: ResponseFormat
    streaming: Streaming | None
    param: str
    cached_unit: int = 1

    def families(self) -> Iterator[tuple[Request, tuple[OutputText, ...]]]:
        """Each request with its outputs."""
        each = len(self.outputs) // len(self.requests)
        for number, request in enumerate(self.requests):
            yield request, self.outputs[number * each : (number + 1) * each]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def load(self) -> Load:
        return Load(len(self.outputs), self.prompt_tokens)


class OutputProcessor:
    """Submits a generation to the engine and feeds the replies into its outputs. Mutable."""

    def __init__(self, generation: Generation, replies: Replies, request_log: RequestLog) -> None:
        self._generation = generation
        self._replies = replies
        self._log = request_log
        self._outputs: dict[RequestId, OutputText] = {}
        self._families: dict[RequestId, tuple[OutputText, ...]] = {}
        """All outputs of a request: log-probabilities of its prompt arrive once for all of them."""
        for request, family in generation.families():
            replies.submit(request)
            self._families[request.id] = family
            self._outputs.update(zip(request.ids, family, strict=True))

    @property
    def done(self) -> bool:
        return all(output.ended for output in self._generation.outputs)

    async def advance(self) -> None:
        """Waits for replies and processes all that have arrived. Raises Refused and EngineDied."""
        for reply in await self._replies.take():
            match reply:
                case TokenSampled():
                    self._add_token(self._outputs[reply.request], reply)
                case PromptLogprobs():
                    for output in self._families[reply.request]:
                        output.prompt_logprobs += reply.tokens
                        for token in reply.tokens:
                            output.add_prompt_logprob(token.logprob, token.top)
                case Ended():
                    self._end(self._outputs[reply.request], reply)

    def _add_token(self, output: OutputText, reply: TokenSampled) -> None:
        if output.tokens == 0:
            self._log.first_token()
        if output.add(reply.token, reply.logprob, reply.top):
            self._replies.abort(reply.request)

    def _end(self, output: OutputText, reply: Ended) -> None:
        # An output that met a stop string is complete, even if the engine failed before the abort arrived.
        if reply.reason is FinishReason.ERROR and output.finish is None:
            output.usage = reply.usage
            raise _failure(reply, self._generation.param)
        output.end(reply.reason, reply.usage)
        self._log.finished(output, reply.queue_seconds)

    def usage(self) -> UsageBody:
        """Token counts so far; once all outputs have ended, with the number of cached tokens."""
        prompt_tokens = self._generation.prompt_tokens
        output_tokens = sum(output.tokens for output in self._generation.outputs)
        # The outputs of a family share one prompt: its cached tokens count once.
        firsts = [family[0].usage for family in self._families.values()]
        cached = [usage.cached_tokens for usage in firsts if usage is not None]
        unit = self._generation.cached_unit
        details = PromptDetails(sum(count - count % unit for count in cached)) if self.done else None
        return UsageBody(prompt_tokens, output_tokens, prompt_tokens + output_tokens, details)


def _failure(reply: Ended, param: str) -> Refused:
    """The HTTP error for a failed output. The engine's refusals carry a code; its failures do not."""
    if reply.code in ("shutting_down", "no_memory"):
        return Refused(unavailable(reply.message))
    if reply.code is not None:
        return bad_request(reply.message, param if reply.param == "prompt" else reply.param, reply.code)
    message = reply.message or "the engine gave up on this request"
    return Refused(internal(message))
