"""`transom story`: the real cache and scheduler, step by step, beside the faults of another engine."""
