"""The pages of the radix tree, read node by node, and the longest hit by brute force.

An oracle for `transom.kv.match`: it shares no formula with it.
"""

from collections.abc import Iterator

import numpy as np

from transom.kv.cache import HybridCache, Namespace
from transom.kv.check import inside
from transom.kv.node import Node
from transom_lab.worlds.mixes import first_key, is_state

Prefix = tuple[int, ...]
PageName = tuple[Namespace, Prefix]
"""The name of a page: its namespace, and all tokens up to the page's end."""


def nodes(cache: HybridCache) -> Iterator[tuple[Namespace, Prefix, Node]]:
    """Every node except roots, with all tokens up to its end."""
    for namespace, root in inside(cache).tree.roots.items():
        ahead: list[tuple[Prefix, Node]] = [((), child) for child in root.children]
        while ahead:
            before, node = ahead.pop()
            prefix = before + tuple(np.frombuffer(node.key, np.int32).tolist())
            yield namespace, prefix, node
            ahead.extend((prefix, child) for child in node.children)


def resident(cache: HybridCache) -> list[set[PageName]]:
    """Per component: the pages that are in the tree."""
    page_size = cache.layout.page_size
    found: list[set[PageName]] = [set() for _ in cache.layout.components]
    for namespace, prefix, node in nodes(cache):
        for component, pages in enumerate(node.pages):
            for index, page in enumerate(pages.tolist()):
                if page:
                    end = len(prefix) - (len(pages) - 1 - index) * page_size
                    found[component].add((namespace, prefix[:end]))
    return found


def known(cache: HybridCache) -> set[PageName]:
    """All pages that the tree has a slot for, resident or not."""
    page_size = cache.layout.page_size
    return {
        (namespace, prefix[:end])
        for namespace, prefix, _ in nodes(cache)
        for end in range(page_size, len(prefix) + 1, page_size)
    }


def longest_hit(cache: HybridCache, namespace: Namespace, tokens: list[int]) -> int:
    """The longest usable prefix: tries every end, every branch of the tree, every key that a query reads."""
    there = resident(cache)
    branches = {prefix for space, prefix in known(cache) if space == namespace}
    for end in range(len(tokens) - 1, 0, -1):
        below = tuple(tokens[:end])
        for branch in branches:
            if branch[:end] == below and _allows(cache, (namespace, branch), end, there):
                return end
    return 0


def _allows(cache: HybridCache, branch: PageName, end: int, there: list[set[PageName]]) -> bool:
    """Whether every key that a query at `end` reads is resident along `branch`."""
    (namespace, prefix), page_size = branch, cache.layout.page_size
    within = end % page_size
    prefix = prefix[: end - within + page_size] if within else prefix[:end]
    for component, kind in enumerate(cache.layout.components):
        if is_state(kind):
            if within or (namespace, prefix) not in there[component]:
                return False
            continue
        for key in range(first_key(kind, end), end):
            page_end = (key // page_size + 1) * page_size
            if (namespace, prefix[:page_end]) not in there[component]:
                return False
        # A hit that ends inside a page copies it. Without the page's first keys the copy is allowed only if
        # no query behind the page's end reads the page.
        is_used = within and first_key(kind, len(prefix)) < len(prefix)
        if is_used and (namespace, prefix) not in there[component]:
            return False
    return True
