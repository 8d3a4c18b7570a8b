"""What `needed(end)` of a component means in pages. Everything a kind decides is derived here, once."""

from dataclasses import dataclass

from transom.errors import ConfigError
from transom.values import ComponentSpec, From


def first_needed(component: ComponentSpec, end: int) -> int:
    """The first position that must be resident to compute the token at `end`; `end` itself if none."""
    need = component.needed(end)
    if not isinstance(need, From):
        raise ConfigError(f"{component.name}: components kept as snapshots are not supported")
    assert 0 <= need.start <= end, (component, end, need)
    return need.start


def is_rooted(component: ComponentSpec, context: int) -> bool:
    """Whether a request never lets go of anything: its pages are of use from the root on, without a hole.

    Full attention is; so is a window as long as the context.
    """
    return first_needed(component, context) == 0


def reads_before(component: ComponentSpec, context: int) -> bool:
    """Whether every position reads the one before it, so no hit ends in a hole: all but a window of 1."""
    return all(first_needed(component, end) < end for end in range(1, context + 1))


@dataclass(frozen=True, slots=True)
class Grid:
    """One component on pages of `page_size` tokens; `rooted` and `reads_before` as the functions above."""

    component: ComponentSpec
    page_size: int
    rooted: bool = False
    reads_before: bool = False

    def floor(self, tokens: int) -> int:
        """Whole pages in `tokens` tokens."""
        return tokens // self.page_size

    def ceil(self, tokens: int) -> int:
        """Pages that `tokens` tokens touch."""
        return -(-tokens // self.page_size)

    def needed(self, end: int) -> int:
        """The first page that a hit at `end` reads; `ceil(end)` if it reads none.

            needed(end)            end
        --------|===================|----
        """
        start = first_needed(self.component, end)
        return self.ceil(end) if start == end else start // self.page_size

    def keep(self, end: int) -> int:
        """The first page that a request keeps once it has computed `end` tokens.

        The window of the last page boundary, not of the last token: else one position in page_size would
        strand the boundary that a retracted request comes back to.
        """
        assert end >= 0, end
        boundary = end - end % self.page_size
        return first_needed(self.component, boundary) // self.page_size
