from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command sets up the process's logs for itself."""
    yield
    structlog.reset_defaults()
