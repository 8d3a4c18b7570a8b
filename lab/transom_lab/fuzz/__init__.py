"""`transom fuzz-kv`: random operations on the cache, judged by what its pages hold."""
