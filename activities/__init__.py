"""The activities of a migration: every side effect that its workflows have."""
