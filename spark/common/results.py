"""Where a job leaves its result beside stdout: a file, or an object of the installation's store."""

from __future__ import annotations

from pathlib import Path

from tideline.errors import TidelineError
from tideline.object_store.client import ObjectStoreClient
from tideline.object_store.runs import SCHEME, bucket_and_key
from tideline.settings import ObjectStoreSettings, load


def write_result(place: str, text: str) -> str | None:
    """Write ``text`` to ``place``, whole or not at all; why it could not be, if it could not."""
    try:
        if place.startswith(SCHEME):
            # Not the job's own settings: they may be what was wrong.
            store = ObjectStoreClient(load(ObjectStoreSettings))
            store.put(*bucket_and_key(place), text.encode())
        else:
            file = Path(place)
            partial = file.with_name(f".{file.name}.partial")
            partial.write_text(text)
            partial.replace(file)
    except (OSError, TidelineError) as error:
        return str(error)
    return None
