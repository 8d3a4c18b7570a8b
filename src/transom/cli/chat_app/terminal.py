"""The terminal loop: reads a line, streams the answer, prints its token counts and speed."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from transom.cli.chat_app.backend import AnswerUsage, Backend, Settings
from transom.cli.chat_app.session import Quit, Say, Session, Show
from transom.cli.chat_app.wrap import Wrapper
from transom.errors import TransomError
from transom.weights.builtin import cache_folder

PROMPT = "> "
MORE = ". "
HISTORY_LINES = 1000


def run_chat(backend: Backend, settings: Settings, system: str) -> None:
    """Runs until the user leaves. Input from a pipe is read to its end, without prompts."""
    console = Console(highlight=False, soft_wrap=True)
    session = Session(backend, system)
    console.print(Text(f"{backend.name}. /help lists commands; Ctrl-D leaves.", style="dim"))
    with _history():
        for line in _lines():
            match session.take(line):
                case Quit():
                    return
                case Show(lines):
                    for shown in lines:
                        console.print(Text(shown, style="cyan"))
                case Say():
                    _answer(console, backend, session, settings)


def _answer(console: Console, backend: Backend, session: Session, settings: Settings) -> None:
    answer = _Answer(Wrapper(console.width) if console.is_terminal else None)
    try:
        with _interrupting(backend):
            for part in backend.answer(session.messages, settings):
                answer.add(part)
    except TransomError as error:
        console.print(Text(str(error), style="red"))
    if answer.text:
        console.print()
        session.add_answer("".join(answer.text))
        console.print(Text(answer.summary(), style="dim"))
    else:
        session.drop_unanswered()


@dataclass(slots=True)
class _Answer:
    """One answer so far. Mutable. Without a wrapper, as for a pipe, the text is printed unchanged."""

    wrapper: Wrapper | None
    text: list[str] = field(default_factory=list)
    usage: AnswerUsage | None = None
    sent_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None

    def add(self, part: str | AnswerUsage) -> None:
        if isinstance(part, AnswerUsage):
            self.usage = part
        elif part:
            if self.first_at is None:
                self.first_at = time.monotonic()
            self.text.append(part)
            # Not through rich: it would read brackets as markup, and flush only at the end of a line.
            sys.stdout.write(self.wrapper.add(part) if self.wrapper else part)
            sys.stdout.flush()

    def summary(self) -> str:
        now = time.monotonic()
        first = self.first_at or now
        latency = f"first token after {first - self.sent_at:.2f} s"
        if self.usage is None:
            return f"interrupted; {latency}"
        speed = self.usage.output / max(now - first, 1e-3)
        return (
            f"{self.usage.output} tokens, {speed:.0f}/s; {latency}; "
            f"{self.usage.cached} of {self.usage.prompt} prompt tokens cached"
        )


def _lines() -> Iterator[str]:
    """The user's inputs. Ctrl-C at the prompt discards the lines typed so far."""
    interactive = sys.stdin.isatty()
    lines: list[str] = []
    while True:
        try:
            line = input((MORE if lines else PROMPT) if interactive else "")
        except EOFError:
            if interactive:
                print()
            if lines:
                yield "\n".join(lines)
            return
        except KeyboardInterrupt:
            print()
            lines = []
            continue
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        yield "\n".join([*lines, line])
        lines = []


@contextmanager
def _interrupting(backend: Backend) -> Iterator[None]:
    """Inside the block, Ctrl-C ends the answer and not the program."""
    before = signal.signal(signal.SIGINT, lambda *_: backend.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _history() -> Iterator[None]:
    """Inside the block, arrow keys recall earlier inputs, also from earlier runs."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python built without it
        yield
        return
    # A missing or unreadable history is no reason not to chat.
    file = cache_folder() / "chat_history"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            _keep_private(file)
            readline.write_history_file(file)


def _keep_private(file: Path) -> None:
    """Creates the history file readable by its owner only: conversations are private."""
    file.touch(mode=0o600, exist_ok=True)
