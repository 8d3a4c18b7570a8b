"""Breaks streamed text between words at the width of the terminal."""

from rich.cells import cell_len

WIDE = 2
"""Terminal cells of a wide character, as in Chinese and Japanese. A line may break after each of them."""


class Wrapper:
    """Tracks the cursor on a screen of `width` cells. Mutable.

    Text is shown as it arrives. A word that turns out not to fit is erased and repeated on the next line; a
    word longer than a line is split. The last cell stays empty, because terminals disagree on the position of
    the cursor behind it.
    """

    def __init__(self, width: int) -> None:
        self._limit = max(1, width - 1)
        self._column = 0
        self._word = ""
        """Text since the last position where a line may break."""

    def add(self, text: str) -> str:
        """The output for the next part of the text, control sequences included."""
        return "".join([self._output(character) for character in text])

    def _output(self, character: str) -> str:
        if character == "\n":
            return self._begin_line("")
        cells = cell_len(character)
        if self._column + cells <= self._limit:
            return self._place(character, cells)
        if character == " ":
            # A space that does not fit is replaced by the line break.
            return self._begin_line("")
        # A word that fills the whole line is not moved: it would not fit on the next line either.
        word = self._word if cell_len(self._word) < self._column else ""
        # Move the cursor back to the start of the word, and erase to the end of the line.
        back = f"\x1b[{cell_len(word)}D\x1b[K" if word else ""
        return back + self._begin_line(word) + self._place(character, cells)

    def _begin_line(self, word: str) -> str:
        self._column, self._word = cell_len(word), word
        return "\n" + word

    def _place(self, character: str, cells: int) -> str:
        self._column += cells
        self._word = "" if character.isspace() or cells == WIDE else self._word + character
        return character
