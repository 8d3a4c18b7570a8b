"""Checks of commands, the state that they leave behind, and the outcomes of commands that take time.

The commands themselves are in `transom.wire`; `loop` carries them out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from transom.errors import BadRequest, RequestTooLarge
from transom.sched.request import Progress
from transom.values import Request, UpdateMode
from transom.wire import Drain, UpdateWeights

# ---------------------------------------------------------------- submit


def require_servable(request: Request, context: int, vocabulary: int | None = None) -> None:
    """Raises BadRequest, or RequestTooLarge with the numbers if the request could never run."""
    if vocabulary is not None:
        _require_known(request, vocabulary)
    prompt = len(request.prompt)
    if prompt == 0:
        raise BadRequest("the prompt is empty", param="prompt")
    if request.max_tokens < 0:
        raise BadRequest(f"max_tokens is {request.max_tokens}; it cannot be negative", param="max_tokens")
    if request.siblings and request.max_tokens == 0:
        raise BadRequest("several outputs of 0 tokens each: set n to 1, or max_tokens above 0", param="n")
    outputs = len(request.outputs)
    if outputs and prompt + outputs >= min(prompt + request.max_tokens, context):
        raise BadRequest(
            f"the request has {outputs} of its {request.max_tokens} output tokens: no token can follow them",
            param="outputs",
        )
    if prompt > context:
        raise RequestTooLarge(f"the prompt has {prompt} tokens; this server's context is {context} tokens")
    if prompt == context and request.max_tokens > 0:
        raise RequestTooLarge(
            f"the prompt has {prompt} tokens, which leaves no space for output: "
            f"this server's context is {context} tokens"
        )


def _require_known(request: Request, vocabulary: int) -> None:
    """A step with an id that has no row in the embedding fails with all its requests."""
    fields: list[tuple[str, Iterable[int]]] = [
        ("prompt", () if not len(request.prompt) else (request.prompt.min(), request.prompt.max())),
        ("outputs", request.outputs),
        ("stop_token_ids", request.stop_ids),
    ]
    if (rules := request.rules) is not None:
        fields += [
            ("logit_bias", () if rules.biased is None else rules.biased.tolist()),
            ("allowed_token_ids", () if rules.allowed is None else rules.allowed.tolist()),
            ("bad_words", (token for word in rules.banned for token in word)),
        ]
    for param, tokens in fields:
        odd = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if odd is not None:
            raise BadRequest(
                f"{param} holds the token id {odd}; ids are between 0 and {vocabulary - 1}", param=param
            )


def outputs_of(request: Request) -> Iterator[Request]:
    """One request per output: the request itself without siblings, then one for each sibling.

    Only the first asks for prompt logprobs, since they are the same for all outputs.
    """
    yield replace(request, siblings=()) if request.siblings else request
    logprobs = replace(request.logprobs, prompt_from=None)
    for sibling in request.siblings:
        yield replace(request, id=sibling.id, sampling=sibling.sampling, logprobs=logprobs, siblings=())


# ---------------------------------------------------------------- pause, drain, update


@dataclass(slots=True)
class Lifecycle:
    """Owns the effects of commands on later submissions, admissions and steps. Mutable, the scheduler's.

    drain   refuses new requests
    paused  plans no step, from `Pause` to `Resume`
    update  stops admissions until no request runs with the old weights. In mode `drain`, requests that have
            begun may still be admitted: they finish with the weights that they began with
    """

    drain: Drain | None = None
    paused: bool = False
    update: UpdateWeights | None = None

    def require_open(self) -> None:
        if self.drain is not None:
            raise BadRequest("the server is shutting down and takes no more requests", code="shutting_down")

    def may_admit(self, progress: Progress) -> bool:
        if self.update is None:
            return True
        return self.update.mode is UpdateMode.DRAIN and progress.has_begun

    def require_updatable(self, mode: UpdateMode, *, begun: bool) -> None:
        """Refuses an update that would wait for ever: for another update, or for requests that are paused."""
        if self.update is not None:
            raise BadRequest("an update of the weights is already under way", code="update_under_way")
        # Mode drain waits until running requests finish, and a pause keeps them from finishing.
        if self.paused and begun and mode is UpdateMode.DRAIN:
            raise BadRequest(
                "generation is paused, so running requests cannot finish: "
                "use mode retract or abort, or continue generation first",
                param="mode",
                code="paused",
            )


# ---------------------------------------------------------------- outcomes of commands that take time


@dataclass(frozen=True, slots=True)
class WeightsUpdated:
    """The new weights serve; prefixes computed with them belong to `epoch`."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class WeightsRefused:
    """The weights have not changed."""

    number: int
    error: BadRequest


@dataclass(frozen=True, slots=True)
class Drained:
    """No request is left since `Drain`. Repeated in every later iteration for which that holds."""

    number: int


Done = WeightsUpdated | WeightsRefused | Drained


class Weights(Protocol):
    """The weights that an update replaces: the engine's model, or nothing in a simulator."""

    def check(self, source: str) -> None:
        """Raises BadRequest if `source` cannot replace the current weights. Loads nothing."""
        ...

    def load(self, source: str) -> None:
        """Replaces the weights. Raises BadRequest and changes nothing if `source` cannot be loaded."""
        ...


class FixedWeights:
    """Weights that cannot be updated: every update is refused."""

    def check(self, source: str) -> None:
        raise BadRequest("the weights of this engine cannot be updated", param="model_path")

    def load(self, source: str) -> None:
        self.check(source)
