"""What is asked of a request before it enters. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from transom.errors import BadRequest, RequestTooLarge
from transom.values import Request


def require_servable(request: Request, context: int) -> None:
    """Raises BadRequest; RequestTooLarge, with the numbers, for what could never run."""
    prompt = len(request.prompt)
    if prompt == 0:
        raise BadRequest("the prompt is empty", param="prompt")
    if request.max_tokens < 0:
        raise BadRequest(f"max_tokens is {request.max_tokens}; it cannot be negative", param="max_tokens")
    if request.siblings and request.max_tokens == 0:
        raise BadRequest("several outputs were asked for, of 0 tokens each", param="n")
    if prompt > context:
        raise RequestTooLarge(f"the prompt has {prompt} tokens; this server's context is {context} tokens")
    if prompt == context and request.max_tokens > 0:
        raise RequestTooLarge(
            f"the prompt has {prompt} tokens, which leaves no place for output: "
            f"this server's context is {context} tokens"
        )


def outputs_of(request: Request) -> Iterator[Request]:
    """The request itself, then one for each sibling. What the prompt scores is told once, with the first."""
    yield replace(request, siblings=()) if request.siblings else request
    logprobs = replace(request.logprobs, prompt_from=None)
    for sibling in request.siblings:
        yield replace(request, id=sibling.id, sampling=sibling.sampling, logprobs=logprobs, siblings=())
