"""How the worker stands, for ``/health`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tideline.pages import Page


@dataclass
class Health:
    """What the worker does at present; written by one thread, read by others."""

    serving: bool = False
    waits_for: str = "starting"
    versions: dict[str, str] = field(default_factory=dict)

    def waiting(self, why: str) -> None:
        """Not serving, for this reason."""
        self.serving, self.waits_for = False, why

    def ready(self) -> None:
        """Workflows and activities are being served."""
        self.serving, self.waits_for = True, ""

    def page(self, query: Mapping[str, str]) -> tuple[bool, Mapping[str, object]]:
        body = {"serving": self.serving, "waits_for": self.waits_for, **self.versions}
        return self.serving, body

    def pages(self) -> dict[str, Page]:
        return {"/health": self.page, "/ready": self.page}
