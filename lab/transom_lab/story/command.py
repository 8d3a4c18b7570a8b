"""`transom story`: which story, and where to: a screen, a pipe, a picture."""

import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

from transom.errors import ConfigError
from transom_lab.story import cliff, deferred_chunk, locked_full, repair
from transom_lab.story.names import STORIES
from transom_lab.story.scene import Story
from transom_lab.story.svg import picture
from transom_lab.story.terminal import print_frames, step_through

TELLERS: dict[str, Callable[[], Story]] = {
    "deferred-chunk": deferred_chunk.story,
    "locked-full": locked_full.story,
    "cliff": cliff.story,
    "repair": repair.story,
}
assert TELLERS.keys() == STORIES.keys()


def tell(name: str, *, frame: int | None, by_itself: bool, console: Console) -> None:
    """To whoever sits there, step by step; else all frames, or the one asked for, one after the other."""
    story = TELLERS[name]()
    indices = chosen(story, frame)
    if frame is None and console.is_terminal and sys.stdin.isatty() and not console.is_dumb_terminal:
        step_through(story, console, by_itself=by_itself)
    else:
        print_frames(story, indices, console)


def draw(name: str, *, frame: int | None, path: str) -> None:
    """Writes a picture. ConfigError if it cannot be written."""
    story = TELLERS[name]()
    drawn = picture(story, chosen(story, frame))
    try:
        Path(path).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def chosen(story: Story, frame: int | None) -> Sequence[int]:
    """Which frames, by index. ConfigError if there is no such frame, which people count from 1."""
    count = len(story.frames)
    if frame is None:
        return range(count)
    if not 1 <= frame <= count:
        raise ConfigError(f"--frame is {frame}; {story.name} has frames 1 to {count}")
    return [frame - 1]


def screen(*, colors: bool) -> Console:
    """Standard output, in colour where it is a screen that has them."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe that is not UTF-8 gets question marks, not an error
    return Console(no_color=None if colors else True, highlight=False)
