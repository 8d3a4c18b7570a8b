"""A server over the fake engine, as a process of its own; bytes are its tokens.

`python toy.py MODEL LIMITS LOG_FORMAT [FLAG...]` serves on a free port, and prints the URL and the engine's
pid. LIMITS is a JSON object of limits that differ from the toy's. A FLAG is one of `transom serve`.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from transom import logs, wire
from transom.cli.main import parsers
from transom.cli.serve import server_config
from transom.config import EngineConfig, LogConfig
from transom.engine.supervisor import EngineLaunch
from transom.errors import BadRequest, TransomError
from transom.limits import Limits
from transom.server.launch import ServerLaunch, serve
from transom.server.listening import Address, listen
from transom.text.budget import UNBOUNDED, TextBudget
from transom.text.chat import ANSWER, Rendering, normalize
from transom.text.detokenize import Detokenizer
from transom.text.model_text import Message
from transom.text.tools import HERMES
from transom.values import Tokens

BEGIN, END = 256, 257
CONTEXT = 512
BODY_BYTES_MAX = 200_000
FAKE_ENGINE = Path(__file__).parents[1] / "engine" / "fake_engine.py"


class ByteText:
    """A begin token, then a text's bytes. Each SLOW in a text takes a hundredth of a second."""

    vocabulary = 258
    stop_ids = frozenset({END})
    begin_and_end = (BEGIN, END)

    def encode(self, text: str, *, bos: bool = True, budget: TextBudget = UNBOUNDED) -> Tokens:
        budget.check_characters(len(text), 20)
        for _ in range(text.count("SLOW")):
            threading.Event().wait(0.01)
            budget.carry_on()
        return np.array([*([BEGIN] if bos else []), *text.encode()], dtype=np.int32)

    tool_format = HERMES

    def control_id(self, literal: str) -> int | None:
        return None

    def encode_chat(
        self,
        messages: Sequence[Message],
        rendering: Rendering = ANSWER,
        *,
        tools: Sequence[Message] = (),
        budget: TextBudget = UNBOUNDED,
    ) -> Tokens:
        turns = normalize(messages)
        for turn in turns:
            if turn["role"] not in ("system", "user", "assistant", "tool"):
                raise BadRequest(f"messages: the role {turn['role']!r} is not known", param="messages")
        text = "|".join(f"{turn['role'][0]}:{turn['content']}" for turn in turns)
        variables = "".join(f"{name}={value};" for name, value in rendering.variables.items())
        end = "" if rendering.add_generation_prompt else "." if rendering.continue_final else "!"
        return self.encode(f"{variables}{text}{end}")

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < BEGIN else b""

    def detokenizer(self, *, skip_special: bool = True, visible: Collection[str] = ()) -> Detokenizer:
        return Detokenizer(self.piece if skip_special else self._named)

    def _named(self, token: int) -> bytes:
        return self.piece(token) or f"<{token}>".encode()


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    process: subprocess.Popen[str]
    engine_pid: int


@contextmanager
def running_server(
    model: str = "echo",
    *,
    announced: bool = True,
    log_format: str = "text",
    log: Path | None = None,
    flags: Sequence[str] = (),
    **limits: float,
) -> Iterator[Running]:
    """A toy server, stopped at the end if it still runs.

    `announced`: wait until the server has printed its URL. `log`: the file for its standard error.
    `flags`: flags of `transom serve` for the server. `limits`: those that differ from the toy's.
    """
    words = [sys.executable, __file__, model, json.dumps(limits), log_format, *flags]
    with ExitStack() as stack:
        stderr = stack.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        url, _, pid = (process.stdout.readline() if announced else "").strip().partition(" ")
        yield Running(url, process, int(pid or 0))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            finally:
                process.kill()
        process.stdout.close()


def main(model: str, limits: dict[str, float], log_format: str, flags: Sequence[str]) -> int:
    def announce(ready: wire.Ready, address: Address) -> None:
        print(address.url, ready.pid, flush=True)

    toys = {"finish_seconds": 1.0, "body_bytes": BODY_BYTES_MAX, "stalled_seconds": 0.5}
    given = server_config(parsers()[1]["serve"].parse_args(flags))
    server = replace(given, port=given.port if given.uds else 0, limits=Limits(**{**toys, **limits}))
    log_config = LogConfig(format=log_format)
    logs.configure(log_config)
    command = (sys.executable, str(FAKE_ENGINE))
    # However slow the machine: five crashes are too many.
    recipe = EngineLaunch(EngineConfig(model=model), log_config, command, crashes_seconds=3600)
    try:
        serve(ServerLaunch(server, recipe, "toy", ByteText), listen(server), announce)
    except TransomError as error:
        print(f"transom: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4:]))
