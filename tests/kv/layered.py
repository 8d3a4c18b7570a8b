"""The fuzzer's layered world, with a cache that can be made to fail at any primitive."""

from tests.kv.world import World

from transom_lab.fuzz import layered
from transom_lab.fuzz.layered import is_enough, latest_start

__all__ = ["LayeredWorld", "is_enough", "latest_start"]


class LayeredWorld(layered.LayeredWorld, World):
    """A layered world with a fuse."""
