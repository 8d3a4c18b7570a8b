"""Reads tool calls from the text of an output, as it arrives.

However a text is split, it gives the same pieces, except that neighbours of a kind are not joined.
"""

import json
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from transom.text.tools import ARGS, ToolFormat

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")


class Content(NamedTuple):
    """Text that is not part of a call."""

    text: str


class CallBegun(NamedTuple):
    """The call with this number, from 0, is of this function. Its arguments follow."""

    number: int
    name: str


class Arguments(NamedTuple):
    """More of the JSON text of a call's arguments."""

    number: int
    text: str


Piece = Content | CallBegun | Arguments


class _State(Enum):
    START = auto()
    """Of a format without a marker: nothing but whitespace and openers so far."""
    TEXT = auto()
    """Content, in which a marker may follow."""
    NAME = auto()
    """The name before `[ARGS]`."""
    SEEK = auto()
    """Before a call."""
    CALL = auto()
    AFTER = auto()
    """Behind a call."""


class CallParser:
    """Splits one output into content and calls. Mutable: it owns the text that it cannot decide about yet.

    `names` are the tools of the request. A format without a marker takes an object for a call only if it
    names one of them. With `parallel` off, calls after the first are left out.
    """

    def __init__(self, form: ToolFormat, names: frozenset[str], *, parallel: bool = True) -> None:
        self._form = form
        self._names = names
        self._parallel = parallel
        self._rest = ""
        self._state = _State.TEXT if form.marker else _State.START
        self._reader = _CallReader()
        self._trial = ""
        """Of a format without a marker: an object that is not known to be a call yet."""
        self.calls = 0

    def feed(self, text: str) -> list[Piece]:
        self._rest += text
        return list(self._run(final=False))

    def finish(self) -> list[Piece]:
        """The pieces that were held back, at the end of the output."""
        return list(self._run(final=True))

    def _run(self, *, final: bool) -> Iterator[Piece]:
        while True:
            before = (self._state, len(self._rest))
            yield from self._step(final)
            if (self._state, len(self._rest)) == before:
                return

    def _step(self, final: bool) -> Iterator[Piece]:
        match self._state:
            case _State.START:
                yield from self._start(final)
            case _State.TEXT:
                yield from self._content(final)
            case _State.SEEK:
                yield from self._seek(final)
            case _State.NAME:
                yield from self._name()
            case _State.CALL:
                yield from self._call(final)
            case _State.AFTER:
                yield from self._after(final)

    # ------------------------------------------------------------ between calls

    def _start(self, final: bool) -> Iterator[Piece]:
        yield from ()
        found = self._rest.lstrip()
        opener = max((one for one in self._form.openers if found.startswith(one)), key=len, default="")
        undecided = any(one.startswith(found) for one in self._form.openers)
        if undecided and not final:
            return
        found = found.removeprefix(opener).lstrip()
        if found.startswith("{"):
            self._rest, self._trial = found, self._rest[: len(self._rest) - len(found)]
            self._begin()
        elif found or final:
            self._state = _State.TEXT

    def _content(self, final: bool) -> Iterator[Piece]:
        """Content up to the next marker. Whitespace before a marker is not part of it."""
        marker = self._form.marker
        before, found, after = self._rest.partition(marker) if marker else (self._rest, "", "")
        if found:
            self._rest = after
            self._state = _State.NAME if ARGS in self._form.call else _State.SEEK
            before = before.rstrip()
        else:
            kept = 0 if final or not marker else _undecided(self._rest, marker)
            before = self._rest[: len(self._rest) - kept]
            self._rest = self._rest[len(before) :]
        if before:
            yield Content(before)

    def _seek(self, final: bool) -> Iterator[Piece]:
        """Behind a marker: the next character that is not whitespace or a bracket begins a call."""
        yield from ()
        self._rest = self._rest.lstrip(" \t\r\n[,")
        if self._rest.startswith("{"):
            self._begin()
        elif self._rest:
            self._state = _State.TEXT

    def _name(self) -> Iterator[Piece]:
        name, found, after = self._rest.partition(ARGS)
        if found:
            self._rest = after.lstrip()
            self._begin()
            yield from self._begun(name.strip())
            self._reader.begin_arguments()

    def _after(self, final: bool) -> Iterator[Piece]:
        """Behind a call: its closing, a separator, the next call, or content."""
        yield from ()
        self._rest = self._rest.lstrip()
        closing = self._form.closing or ("```" if not self._form.marker else "")
        if closing and self._rest.startswith(closing):
            self._rest = self._rest[len(closing) :]
        elif closing and closing.startswith(self._rest) and not final:
            return
        elif not self._form.marker:
            self._rest = self._rest.lstrip("; \t\r\n")
            if self._rest.startswith("{"):
                self._trial = ""
                self._begin()
            elif self._rest:
                self._state = _State.TEXT
        elif self._form.begin:
            if self._rest.startswith(","):
                self._state = _State.SEEK
            elif self._rest:
                self._rest = self._rest.removeprefix(self._form.end)
                self._state = _State.TEXT
        elif self._rest:
            self._state = _State.TEXT

    # ------------------------------------------------------------ in a call

    def _begin(self) -> None:
        self._state, self._reader = _State.CALL, _CallReader()

    @property
    def _is_wanted(self) -> bool:
        """Whether the current call, the last that was begun, is delivered."""
        return self._parallel or self.calls == 1

    def _begun(self, name: str) -> Iterator[Piece]:
        self._trial = ""
        self.calls += 1
        if self._is_wanted:
            yield CallBegun(self.calls - 1, name)

    def _call(self, final: bool) -> Iterator[Piece]:
        reader, tentative = self._reader, not self._form.marker
        was_named = reader.name is not None
        used, text = reader.read(self._rest)
        if tentative and not was_named:
            self._trial += self._rest[:used]
        self._rest = self._rest[used:]
        if not was_named and reader.name is not None:
            if tentative and reader.name not in self._names:
                yield from self._not_a_call()
                return
            yield from self._begun(reader.name)
        if text and reader.name is not None and self._is_wanted:
            yield Arguments(self.calls - 1, text)
        if reader.is_complete or (final and reader.name is None):
            if reader.name is None:
                yield from self._not_a_call()
            else:
                if self._is_wanted and not reader.has_arguments:
                    yield Arguments(self.calls - 1, "{}")
                self._state = _State.AFTER

    def _not_a_call(self) -> Iterator[Piece]:
        """An object that names no tool is content, and so is all that follows."""
        if self._trial:
            yield Content(self._trial)
        self._trial, self._state = "", _State.TEXT


