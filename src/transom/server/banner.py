"""The start screen of `transom serve`: the model, the memory and every default that was chosen."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom import streams, wire
from transom.server.listening import Address


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    text: str


def banner_lines(ready: wire.Ready, served_name: str, address: Address) -> list[Line]:
    return [
        Line("model", f"{served_name} ({ready.architecture}), {_layers(ready.components)}"),
        Line("weights", _bytes(ready.weights_bytes)),
        Line("KV memory", _memory(ready.components)),
        *(Line(f"KV {part.name}", _pool(part)) for part in ready.components),
        Line("context", f"{ready.context:,} tokens served"),
        Line(
            "steps",
            f"up to {ready.max_running_requests} requests, {ready.chunked_prefill_size} tokens; "
            f"pages of {ready.page_size}",
        ),
        Line("threads", f"{ready.threads}, {ready.isa}"),
        *([Line("socket", address.permissions())] if address.path else []),
        Line("ready", f"in {ready.load_seconds:.1f} s at {address}"),
    ]


def curl_line(served_name: str, address: Address, *, needs_key: bool = False) -> str:
    """A request to paste into another terminal. A key is printed as a placeholder."""
    body = f'{{"model": "{served_name}", "prompt": "The capital of France is", "max_tokens": 16}}'
    key = "-H 'Authorization: Bearer KEY' " if needs_key else ""
    socket = f"--unix-socket {shlex.quote(str(address.path))} " if address.path else ""
    return f"curl {socket}{address.url}/v1/completions {key}-H 'Content-Type: application/json' -d '{body}'"


def show(ready: wire.Ready, served_name: str, address: Address, *, needs_key: bool = False) -> None:
    """Prints the screen, in colour on a terminal only.

    A standard output that cannot be written does not stop the server.
    """
    lines = banner_lines(ready, served_name, address)
    curl = curl_line(served_name, address, needs_key=needs_key)
    if not sys.stdout.isatty():
        streams.print_line(
            sys.stdout, "\n".join([f"{line.label:<12}{line.text}" for line in lines] + ["", curl])
        )
        return
    try:
        _show_coloured(lines, curl)
    except OSError:
        streams.silence(sys.stdout)


def _show_coloured(lines: list[Line], curl: str) -> None:
    # Imported here: a server that writes to a file or a pipe does not need rich.
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text("Transom", style="bold cyan"))
    for line in lines:
        console.print(Text(f"  {line.label:<12}", style="dim"), Text(line.text), sep="")
    console.print()
    console.print(Text(curl, style="green"))
    console.print(Text("Ctrl-C stops; a second Ctrl-C stops at once.", style="dim"))


def _layers(components: Iterable[wire.ComponentInfo]) -> str:
    return ", ".join(
        f"{part.layers} full layers"
        if part.window is None
        else f"{part.layers} layers of window {part.window}"
        for part in components
    )


def _pool(part: wire.ComponentInfo) -> str:
    if part.shared:
        return f"up to {part.tokens:,} tokens"
    return f"{part.tokens:,} tokens, {_bytes(part.bytes)}"


def _memory(parts: Sequence[wire.ComponentInfo]) -> str:
    """The total size. Components that share one budget each report all of it as their maximum."""
    sizes = [part.bytes for part in parts]
    if all(part.shared for part in parts):
        return f"{_bytes(max(sizes))}, shared by all layers"
    return _bytes(sum(sizes))


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
