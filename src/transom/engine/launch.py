"""How the server starts an engine process: one JSON line on the child's standard input.

Standard input is one end of a socket pair that both sides keep open. Each side sees the other's end, by
whatever cause, as end of file: no timers, no polling for a parent's pid.
"""

import msgspec

from transom.config import EngineConfig

MODULE = "transom.engine.process"


class Launch(msgspec.Struct, frozen=True):
    """What a new engine is told. `endpoint` is the server's ZeroMQ address, bound before the child starts."""

    endpoint: str
    config: EngineConfig


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Launch).decode
