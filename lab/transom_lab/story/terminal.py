"""Shows a story in the terminal: frame by frame for a reader, or all frames in a row for a pipe."""

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
"""How often to check whether the screen was resized."""

WORDS_PER_SECOND = 3.0
SECONDS_MIN = 4.0
HINT = "Enter next   b back   q quit"


def print_frames(story: Story, indices: Iterable[int], console: Console) -> None:
    """Prints frames one after the other. Only a terminal gets escape codes."""
    for number, index in enumerate(indices):
        if number:
            console.print()
        lines = frame_lines(story, index, Space(console.width))
        console.print(painted(lines), soft_wrap=True)


def step_through(story: Story, console: Console, *, by_itself: bool) -> None:
    """Shows one frame at a time, moved by keys. `by_itself` also advances at a reader's pace."""
    index: int | None = 0
    with Keyboard() as keyboard, console.screen() as screen:
        while index is not None:
            screen.update(painted(_filled(story, index, console)))
            wait = reading_seconds(story.frames[index]) if by_itself else None
            move = _next_move(keyboard, console, wait)
            index = moved(index, len(story.frames), move) if move else index


def reading_seconds(frame: Frame) -> float:
    """How long `--play` shows a frame."""
    events = f"{frame.ours.event} {frame.theirs.event}" if isinstance(frame, Beside) else ""
    return max(SECONDS_MIN, len(f"{frame.title} {frame.text} {events}".split()) / WORDS_PER_SECOND)


def painted(lines: Iterable[Line]) -> Text:
    """Lines in colour, which are never wrapped."""
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
    """A frame on a whole screen, with the keys below. All frames of a story begin on the same line."""
    columns, rows = console.size
    space = Space(columns, rows - 1)
    tallest = max(len(frame_lines(story, number, space)) for number in range(len(story.frames)))
    top = max(0, (rows - 1 - tallest) // 3)
    lines = [*[EMPTY] * top, *frame_lines(story, index, space)][: rows - 1]
    below: Line = (Piece(f" {HINT}", Look.FAINT),)
    return [*lines, *[EMPTY] * (rows - 1 - len(lines)), below]


def _next_move(keyboard: Keyboard, console: Console, seconds: float | None) -> Move | None:
    """The move of the next key, or NEXT after `seconds` without a key. No move if the screen was resized."""
    size = console.size
    end = None if seconds is None else time.monotonic() + seconds
    while console.size == size:
        move = KEYS.get(keyboard.key(POLL_SECONDS))
        if move is not None:
            return move
        if end is not None and time.monotonic() > end:
            return Move.NEXT
    return None
