"""The mixes of components that are driven, and what a query reads: told without `needed`, to judge it."""

from transom.values import ComponentSpec, Full, Window

PAGE_SIZES = (1, 3, 4, 16)
WINDOWS = (1, 2, 4, 7, 16)
MIXES = ("F", "W", "FW", "FWV", "WLF")


def components(mix: str, window: int) -> tuple[Full | Window, ...]:
    """`V` is a second window, of another size; `L` one longer than any context. KeyError otherwise."""
    kinds: dict[str, Full | Window] = {
        "F": Full(),
        "W": Window(window),
        "V": Window(window + 3, name="wide"),
        "L": Window(1000, name="long"),
    }
    return tuple(kinds[letter] for letter in mix)


def first_key(kind: ComponentSpec, query: int) -> int:
    """The first position whose key the query at `query` reads, itself included."""
    match kind:
        case Full():
            return 0
        case Window(window=width):
            return max(0, query - width + 1)
    raise AssertionError(f"say what a query reads of {kind}")
