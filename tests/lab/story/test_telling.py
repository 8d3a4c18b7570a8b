"""How stories are shown on a terminal, through a pipe, and as a picture."""

import io
import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from transom.cli import main as cli
from transom.errors import ConfigError
from transom_lab.story import terminal
from transom_lab.story.command import STORY_OF, chosen, show
from transom_lab.story.keys import KEYS, Keyboard, Move, moved
from transom_lab.story.layout import Space, frame_lines, width_of
from transom_lab.story.names import STORIES
from transom_lab.story.pieces import words
from transom_lab.story.scene import Look, Story
from transom_lab.story.svg import picture
from transom_lab.story.theme import THEME

DOCS = Path(__file__).parents[3] / "docs"
README_FRAME = 7
KEYS_BELOW = 1


@pytest.fixture(scope="module")
def stories() -> dict[str, Story]:
    return {name: story() for name, story in STORY_OF.items()}


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 50), (80, 60)])
def test_every_frame_fits_the_screen(stories: dict[str, Story], name: str, columns: int, rows: int) -> None:
    for index in range(len(stories[name].frames)):
        lines = frame_lines(stories[name], index, Space(columns, rows - KEYS_BELOW))
        assert len(lines) <= rows - KEYS_BELOW, [words(line) for line in lines]
        assert width_of(lines) <= columns


def test_two_panes_lie_side_by_side_where_there_is_room(stories: dict[str, Story]) -> None:
    for columns, count in ((80, 1), (160, 2)):
        lines = [words(line) for line in frame_lines(stories["locked-full"], 0, Space(columns))]
        assert max(line.count("full    P0") for line in lines) == count


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("columns", [80, 160])
def test_a_pipe_gets_all_frames_as_plain_text(
    stories: dict[str, Story], name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STORY_OF, name, lambda: stories[name])
    file = io.StringIO()
    show(name, frame=None, by_itself=True, console=Console(file=file, width=columns))
    printed = file.getvalue()
    assert printed.replace("\n", "").isprintable(), "no escape codes"
    assert max(map(len, printed.splitlines())) <= columns
    assert all(frame.title in printed for frame in stories[name].frames)


def test_no_color_is_obeyed_on_a_screen_too(stories: dict[str, Story]) -> None:
    shown = []
    for no_color in (None, True):
        file = io.StringIO()
        console = Console(
            file=file, width=80, force_terminal=True, color_system="truecolor", no_color=no_color
        )
        terminal.print_frames(stories["locked-full"], [6], console)
        shown.append(file.getvalue())
    assert "48;2;" in shown[0] and "48;2;" not in shown[1] and "38;2;" not in shown[1]


def test_without_colours_wrong_pages_are_marked(stories: dict[str, Story]) -> None:
    printed = "\n".join(words(line) for line in frame_lines(stories["locked-full"], 6, Space(80)))
    assert "e0!e1!p2!p3!b4" in printed


@pytest.mark.parametrize("name", STORIES)
def test_a_picture_is_well_formed_and_labelled_with_its_titles(stories: dict[str, Story], name: str) -> None:
    story = stories[name]
    drawn = ElementTree.fromstring(picture(story, range(len(story.frames))))
    shown = drawn.attrib["aria-label"]
    assert all(frame.title in shown for frame in story.frames)
    said = " ".join(text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert all(frame.title in said for frame in story.frames)


def test_the_picture_in_the_docs_is_up_to_date(stories: dict[str, Story]) -> None:
    """`make pictures` updates it."""
    drawn = picture(stories["locked-full"], chosen(stories["locked-full"], README_FRAME))
    assert (DOCS / "story-locked-full.svg").read_text() == drawn
    assert len(drawn) < 60_000


def test_every_look_has_a_paint() -> None:
    assert set(THEME) == set(Look)


# ---------------------------------------------------------------- the command


def test_an_unknown_story_is_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["story", "nope"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert all(name in said for name in STORIES)


def test_without_a_name_the_stories_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["story"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in listed] == list(STORIES)


def test_an_unknown_frame_is_answered_with_the_valid_range(stories: dict[str, Story]) -> None:
    for frame in (0, 8, -1):
        with pytest.raises(ConfigError, match="frames 1 to 7"):
            chosen(stories["locked-full"], frame)


def test_a_picture_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["story", "repair", "--svg", str(tmp_path / "nowhere" / "x.svg")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("key", "index", "after"),
    [
        (b"\r", 0, 1),
        (b" ", 1, 2),
        (b"\x1b[C", 1, 2),
        (b"\r", 2, None),
        (b"b", 1, 0),
        (b"b", 0, 0),
        (b"\x1b[D", 2, 1),
        (b"g", 2, 0),
        (b"G", 0, 2),
        (b"q", 1, None),
        (b"\x1b", 1, None),
        (b"\x03", 1, None),
    ],
)
def test_keys_move_through_three_frames(key: bytes, index: int, after: int | None) -> None:
    assert moved(index, 3, KEYS[key]) == after


class Silence(Keyboard):
    """A keyboard on which no key is pressed."""

    def __init__(self) -> None:
        self.polls = 0

    def key(self, seconds: float) -> bytes:
        self.polls += 1
        return b""


def test_a_story_that_plays_by_itself_advances_when_time_is_up() -> None:
    keyboard = Silence()
    assert terminal._next_move(keyboard, Console(width=80, height=24), -1.0) is Move.NEXT
    assert keyboard.polls == 1


def test_a_frame_with_more_text_is_shown_longer(stories: dict[str, Story]) -> None:
    frames = stories["deferred-chunk"].frames
    assert terminal.reading_seconds(frames[5]) < terminal.reading_seconds(frames[6]) < 60


def test_keys_step_forward_and_back_and_quit_on_a_real_terminal() -> None:
    master, slave = pty.openpty()
    code = "import sys; from transom.cli.main import main; sys.exit(main(['story', 'repair']))"
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    heard = ""
    for expected, key in (("repair 1/5", b"\r"), ("repair 2/5", b"b"), ("repair 1/5", b"q")):
        heard = read_until(master, expected)
        os.write(master, key)
    assert process.wait(30) == 0
    assert "\x1b[?1049h" not in heard.split("repair 1/5")[-1], "the screen was entered once"
    os.close(master)


def read_until(file: int, expected: str) -> str:
    """Reads up to `expected` and the key hint behind it. The test's time limit ends a wait for ever."""
    heard = ""
    while "q quit" not in heard.partition(expected)[2]:
        heard += os.read(file, 4096).decode(errors="replace")
    return heard
