"""The colours of each look, the same in terminals and pictures."""

from dataclasses import dataclass
from typing import Final

from transom_lab.story.scene import Look


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours as #rrggbb. An empty one is the default of the screen."""

    ink: str = ""
    ground: str = ""
    weight: str = ""
    """`bold` or `dim`."""


THEME: Final[dict[Look, Paint]] = {
    Look.PLAIN: Paint(),
    Look.STRONG: Paint(weight="bold"),
    Look.FAINT: Paint(weight="dim"),
    Look.OURS: Paint("#3a86c8", weight="bold"),
    Look.THEIRS: Paint("#b07d2b", weight="bold"),
    Look.BAD: Paint("#d23b3b", weight="bold"),
    Look.BLANK: Paint(),
    Look.FREE: Paint("#8b96a3"),
    Look.NOT_YET: Paint("#8b96a3"),
    Look.HOLE: Paint("#8b96a3"),
    Look.TREE: Paint("#1d2b3a", "#9fb8d6"),
    Look.SHARED: Paint("#ffffff", "#2f6db0"),
    Look.WRONG: Paint("#ffffff", "#d23b3b", "bold"),
    Look.A: Paint("#2b1d00", "#e0a13a"),
    Look.B: Paint("#ffffff", "#2f8f62"),
    Look.C: Paint("#ffffff", "#8a63c0"),
    Look.D: Paint("#04262c", "#58b3c4"),
    Look.E: Paint("#ffffff", "#66717d"),
}
