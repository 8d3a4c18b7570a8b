"""`transom simulate --faults`: random lives of a scheduler, with aborts, failures and floods."""
