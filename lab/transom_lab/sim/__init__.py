"""`transom simulate`: the real scheduler and memory core under any load, in virtual time."""
