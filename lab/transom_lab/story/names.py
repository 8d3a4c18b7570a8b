"""The stories by name. `--help` lists them without importing the stories themselves."""

from typing import Final

STORIES: Final = {
    "deferred-chunk": "a prompt chunk that found no pages is cached as computed, and the server crashes",
    "locked-full": "an evicted window is recovered, and a request reads another user's keys",
    "cliff": "one conversation more, and the hit rate falls to nothing",
    "repair": "a prompt whose window was evicted hits again, for a few recomputed tokens",
}
