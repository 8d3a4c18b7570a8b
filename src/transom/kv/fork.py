"""A second request at the position of a first: whole pages are shared, only partly filled ones are copied."""

from transom.kv.holding import Holding
from transom.kv.page_rules import PageRule
from transom.kv.page_table import PageTable
from transom.kv.pool import PagePool, present
from transom.steps import PageCopy
from transom.values import RequestId


def private_entries(
    tables: tuple[PageTable, ...], rules: tuple[PageRule, ...], holding: Holding
) -> list[list[int]]:
    """Per component: entries of the row that are the request's own and hold something it has computed."""
    private = []
    # Pages beyond `computed` hold nothing yet, so the child allocates its own when it grows.
    for table, rule, kept in zip(tables, rules, holding.kept, strict=True):
        last = rule.entries(holding.computed)
        first = min(max(rule.shared(holding), kept), last)
        pages = table.read(holding.row, first, last).tolist()
        private.append([first + index for index, page in enumerate(pages) if page])
    return private


def begin_fork(holding: Holding, request: RequestId, row: int, tokens: int) -> Holding:
    """The child's holding in `row`: not seated yet, nothing referenced."""
    return Holding(
        request=request,
        row=row,
        namespace=holding.namespace,
        start=holding.start,
        computed=holding.computed,
        # Pages that the parent has beyond `computed` are for its own next tokens.
        allocated=holding.computed,
        published=holding.published,
        kept=holding.kept,
        prompt=tokens,  # from here on, the outputs differ
        priority=holding.priority,
        exact=holding.exact,
        full_until=holding.full_until,
        clip=holding.clip,
    )


def share_pages(
    tables: tuple[PageTable, ...],
    pools: tuple[PagePool, ...],
    rules: tuple[PageRule, ...],
    holding: Holding,
    child: Holding,
) -> None:
    """The child's row names, and references, the pages of the tree that the parent's row names."""
    assert child.row != holding.row and child.namespace == holding.namespace, (holding, child)
    for table, pool, rule, kept in zip(tables, pools, rules, holding.kept, strict=True):
        end = rule.shared(holding)
        if kept < end:
            pages = table.read(holding.row, kept, end)
            pool.reference(present(pages))
            table.write(child.row, kept, pages)


def copy_of(
    table: PageTable, rule: PageRule, component: int, holding: Holding, child: Holding, entry: int
) -> PageCopy:
    """Copies the computed slots of the parent's page at `entry` into the child's."""
    source, target = int(table.table[holding.row, entry]), int(table.table[child.row, entry])
    assert source and target, (holding, component, entry)
    return PageCopy(component, source, target, rule.slots(entry, holding.computed))
