"""What the gateway tells Prometheus about its connections."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

CONNECTIONS = Gauge("inkless_gateway_connections", "open client connections")
CONNECTIONS_REFUSED = Counter(
    "inkless_gateway_connections_refused", "connections beyond the bound, closed at once"
)
BROKER_UP = Gauge("inkless_gateway_broker_up", "1 while the paired broker answers")

_REQUESTS = Counter("inkless_gateway_requests", "requests of clients", ["path"])
REQUESTS_PASSED = _REQUESTS.labels("passed")
"""Forwarded as they came."""
REQUESTS_HANDLED = _REQUESTS.labels("handled")
"""Looked into by a handler."""
