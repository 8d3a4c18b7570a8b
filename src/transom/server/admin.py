"""Admin endpoints: flush, abort, pause, continue and weight updates. Fields are named as in SGLang."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from transom.engine.supervisor import Supervisor
from transom.server import protocol
from transom.server.errors import bad_request
from transom.server.generation import InFlight
from transom.server.responses import json_response
from transom.values import UpdateMode

T = TypeVar("T", bound=msgspec.Struct)


class Read(Protocol):
    """Reads and decodes a whole body; an empty one means the defaults. Refused if it is invalid."""

    async def __call__(self, request: Request, reader: protocol.Reader[T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class Admin:
    """The endpoints. Each one responds once the engine has executed the command."""

    engine: Supervisor
    in_flight: InFlight
    read: Read

    def routes(self) -> list[Route]:
        return [
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/abort_request", self.abort_request, methods=["POST"]),
            Route("/pause_generation", self.pause_generation, methods=["POST"]),
            Route("/continue_generation", self.continue_generation, methods=["POST"]),
            Route("/update_weights_from_disk", self.update_weights_from_disk, methods=["POST"]),
        ]

    async def flush_cache(self, request: Request) -> Response:
        """Forgets all cached prefixes. Running requests continue; no later request finds their prefixes."""
        await self.engine.client.flush()
        return json_response({"status": "ok"})

    async def abort_request(self, request: Request) -> Response:
        """Ends requests early, with finish reason `abort`.

        An unknown id is not an error: the request may just have ended.
        """
        body = await self.read(request, protocol.read_abort)
        if body.abort_all:
            await self.engine.client.abort_all()
            return json_response({"status": "ok"})
        if body.rid is None:
            raise bad_request("rid is required, or abort_all", "rid", "missing_required_parameter")
        return json_response({"status": "ok", "aborted": self.in_flight.abort(body.rid)})

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
        await self.engine.client.update_weights(body.model_path, mode)
        return json_response({"success": True, "message": f"the weights are now those of {body.model_path}"})
