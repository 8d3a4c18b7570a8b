"""Admin endpoints: flush, abort, pause, continue and weight updates. Fields are named as in SGLang."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from transom.engine.supervisor import Supervisor
from transom.errors import BadRequest
from transom.server import protocol
from transom.server.callers import caller_of
from transom.server.errors import Refused, bad_request
from transom.server.generation import InFlight
from transom.server.request_log import log_refusal
from transom.server.responses import json_response
from transom.values import UpdateMode

log = logging.getLogger("transom.server")

T = TypeVar("T", bound=msgspec.Struct)


class Read(Protocol):
    """Reads and decodes a whole body; an empty one means the defaults. Refused if it is invalid."""

    async def __call__(self, request: Request, reader: protocol.Reader[T], /) -> T: ...


Endpoint = Callable[[Request], Awaitable[Response]]


def _for_commanders(endpoint: Endpoint) -> Endpoint:
    """The endpoint for callers that may command. Others are refused before their body is read."""

    async def checked(request: Request) -> Response:
        try:
            caller_of(request.scope).require_command()
        except Refused as error:
            log_refusal(request.scope, error.problem)
            raise
        return await endpoint(request)

    return checked


@dataclass(frozen=True, slots=True)
class Admin:
    """The endpoints. Each one responds once the engine has executed the command."""

    engine: Supervisor
    in_flight: InFlight
    read: Read
    weights_dir: str | None = None

    def routes(self) -> list[Route]:
        return [Route(path, endpoint, methods=["POST"]) for path, endpoint in self.commands().items()]

    def commands(self) -> dict[str, Endpoint]:
        """The endpoints by path."""
        return {
            # A client may abort its own requests, so this endpoint has checks of its own.
            "/abort_request": self.abort_request,
            "/flush_cache": _for_commanders(self.flush_cache),
            "/pause_generation": _for_commanders(self.pause_generation),
            "/continue_generation": _for_commanders(self.continue_generation),
            "/update_weights_from_disk": _for_commanders(self.update_weights_from_disk),
        }

    async def flush_cache(self, request: Request) -> Response:
        """Forgets all cached prefixes. Running requests continue; no later request finds their prefixes."""
        await self.engine.client.flush()
        return json_response({"status": "ok"})

    async def abort_request(self, request: Request) -> Response:
        """Ends requests early, with finish reason `abort`: those of the caller's key, or any by command.

        An unknown id is not an error: the request may just have ended.
        """
        caller = caller_of(request.scope)
        if not caller.key:  # clients without a key cannot be told apart
            caller.require_command()
        body = await self.read(request, protocol.read_abort)
        if body.abort_all:
            caller.require_command()
            await self.engine.client.abort_all()
            return json_response({"status": "ok"})
        if body.rid is None:
            raise bad_request("rid is required, or abort_all", "rid", "missing_required_parameter")
        return json_response({"status": "ok", "aborted": self.in_flight.abort(body.rid, caller)})

    async def pause_generation(self, request: Request) -> Response:
        body = await self.read(request, protocol.read_pause)
        await self.engine.client.pause(body.mode)
        return json_response({"status": "ok", "mode": body.mode})

    async def continue_generation(self, request: Request) -> Response:
        await self.engine.client.resume()
        return json_response({"status": "ok"})

    async def update_weights_from_disk(self, request: Request) -> Response:
        """Loads other weights. In mode `drain` it first waits for all running requests.

        The update takes place even if the client disconnects meanwhile.
        """
        body = await self.read(request, protocol.read_update)
        # SGLang's field; Transom's own is `mode`.
        mode = UpdateMode.ABORT if body.abort_all_requests else body.mode
        try:
            file = await asyncio.to_thread(file_in, self.weights_dir, body.model_path)
            await self.engine.client.update_weights(str(file), mode)
        except BadRequest as error:
            if error.param != "model_path":
                raise
            # Reasons would tell which files exist, their sizes and first bytes. The log has them.
            log.warning("update of the weights refused: %s", error.message)
            raise bad_request(_REFUSED, "model_path", "weights_refused") from None
        return json_response({"success": True, "message": f"the weights are now those of {body.model_path}"})


_REFUSED = (
    "model_path must be a GGUF file of the served model in the folder of --weights-dir; the server's log "
    "says why this one is refused"
)


def file_in(folder: str | None, path: str) -> Path:
    """The file at `path`, absolute or relative to `folder`. BadRequest unless it lies in the folder.

    Symbolic links are resolved first, so that none leads out of the folder.
    """
    if folder is None:
        raise BadRequest("the server was started without --weights-dir", param="model_path")
    try:
        root = Path(folder).resolve(strict=True)
        found = (root / path).resolve(strict=True)
        # Other kinds of files, such as pipes, could be read without an end.
        is_file = found.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, a loop of links
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path!r} cannot be opened: {reason}", param="model_path") from None
    if not is_file or not found.is_relative_to(root):
        raise BadRequest(f"{path!r} is not a file in {root}", param="model_path")
    return found