def _undecided(text: str, marker: str) -> int:
    """Length of the end of a text that may turn out to be a marker, or whitespace before one."""
    longest = next(
        (n for n in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-n:])), 0
    )
    before = text[: len(text) - longest]
    return longest + len(before) - len(before.rstrip())


class _CallReader:
    """Reads the object of one call, character by character. Mutable.

    The text of the arguments is released as it arrives, once the name is known. It is the model's own text,
    which is not parsed; an object in place of a string of JSON is what all formats have.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_complete = False
        self.has_arguments = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: str | None = None
        self._value: str | None = None
        """The characters of the key or value at depth 1 so far; None between them."""
        self._early = ""
        """Arguments that arrived before the name."""
        self._bare = False
        self._spaces = ""
        """Whitespace in the arguments: dropped if nothing of them follows."""

    def begin_arguments(self) -> None:
        """The object itself is the arguments; the name is known."""
        self._bare, self.has_arguments, self.name = True, True, ""

    def read(self, text: str) -> tuple[int, str]:
        """How many characters belong to the call, and the new text of its arguments."""
        released = []
        for number, character in enumerate(text):
            released.append(self._bare_character(character) if self._bare else self._character(character))
            if self.is_complete:
                return number + 1, "".join(released)
        return len(text), "".join(released)

    def _bare_character(self, character: str) -> str:
        self._nest(character)
        self.is_complete = self._depth == 0 and not self._in_string
        return character

    def _nest(self, character: str) -> None:
        """Follows strings and brackets."""
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _character(self, character: str) -> str:
        ends = not self._in_string and (
            (self._depth == 1 and character in ",}")
            or (self._depth == 1 and character == ":" and self._key is None)
        )
        opens = self._depth == 0
        self._nest(character)
        if ends:
            released = self._end(character)
            self.is_complete = self._depth == 0
            return released
        if opens:
            return ""
        return self._add(character)

    def _add(self, character: str) -> str:
        """A character of a key or of a value."""
        if self._key not in ARGUMENT_KEYS:
            self._value = (self._value or "") + character
            return ""
        if character.isspace() and not self._in_string:
            self._spaces += character if self.has_arguments else ""
            return ""
        self.has_arguments = True
        released, self._spaces = self._spaces + character, ""
        if self.name is None:
            self._early += released
            return ""
        return released

    def _end(self, character: str) -> str:
        """The end of a key or of a value."""
        if character == ":":
            self._key, self._value = _string(self._value), None
            return ""
        released = ""
        if self._key in NAME_KEYS:
            self.name = _string(self._value) or None
            if self.name is not None:
                released, self._early = self._early, ""
        self._key, self._value, self._spaces = None, None, ""
        return released


def _string(text: str | None) -> str:
    """The value of a JSON string; empty if it is none."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
