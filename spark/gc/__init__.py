"""What nothing refers to any more goes, after a grace."""
