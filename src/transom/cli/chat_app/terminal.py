"""The loop at the terminal: read a line, stream an answer, say what it took."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from transom.cli.chat_app.partner import Partner, Spent, Style
from transom.cli.chat_app.session import Quit, Say, Session, Show
from transom.cli.chat_app.wrap import Wrapper
from transom.errors import TransomError
from transom.weights.builtin import cache_folder

PROMPT = "> "
MORE = ". "
HISTORY_LINES = 1000


def talk(partner: Partner, style: Style, system: str) -> None:
    """Until the user leaves. Input that is not a terminal's is read to its end, without prompts."""
    console = Console(highlight=False, soft_wrap=True)
    session = Session(partner, system)
    console.print(Text(f"{partner.name}. /help lists commands; Ctrl-D leaves.", style="dim"))
    with _history():
        for line in _lines():
            match session.take(line):
                case Quit():
                    return
                case Show(lines):
                    for shown in lines:
                        console.print(Text(shown, style="cyan"))
                case Say():
                    _answer(console, partner, session, style)


def _answer(console: Console, partner: Partner, session: Session, style: Style) -> None:
    heard = _Heard(Wrapper(console.width) if console.is_terminal else None)
    try:
        with _interrupts(partner):
            for piece in partner.answer(session.messages, style):
                heard.take(piece)
    except TransomError as error:
        console.print(Text(str(error), style="red"))
    if heard.text:
        console.print()
        session.answered("".join(heard.text))
        console.print(Text(heard.summary(), style="dim"))
    else:
        session.unanswered()


@dataclass(slots=True)
class _Heard:
    """One answer so far. Mutable. A pipe gets the text as it is."""

    wrapper: Wrapper | None
    text: list[str] = field(default_factory=list)
    spent: Spent | None = None
    asked_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None

    def take(self, piece: str | Spent) -> None:
        if isinstance(piece, Spent):
            self.spent = piece
        elif piece:
            if self.first_at is None:
                self.first_at = time.monotonic()
            self.text.append(piece)
            # Not through rich: an answer's brackets are no markup, and it flushes per line.
            sys.stdout.write(self.wrapper.take(piece) if self.wrapper else piece)
            sys.stdout.flush()

    def summary(self) -> str:
        now = time.monotonic()
        first = self.first_at or now
        waited = f"first word after {first - self.asked_at:.2f} s"
        if self.spent is None:
            return f"interrupted; {waited}"
        speed = self.spent.output / max(now - first, 1e-3)
        return (
            f"{self.spent.output} tokens, {speed:.0f}/s; {waited}; "
            f"{self.spent.cached} of {self.spent.prompt} prompt tokens reused"
        )


def _lines() -> Iterator[str]:
    """The user's inputs. Ctrl-C at the prompt drops what was typed."""
    interactive = sys.stdin.isatty()
    kept: list[str] = []
    while True:
        try:
            line = input((MORE if kept else PROMPT) if interactive else "")
        except EOFError:
            if interactive:
                print()
            if kept:
                yield "\n".join(kept)
            return
        except KeyboardInterrupt:
            print()
            kept = []
            continue
        if line.endswith("\\"):
            kept.append(line[:-1])
            continue
        yield "\n".join([*kept, line])
        kept = []


@contextmanager
def _interrupts(partner: Partner) -> Iterator[None]:
    """Within, Ctrl-C ends the answer and nothing else."""
    before = signal.signal(signal.SIGINT, lambda *_: partner.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _history() -> Iterator[None]:
    """Arrow keys find what was typed, today and before."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python built without it
        yield
        return
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
    """What one says to a model is nobody else's business."""
    file.touch(mode=0o600, exist_ok=True)
