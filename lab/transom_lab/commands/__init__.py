"""Commands of the lab. The entry points in lab/pyproject.toml add them to the `transom` command."""
