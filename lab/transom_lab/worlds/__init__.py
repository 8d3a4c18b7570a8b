"""The cache and scheduler worlds that campaigns, stories and tests share.

`cache_world`      a cache, its requests, and page contents that are checked at every read
`scheduler_world`  a scheduler on such a cache, driven iteration by iteration
`runner`           a runner that computes nothing, checks every read, and fails on demand
`expected`         the tokens that each request must produce
`events`           commands and faults that a campaign or a test injects

The oracles (`mixes`, `residency`, `repair_oracle`) restate in the plainest way which keys a query reads,
which pages the radix tree holds, and how far a repair must go back. They share no formula with `transom.kv`
or `transom.sched`, so that an error there cannot hide here.
"""
