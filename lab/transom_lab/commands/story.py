"""`transom story`: its flags."""

import argparse
from typing import Any

from transom.cli.parser import Parser, add_command
from transom_lab.story.names import STORIES

HELP = """\
Watch in the terminal how a cache for full and sliding-window attention works, step by step: our scheduler and
KV cache as they run, next to the faults of another engine. Keys: Enter next frame, b back, q quit.

{stories}
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "story",
        _run,
        help="watch how the cache works, and how other engines failed",
        usage="transom story [STORY] [flags]",
        description=HELP.format(stories=_listed()),
    )
    parser.add_argument("story", nargs="?", metavar="STORY", choices=STORIES, help=" | ".join(STORIES))
    parser.add_argument("--play", action="store_true", help="advance automatically, at reading pace")
    parser.add_argument("--frame", type=int, metavar="N", help="show one frame only, counted from 1")
    parser.add_argument("--no-color", action="store_true", help="no colours, as with NO_COLOR=1")
    parser.add_argument("--svg", metavar="FILE", help="write a picture of all frames, or of --frame N")
    return parser


def _listed() -> str:
    return "\n".join(f"  transom story {name:15} {title}" for name, title in STORIES.items())


def _run(options: argparse.Namespace) -> None:
    if options.story is None:
        print(_listed())
        return
    from transom_lab.story.command import draw, screen, show

    if options.svg is not None:
        draw(options.story, frame=options.frame, path=options.svg)
        return
    console = screen(colors=not options.no_color)
    show(options.story, frame=options.frame, by_itself=options.play, console=console)
