"""The wire protocol of Kafka, and what is asked of brokers in it."""

import sys

# Where hypothesis is installed, kio imports it for strategies that tests may ask for: half a second
# of a core of each process that speaks the protocol.
if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
