"""The requests and commands that the server has in flight. They outlive the engine that computes them.

Every answer is a function of its request, to the bit. So when an engine dies, its successor gets each
unfinished output with the tokens that were delivered, and continues with the next one. Clients notice a
pause.

A request may be the cause of a death. Requests that were computed when an engine failed, or was killed twice
without progress, are *suspects* until they make progress. The successor gets suspects one at a time, before
all other requests. A suspect that is computed at a further death, still without progress, is ended with an
error.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Self

from transom import wire
from transom.engine.child import End, EngineProcess
from transom.errors import BadRequest, EngineDied
from transom.values import (
    Ended,
    Event,
    FinishReason,
    PauseMode,
    Request,
    RequestId,
    Sampling,
    Sibling,
    UpdateMode,
    Usage,
)

log = logging.getLogger("transom.engine")

NO_STATS = wire.Stats()

DEADLINE_GRACE_SECONDS = 0.5
"""The engine ends a request at its deadline, with exact counts. The server does if the engine is later."""

PROBE_SECONDS = 3.0
"""How long a suspect may keep other requests waiting, for a long prompt for example."""

SUSPECT = 2
QUARANTINE = 4
BLAME = 2
"""An engine that fails or hangs by itself is blamed on its requests: two such deaths are enough."""
BLAME_KILLED = 1
"""A kill usually has a cause outside of the engine, an operator for example, so it takes four."""
QUARANTINED = "the engine failed repeatedly while it computed this request"


class Replies:
    """The engine's replies to one group of requests, in order of arrival. Mutable, for one reader.

    A context manager: leaving the block, normally or by an exception, aborts its unfinished requests.
    """

    def __init__(self, client: "EngineClient") -> None:
        self._client = client
        self._arrived: list[Event] = []
        self._unfinished: set[RequestId] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._death: EngineDied | None = None

    def submit(self, request: Request) -> None:
        """Send one more request. Its id must be new. EngineDied if no engine will serve any more."""
        self._unfinished.update(request.ids)
        self._client._submit(request, self)

    async def take(self) -> list[Event]:
        """All replies since the last call, at least one. EngineDied if no more will arrive."""
        while not self._arrived:
            if self._death is not None:
                raise self._death
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    def abort(self, number: RequestId) -> None:
        """Request an early end. The `Ended` event still arrives; repeating the call does nothing."""
        if number in self._unfinished:
            self._client._abort(number)

    def abort_all(self) -> int:
        """Request an early end of all unfinished outputs. Returns their number."""
        unfinished = tuple(self._unfinished)
        for number in unfinished:
            self._client._abort(number)
        return len(unfinished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._unfinished:
            self._client._forget(number)
        self._unfinished.clear()

    # Called by the client.

    def deliver(self, reply: Event) -> None:
        self._arrived.append(reply)
        if type(reply) is Ended:  # hot path: cheaper than isinstance, and no reply has subclasses
            self._unfinished.discard(reply.request)
        self._wake()

    def fail(self, death: EngineDied) -> None:
        self._death = death
        self._unfinished.clear()
        self._wake()

    def _wake(self) -> None:
        # A cancelled reader leaves a waiter that is done.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True, eq=False)
class Output:
    """One output in flight, with the tokens that were delivered. Mutable."""

    id: RequestId
    sampling: Sampling
    family: "Family"
    tokens: list[int] = field(default_factory=list)
    is_ended: bool = False
    is_aborted: bool = False


@dataclass(slots=True, eq=False)
class Family:
    """All outputs of one request, and its record at deaths of the engine. Mutable."""

    request: Request
    replies: Replies
    outputs: tuple[Output, ...] = ()
    prompt_from: int | None = None
    """First prompt position whose logprobs were asked for and are not delivered."""
    is_sent: bool = False
    """Whether the engine that serves now has it."""
    deadline: asyncio.TimerHandle | None = None
    blame: int = 0
    blamed_at: int = -1
    """Its progress at the last death that it is blamed for."""
    blamed_since: int = 0
    """The number of the first death since its last progress."""

    def __post_init__(self) -> None:
        samplings = (self.request.sampling, *(sibling.sampling for sibling in self.request.siblings))
        ids = zip(self.request.ids, samplings, strict=True)
        self.outputs = tuple(Output(number, sampling, self) for number, sampling in ids)
        self.prompt_from = self.request.logprobs.prompt_from

    @property
    def unfinished(self) -> list[Output]:
        return [output for output in self.outputs if not output.is_ended]

    @property
    def progress(self) -> int:
        """Grows with each delivery."""
        return (self.prompt_from or 0) + sum(len(o.tokens) + o.is_ended for o in self.outputs)

    @property
    def is_suspect(self) -> bool:
        return self.blame >= SUSPECT and self.blamed_at == self.progress

    def add_blame(self, amount: int, death: int, *, alone: bool) -> None:
        """Notes a death during its computation. A suspect is blamed for more only if it was sent alone."""
        if self.blamed_at != self.progress:
            self.blame, self.blamed_at, self.blamed_since = amount, self.progress, death
        elif alone or self.blame < SUSPECT:
            self.blame += amount

    def continuations(self) -> Iterator[Request]:
        """Requests for all that is missing: one for each output with tokens, one for the others together."""
        begun = [output for output in self.unfinished if output.tokens]
        fresh = [output for output in self.unfinished if not output.tokens]
        silent = replace(self.request.logprobs, prompt_from=None)
        for output in begun:
            yield replace(
                self.request,
                id=output.id,
                sampling=output.sampling,
                siblings=(),
                outputs=tuple(output.tokens),
                logprobs=silent,
            )
        if fresh:
            first, *others = fresh
            # Logprobs of the prompt are addressed to the first output, and end with it.
            asks = first.id == self.request.id and (self.prompt_from or 0) < len(self.request.prompt)
            yield replace(
                self.request,
                id=first.id,
                sampling=first.sampling,
                siblings=tuple(Sibling(output.id, output.sampling) for output in others),
                logprobs=replace(silent, prompt_from=self.prompt_from) if asks else silent,
            )


@dataclass(slots=True, eq=False)
class PendingCommand:
    """A command without an answer. Mutable: `is_sent` says whether the engine that serves now has it."""

    command: wire.Answered
    answer: asyncio.Future[None]
    before: tuple[Family, ...]
    """The requests that were in flight when it was given."""
    is_sent: bool = False

    @property
    def waits_for_requests(self) -> bool:
        """Whether it must reach the engine after all requests that were given before it."""
        match self.command:
            case wire.Drain() | wire.UpdateWeights(mode=UpdateMode.DRAIN):
                return True
        return False

    @property
    def aborts(self) -> bool:
        match self.command:
            case wire.AbortAll() | wire.Pause(PauseMode.ABORT) | wire.UpdateWeights(mode=UpdateMode.ABORT):
                return True
        return False


class EngineClient:
    """Owns the requests and commands in flight, across engines. Mutable; belongs to one event loop.

    Without an attached engine, requests and commands wait for the next one, and aborts take effect at once.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process: EngineProcess | None = None
        self._outputs: dict[RequestId, Output] = {}
        self._held: deque[Family] = deque()
        """Requests that the attached engine gets once the suspects before them have made progress."""
        self._probe: Family | None = None
        """The suspect that was sent last, until it has made progress."""
        self._probed: set[Family] = set()
        """Suspects that the attached engine got one at a time."""
        self._probe_timer: asyncio.TimerHandle | None = None
        self._computing: tuple[RequestId, ...] = ()
        """Requests of the engine's last step, as it announced them."""
        self._unheard: set[Family] = set()
        """Sent since the engine's last message: if it died while reading one, they are suspects too."""
        self._deaths = 0
        self._commands: dict[int, PendingCommand] = {}
        self._numbers = count(1)
        """Numbers of commands; requests have ids of their own."""
        self._paused = False
        self._drained = False
        self._death: EngineDied | None = None
        self._stats = NO_STATS
        self._progress_at = time.monotonic()
        """When the engine last sent a message, or began to have something to do."""
        self.weights: tuple[str, str] | None = None
        """Source and identity of the weights that were accepted last; None: those of the start."""

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot that the engine sent."""
        return self._stats

    @property
    def death(self) -> EngineDied | None:
        """Why no engine will serve any more; unset while one serves or is being started."""
        return self._death

    @property
    def hold_up(self) -> str | None:
        """The command that keeps a new request from being computed, as a reason for clients."""
        if self._drained or any(isinstance(one.command, wire.Drain) for one in self._commands.values()):
            return "the server is shutting down"
        return "generation is paused" if self._paused else None

    @property
    def in_flight(self) -> int:
        return len(self._outputs)

    def stalled_seconds(self) -> float:
        """Seconds without a message while the engine owes one."""
        answered_in_a_pause = (wire.UpdateWeights, wire.Resume)
        owed = any(isinstance(one.command, answered_in_a_pause) for one in self._commands.values())
        working = owed or (not self._paused and (self._outputs or self._commands))
        if self._process is None or not working:
            return 0.0
        return time.monotonic() - self._progress_at

    def replies(self) -> Replies:
        return Replies(self)

    # Commands return when an engine has carried them out. EngineDied; BadRequest if the engine refuses.

    async def flush(self) -> None:
        """Drop all cached prefixes."""
        await self._execute(wire.Flush(next(self._numbers)))

    async def abort_all(self) -> None:
        await self._execute(wire.AbortAll(next(self._numbers)))

    async def pause(self, mode: PauseMode) -> None:
        """Compute no tokens until `resume`."""
        await self._execute(wire.Pause(mode, next(self._numbers)))

    async def resume(self) -> None:
        self._progress_at = time.monotonic()
        await self._execute(wire.Resume(next(self._numbers)))

    async def update_weights(self, source: str, mode: UpdateMode) -> None:
        """Load the weights of the file `source`. Returns when they serve."""
        await self._execute(wire.UpdateWeights(next(self._numbers), source, mode))

    async def drain(self) -> None:
        """Refuse new requests. Returns when no request is left."""
        await self._execute(wire.Drain(next(self._numbers)))

    def die(self, death: EngineDied) -> None:
        """Fail all present and later requests and commands with `death`."""
        if self._death is not None:
            return
        self._death = death
        self._process = None
        self._stop_probing()
        for family in {output.family for output in self._outputs.values()}:
            self._cancel_deadline(family)
            family.replies.fail(death)
        self._outputs.clear()
        for pending in self._commands.values():
            if not pending.answer.done():
                pending.answer.set_exception(death)
        self._commands.clear()

    # ---------------------------------------------------------------- engines

    def attach(self, process: EngineProcess) -> None:
        """Make `process` the engine, and send it all that is in flight."""
        assert self._process is None and self._death is None, (self._process, self._death)
        self._process = process
        self._progress_at = time.monotonic()
        # The state that commands to earlier engines have left. The weights are already those accepted last.
        if self._paused:
            process.send(wire.Pause())
        if self._drained:
            process.send(wire.Drain())
        families = list(dict.fromkeys(output.family for output in self._outputs.values()))
        # Among suspects, those that have waited longest for progress come first.
        suspects = sorted(
            (one for one in families if one.is_suspect), key=lambda one: (one.blame, one.blamed_since)
        )
        self._held.extend(suspects)
        self._held.extend(family for family in families if not family.is_suspect)
        for pending in self._commands.values():
            if not pending.waits_for_requests:
                self._give(pending)
        self._release()

    def detach(self, end: End) -> None:
        """The engine has ended. Suspects are noted, and quarantined if they were suspects before."""
        self._process = None
        self._stats = NO_STATS
        self._deaths += 1
        computed = {self._outputs[number].family for number in self._computing if number in self._outputs}
        for family in computed | self._unheard:
            amount = BLAME_KILLED if end.from_outside else BLAME
            family.add_blame(amount, self._deaths, alone=family in self._probed)
        self._stop_probing()
        self._held.clear()
        self._unheard.clear()
        self._probed.clear()
        self._computing = ()
        for pending in self._commands.values():
            pending.is_sent = False
        for output in tuple(self._outputs.values()):
            output.family.is_sent = False
            if output.family.is_suspect and output.family.blame >= QUARANTINE:
                log.error("request %d is ended: %s", output.id, QUARANTINED)
                self._end_here(output, FinishReason.ERROR, QUARANTINED)
            elif output.is_aborted:
                self._end_here(output, FinishReason.ABORT)

    def _release(self) -> None:
        """Sends held requests up to the next suspect, and commands that have waited for all of them."""
        if self._process is None:
            return
        self._stop_probing()
        while self._held:
            family = self._held.popleft()
            if not family.unfinished:
                continue
            self._send_family(family)
            if family.is_suspect and not self._paused:
                self._probe = family
                self._probed.add(family)
                self._probe_timer = self._loop.call_later(PROBE_SECONDS, self._release)
                return
        for pending in self._commands.values():
            if not pending.is_sent:
                self._give(pending)

    def _stop_probing(self) -> None:
        self._probe = None
        if self._probe_timer is not None:
            self._probe_timer.cancel()

    def _send_family(self, family: Family) -> None:
        assert self._process is not None and not family.is_sent, family.request.id
        family.is_sent = True
        self._unheard.add(family)
        for request in family.continuations():
            self._process.send(wire.Submit(request))

    def _give(self, pending: PendingCommand) -> None:
        """Sends a command. If it aborts, requests before it that the engine does not have end here."""
        assert self._process is not None, pending.command
        if pending.aborts:
            for output in [output for family in pending.before for output in family.unfinished]:
                if not output.family.is_sent:
                    self._end_here(output, FinishReason.ABORT)
        pending.is_sent = True
        self._process.send(pending.command)

    # ---------------------------------------------------------------- sending

    def _submit(self, request: Request, replies: Replies) -> None:
        if self._death is not None:
            raise self._death
        if not self._outputs:
            self._progress_at = time.monotonic()
        family = Family(request, replies)
        self._outputs.update((output.id, output) for output in family.outputs)
        if request.deadline is not None:
            seconds = request.deadline - time.monotonic() + DEADLINE_GRACE_SECONDS
            family.deadline = self._loop.call_later(max(0.0, seconds), self._expire, family)
        if self._probe is not None:
            self._held.append(family)
        elif self._process is not None:
            self._send_family(family)

    async def _execute(self, command: wire.Answered) -> None:
        """Waits for the engine's answer."""
        if self._death is not None:
            raise self._death
        if not self._commands and not self._outputs:
            self._progress_at = time.monotonic()
        before = tuple({output.family for output in self._outputs.values()})
        pending = PendingCommand(command, self._loop.create_future(), before)
        self._commands[command.number] = pending
        if self._process is not None and not (self._probe is not None and pending.waits_for_requests):
            self._give(pending)
        await pending.answer

    def _abort(self, number: RequestId) -> None:
        output = self._outputs.get(number)
        if output is None or output.is_aborted:
            return
        output.is_aborted = True
        if self._process is not None and output.family.is_sent:
            self._process.send(wire.Abort(number))
        else:
            self._end_here(output, FinishReason.ABORT)

    def _forget(self, number: RequestId) -> None:
        """Abort a request that has no reader any more."""
        output = self._outputs.get(number)
        if output is not None:
            self._remove(output)
            if self._process is not None and output.family.is_sent:
                self._process.send(wire.Abort(number))

    # ---------------------------------------------------------------- ends that the server decides

    def _expire(self, family: Family) -> None:
        """The deadline has passed and the engine has not noticed: it hangs, or none is attached."""
        for output in family.unfinished:
            if self._process is not None and family.is_sent:
                self._process.send(wire.Abort(output.id))
            self._end_here(output, FinishReason.DEADLINE)
        self._look_at_probe()

    def _end_here(self, output: Output, reason: FinishReason, message: str = "") -> None:
        self._remove(output)
        usage = Usage(len(output.family.request.prompt), len(output.tokens), 0)
        output.family.replies.deliver(Ended(output.id, reason, usage, message))

    def _remove(self, output: Output) -> None:
        del self._outputs[output.id]
        output.is_ended = True
        if not output.family.unfinished:
            self._cancel_deadline(output.family)

    def _cancel_deadline(self, family: Family) -> None:
        if family.deadline is not None:
            family.deadline.cancel()

    # ---------------------------------------------------------------- receiving

    def receive(self, message: wire.FromEngine) -> None:
        """A message of the attached engine."""
        self._progress_at = time.monotonic()
        self._unheard.clear()
        match message:
            case wire.StepOut():
                self._deliver(message)
            case wire.Done():
                self._complete(message)
            case wire.Computing():
                self._computing = message.requests
            case wire.Unsound() if self._process is not None:
                # Requests continue on the next engine; this one may have read what it should not.
                self._process.kill(End(message.message))

    def _complete(self, done: wire.Done) -> None:
        pending = self._commands.pop(done.number, None)
        if pending is None:  # sent by `attach`
            return
        if not done.message:
            self._remember(pending.command, done)
            if pending.aborts:  # their ends may still be on the way, and the engine may die before
                for output in [output for family in pending.before for output in family.unfinished]:
                    output.is_aborted = True
        if pending.answer.done():  # its caller was cancelled
            return
        if done.message:
            pending.answer.set_exception(BadRequest(done.message, param=done.param, code=done.code))
        else:
            pending.answer.set_result(None)

    def _remember(self, command: wire.Answered, done: wire.Done) -> None:
        """Notes the state that a successor must be brought into."""
        match command:
            case wire.Pause():
                self._paused = True
                # A paused suspect makes no progress, and the other requests must not wait for it.
                self._release()
            case wire.Resume():
                self._paused = False
            case wire.UpdateWeights(source=source):
                self.weights = (source, done.weights)
            case wire.Drain():
                self._drained = True

    def _deliver(self, step: wire.StepOut) -> None:
        self._stats = step.stats
        outputs = self._outputs
        for scored in step.prompt_logprobs:
            if (output := outputs.get(scored.request)) is not None:
                output.family.prompt_from = scored.first + len(scored.tokens)
                output.family.replies.deliver(scored)
        for reply in step.tokens:
            output = outputs.get(reply.request)
            if output is not None:  # otherwise the request was aborted when its reader left
                output.tokens.append(reply.token)
                output.family.replies.deliver(reply)
        for end in step.ends:
            output = outputs.get(end.request)
            if output is not None:
                self._remove(output)
                output.family.replies.deliver(end)
        self._look_at_probe()

    def _look_at_probe(self) -> None:
        if self._probe is not None and not (self._probe.is_suspect and self._probe.unfinished):
            self._release()
