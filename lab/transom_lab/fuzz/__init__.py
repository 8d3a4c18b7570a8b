"""`transom fuzz-kv`: the memory core under random operations, judged by what its pages hold."""
