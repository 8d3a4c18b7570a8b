"""Commands over HTTP: flush, abort, pause, continue, update of the weights. Fields are named as at SGLang."""

from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from transom.engine.supervisor import Supervisor
from transom.server import protocol
from transom.server.errors import bad_request
from transom.server.generation import Going
from transom.server.responses import json_response
from transom.values import UpdateMode


class ReadBody(Protocol):
    async def __call__(self, request: Request) -> bytes:
        """The whole body. Refused if it is too large."""
        ...


@dataclass(frozen=True, slots=True)
class Operations:
    """The endpoints. Each answers when the engine has done what was asked."""

    engine: Supervisor
    going: Going
    body: ReadBody

    def routes(self) -> list[Route]:
        return [
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/abort_request", self.abort_request, methods=["POST"]),
            Route("/pause_generation", self.pause_generation, methods=["POST"]),
            Route("/continue_generation", self.continue_generation, methods=["POST"]),
            Route("/update_weights_from_disk", self.update_weights_from_disk, methods=["POST"]),
        ]

    async def flush_cache(self, request: Request) -> Response:
        """Running requests go on; what they leave behind is filed under the old, forgotten prefixes."""
        await self.engine.client.flush()
        return json_response({"status": "ok"})

    async def abort_request(self, request: Request) -> Response:
        """What is aborted ends with what it has, and finish reason `abort`. An id unknown is no error."""
        asked = protocol.decoded(protocol.decode_abort, await self._json(request))
        if asked.abort_all:
            await self.engine.client.abort_all()
            return json_response({"status": "ok"})
        if asked.rid is None:
            raise bad_request("rid is required, or abort_all", "rid", "missing_required_parameter")
        return json_response({"status": "ok", "aborted": self.going.abort(asked.rid)})

    async def pause_generation(self, request: Request) -> Response:
        asked = protocol.decoded(protocol.decode_pause, await self._json(request))
        await self.engine.client.pause(asked.mode)
        return json_response({"status": "ok", "mode": asked.mode})

    async def continue_generation(self, request: Request) -> Response:
        await self.engine.client.resume()
        return json_response({"status": "ok"})

    async def update_weights_from_disk(self, request: Request) -> Response:
        """Waits, in mode `drain`, for all that runs. Whoever asks may leave, and it is updated still."""
        asked = protocol.decoded(protocol.decode_update, await self._json(request))
        mode = UpdateMode.ABORT if asked.abort_all_requests else asked.mode
        await self.engine.client.update_weights(asked.model_path, mode)
        return json_response({"success": True, "message": f"the weights are those of {asked.model_path}"})

    async def _json(self, request: Request) -> bytes:
        """No body asks for what is usual."""
        return await self.body(request) or b"{}"
