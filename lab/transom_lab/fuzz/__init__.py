"""`transom fuzz-kv`: random operations on the cache, judged by the contents of its pages."""
