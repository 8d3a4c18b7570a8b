"""Commands that join `transom` through the entry point groups `transom.commands` and `transom.bench`."""
