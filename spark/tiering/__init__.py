"""WAL objects become split files, split files become tiered segments."""
