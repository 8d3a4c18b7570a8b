"""`transom simulate --faults`: random lifetimes of a scheduler, with aborts, failures and floods."""
