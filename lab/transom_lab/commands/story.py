"""`transom story`."""

import argparse
from typing import Any

from transom.cli.parser import Parser, add_command
from transom_lab.story.names import STORIES

HELP = """\
What a cache for two kinds of attention is about, played in the terminal: our memory core and scheduler
as they run, beside what another engine did. Enter goes on, b back, q out.

{stories}
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "story",
        _run,
        help="see how the cache works, and how others broke",
        usage="transom story [STORY] [flags]",
        description=HELP.format(stories=_listed()),
    )
    parser.add_argument("story", nargs="?", metavar="STORY", choices=STORIES, help=" | ".join(STORIES))
    parser.add_argument("--play", action="store_true", help="go on by itself, at a reader's pace")
    parser.add_argument("--frame", type=int, metavar="N", help="one frame only, from 1")
    parser.add_argument("--no-color", action="store_true", help="no colours; NO_COLOR=1 says the same")
    parser.add_argument("--svg", metavar="FILE", help="write a picture instead: all frames, or --frame N")
    return parser


def _listed() -> str:
    return "\n".join(f"  transom story {name:15} {what}" for name, what in STORIES.items())


def _run(options: argparse.Namespace) -> None:
    if options.story is None:
        print(_listed())
        return
    from transom_lab.story.command import draw, screen, tell

    if options.svg is not None:
        draw(options.story, frame=options.frame, path=options.svg)
        return
    console = screen(colors=not options.no_color)
    tell(options.story, frame=options.frame, by_itself=options.play, console=console)
