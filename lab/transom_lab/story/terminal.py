"""A story in the terminal: step by step where somebody sits, all frames in a row where nobody does."""

import time
from collections.abc import Iterable

from rich.console import Console
from rich.style import Style
from rich.text import Text

from transom_lab.story.keys import KEYS, Keyboard, Move, moved
from transom_lab.story.layout import Space, frame_lines
from transom_lab.story.pieces import EMPTY, Line, Piece
from transom_lab.story.scene import Beside, Frame, Look, Story
from transom_lab.story.theme import THEME

POLL_SECONDS = 0.2
"""How soon a screen that was resized is drawn again."""

WORDS_PER_SECOND = 3.0
SECONDS_MIN = 4.0
HINT = "Enter next   b back   q quit"


def print_frames(story: Story, indices: Iterable[int], console: Console) -> None:
    """One after the other; escape codes only on a screen."""
    for number, index in enumerate(indices):
        if number:
            console.print()
        lines = frame_lines(story, index, Space(console.width))
        console.print(painted(lines), soft_wrap=True)


def step_through(story: Story, console: Console, *, by_itself: bool) -> None:
    """Frame by frame, as keys say; `by_itself` goes on without them, at a reader's pace."""
    index: int | None = 0
    with Keyboard() as keyboard, console.screen() as screen:
        while index is not None:
            screen.update(painted(_filled(story, index, console)))
            wait = reading_seconds(story.frames[index]) if by_itself else None
            move = _next_move(keyboard, console, wait)
            index = moved(index, len(story.frames), move) if move else index


def reading_seconds(frame: Frame) -> float:
    """How long a frame stands that nobody turns."""
    events = f"{frame.ours.event} {frame.theirs.event}" if isinstance(frame, Beside) else ""
    return max(SECONDS_MIN, len(f"{frame.title} {frame.text} {events}".split()) / WORDS_PER_SECOND)


def painted(lines: Iterable[Line]) -> Text:
    """Lines in colour, never to be wrapped."""
    text = Text(no_wrap=True, overflow="crop", end="\n")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for piece in line:
            text.append(piece.text, _style(piece.look))
    return text


def _style(look: Look) -> Style:
    paint = THEME[look]
    return Style(
        color=paint.ink or None,
        bgcolor=paint.ground or None,
        bold=paint.weight == "bold" or None,
        dim=paint.weight == "dim" or None,
    )


def _filled(story: Story, index: int, console: Console) -> list[Line]:
    """A frame on a whole screen: it begins on the same line as all others, and the keys are named below."""
    columns, rows = console.size
    space = Space(columns, rows - 1)
    tallest = max(len(frame_lines(story, number, space)) for number in range(len(story.frames)))
    top = max(0, (rows - 1 - tallest) // 3)
    lines = [*[EMPTY] * top, *frame_lines(story, index, space)][: rows - 1]
    below: Line = (Piece(f" {HINT}", Look.FAINT),)
    return [*lines, *[EMPTY] * (rows - 1 - len(lines)), below]


def _next_move(keyboard: Keyboard, console: Console, seconds: float | None) -> Move | None:
    """What the next key says. None if the screen has changed meanwhile; the next frame when time is over."""
    size = console.size
    end = None if seconds is None else time.monotonic() + seconds
    while console.size == size:
        move = KEYS.get(keyboard.key(POLL_SECONDS))
        if move is not None:
            return move
        if end is not None and time.monotonic() > end:
            return Move.NEXT
    return None
