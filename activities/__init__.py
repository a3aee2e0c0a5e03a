"""The activities of a migration: every side effect that its workflows have."""

from tideline import kafka as kafka  # before kio
