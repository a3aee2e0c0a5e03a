"""What a gateway has seen of Postgres' history, over its restarts.

Beside the fleet's position in the bucket, which may be some seconds older, and may be another's by
mistake.
"""

from __future__ import annotations

import json
from pathlib import Path

from tideline.domain.history import ServerIdentity, from_document, to_document
from tideline.errors import UsageError
from tideline.gateway.tracking.durable_file import replace_durably

FILE_NAME = "history.json"


class SeenFile:
    """``history.json`` in the state directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def read(self) -> ServerIdentity | None:
        """``None`` if none was ever written. Raises :class:`UsageError` for anything else."""
        try:
            return from_document(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{self.path} is damaged ({error!r}): remove it, the bucket has the fleet's"
            ) from error

    def write(self, seen: ServerIdentity) -> None:
        """Durable when it returns. Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, json.dumps(to_document(seen)))

    def forget(self) -> None:
        """An operator has begun a new history."""
        self.path.unlink(missing_ok=True)
