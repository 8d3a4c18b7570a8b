"""Taking pages back from the tree: under pressure, and from roots that nothing will ever hit again."""

import numpy as np

from transom.kv.tree import Node, PrefixTree, Root


def reclaim(tree: PrefixTree, component: int, count: int) -> None:
    """Frees `count` pages of `component`, in the order of its victims. They must be unreferenced in the tree.

    Rooted components give the tails of leaves, and with them what else lies there. A window gives the
    earliest pages of a node first: its end is the boundary that a later request hits.
    """
    pool = tree.pools[component]
    assert count <= pool.idle, (pool.name, count, pool.idle)
    goal = pool.free + count
    while pool.free < goal:
        node = tree.victim(component)
        taken = _take_tail if tree.rooted[component] else _take_anywhere
        if not taken(tree, component, node, goal - pool.free):
            # Somebody reads all of it. Looked at once per round of the order, not at every reclaim.
            tree.pass_over(node, component)


def purge(tree: PrefixTree, root: Root) -> None:
    """Gives back all that no row reads below `root`."""
    assert root.parent is None, root
    for node in _deepest_first(root):
        for component in range(len(tree.pools)):
            if not tree.rooted[component]:
                _take_anywhere(tree, component, node, node.size)
        stem = next((c for c, rooted in enumerate(tree.rooted) if rooted), None)
        if stem is not None:
            _take_tail(tree, stem, node, node.size)


def _take_tail(tree: PrefixTree, component: int, node: Node, most: int) -> int:
    """References never grow along a path, so the unreferenced pages of a node are its last."""
    count = min(most, tree.pools[component].unreferenced(node.pages[component]))
    if count:
        assert not node.children, (node, "a leaf comes before what it hangs from")
        tree.cut(node, count)
    return count


def _take_anywhere(tree: PrefixTree, component: int, node: Node, most: int) -> int:
    entries = node.pages[component]
    idle = (entries != 0) & (tree.pools[component].references(entries) == 0)
    index = np.flatnonzero(idle)[:most]
    if len(index):
        tree.vacate(node, component, index)
        tree.trim(node)
    return len(index)


def _deepest_first(root: Root) -> list[Node]:
    found: list[Node] = []
    ahead = list(root.children.values())
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(node.children.values())
    return found[::-1]
