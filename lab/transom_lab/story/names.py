"""The stories by name, so that help can list them without the cost of playing one."""

from typing import Final

STORIES: Final = {
    "deferred-chunk": "a chunk that found no room is filed as computed, and the server dies",
    "locked-full": "a lost window is recovered, and another request reads somebody else's keys",
    "cliff": "one conversation more, and the cache finds nothing any more",
    "repair": "a prompt whose window is gone, for the price of a few tokens",
}
