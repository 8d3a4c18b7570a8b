"""Breaks what streams to a terminal between words, not within them."""

from rich.cells import cell_len

WIDE = 2
"""Cells of a character that a line may end after, as Chinese and Japanese ones are."""


class Wrapper:
    """Owns where the cursor is, on a screen of `width` cells. Mutable.

    Text is shown as it comes. A word that turns out not to fit is taken back and begun on the next line;
    one longer than a line is cut. The last cell stays empty: a cursor behind it is not where it seems.
    """

    def __init__(self, width: int) -> None:
        self._limit = max(1, width - 1)
        self._column = 0
        self._word = ""
        """Since the last place where a line may end."""

    def take(self, piece: str) -> str:
        """What to write for the next piece of text."""
        return "".join([self._shown(character) for character in piece])

    def _shown(self, character: str) -> str:
        if character == "\n":
            return self._begin_line("")
        cells = cell_len(character)
        if self._column + cells <= self._limit:
            return self._place(character, cells)
        if character == " ":
            return self._begin_line("")
        word = self._word if cell_len(self._word) < self._column else ""
        back = f"\x1b[{cell_len(word)}D\x1b[K" if word else ""
        return back + self._begin_line(word) + self._place(character, cells)

    def _begin_line(self, word: str) -> str:
        self._column, self._word = cell_len(word), word
        return "\n" + word

    def _place(self, character: str, cells: int) -> str:
        self._column += cells
        self._word = "" if character.isspace() or cells == WIDE else self._word + character
        return character
