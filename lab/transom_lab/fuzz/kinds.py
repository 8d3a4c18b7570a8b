"""The mixes of components that are driven, and what a query reads: told without `needed`, to judge it."""

from transom.kv.component_specs import Chunked, ComponentSpec, Full, State, Window

PAGE_SIZES = (1, 3, 4, 16)
WINDOWS = (1, 2, 4, 7, 16)
MIXES = ("F", "W", "FW", "FWV", "WLF", "FS", "FWS", "S", "WS", "C", "FC", "CFW")


def components(mix: str, window: int) -> tuple[ComponentSpec, ...]:
    """`V` is a second window, of another size; `L` one longer than any context. KeyError otherwise."""
    kinds: dict[str, ComponentSpec] = {
        "C": Chunked(2 * window + 1),
        "S": State(min(window, 4)),
        "F": Full(),
        "W": Window(window),
        "V": Window(window + 3, name="wide"),
        "L": Window(1000, name="long"),
    }
    return tuple(kinds[letter] for letter in mix)


def is_state(kind: ComponentSpec) -> bool:
    """Whether it has no keys, but one state that changes with every token."""
    return isinstance(kind, State)


def first_key(kind: ComponentSpec, query: int) -> int:
    """The first position whose key the query at `query` reads, itself included."""
    match kind:
        case Full():
            return 0
        case Window(window=width):
            return max(0, query - width + 1)
        case Chunked(chunk=chunk):
            return query // chunk * chunk
    raise AssertionError(f"say what a query reads of {kind}")


def keeps_everything(kind: ComponentSpec, context: int) -> bool:
    """Whether a request of that length never lets go of anything."""
    return not is_state(kind) and first_key(kind, context) == 0
