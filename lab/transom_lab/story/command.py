"""`transom story`: plays a story to a terminal, a pipe or a picture."""

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

STORY_OF: dict[str, Callable[[], Story]] = {
    "deferred-chunk": deferred_chunk.story,
    "locked-full": locked_full.story,
    "cliff": cliff.story,
    "repair": repair.story,
}
assert STORY_OF.keys() == STORIES.keys()


def show(name: str, *, frame: int | None, by_itself: bool, console: Console) -> None:
    """Steps through a story on an interactive terminal; prints all frames, or the given one, elsewhere."""
    story = STORY_OF[name]()
    indices = chosen(story, frame)
    if frame is None and console.is_terminal and sys.stdin.isatty() and not console.is_dumb_terminal:
        step_through(story, console, by_itself=by_itself)
    else:
        print_frames(story, indices, console)


def draw(name: str, *, frame: int | None, path: str) -> None:
    """Writes an SVG picture. ConfigError if the file cannot be written."""
    story = STORY_OF[name]()
    drawn = picture(story, chosen(story, frame))
    try:
        Path(path).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def chosen(story: Story, frame: int | None) -> Sequence[int]:
    """Indices of the frames to show. `frame` counts from 1. ConfigError if the story has no such frame."""
    count = len(story.frames)
    if frame is None:
        return range(count)
    if not 1 <= frame <= count:
        raise ConfigError(f"--frame is {frame}; {story.name} has frames 1 to {count}")
    return [frame - 1]


def screen(*, colors: bool) -> Console:
    """Standard output, in colour if it is a terminal with colours."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe that is not UTF-8 gets question marks, not an error
    return Console(no_color=None if colors else True, highlight=False)
