"""The mixes of components that worlds are built from, and the keys that a query of each reads.

`first_key` restates the attention rules without `ComponentSpec.needed`, because it judges code that uses it.
"""

from transom.kv.component_specs import Chunked, ComponentSpec, Full, State, Window

PAGE_SIZES = (1, 3, 4, 16)
WINDOWS = (1, 2, 4, 7, 16)
MIXES = ("F", "W", "FW", "FWV", "WLF", "FS", "FWS", "S", "WS", "C", "FC", "CFW")


def components(mix: str, window: int) -> tuple[ComponentSpec, ...]:
    """One component per letter. KeyError names an unknown letter.

    F full attention; W window; V a second window of another size; L a window longer than any context;
    C chunked attention; S recurrent state.
    """
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
    """Whether the component has no keys, but one state that changes with every token."""
    return isinstance(kind, State)


def first_key(kind: ComponentSpec, query: int) -> int:
    """The first position that the query at `query` reads. The last one is `query` itself."""
    match kind:
        case Full():
            return 0
        case Window(window=width):
            return max(0, query - width + 1)
        case Chunked(chunk=chunk):
            return query // chunk * chunk
    raise AssertionError(f"first_key has no case for {kind}")


def keeps_everything(kind: ComponentSpec, context: int) -> bool:
    """Whether a request of `context` tokens never frees a page of this component before it ends."""
    return not is_state(kind) and first_key(kind, context) == 0
