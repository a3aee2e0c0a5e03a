"""What of a client's requests is still begun when it ends its connection, or has it ended, right
behind them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.unit.gateway.fakes import until
from tests.unit.gateway.gateway_under_test import gateway
from tests.unit.gateway.test_transport import SOME_HANDLED, echo, frame
from tests.unit.kafka.fake_broker import FakeBroker
from tideline.gateway.context import RequestContext, Rule, Rules, always


def noting(began: list[int]) -> Rules:
    """A handler that notes what it begins, and gives no answer."""

    async def handler(ctx: RequestContext) -> None:
        began.append(ctx.header.correlation_id)

    return {SOME_HANDLED: Rule(handler, always)}


@pytest.mark.parametrize("size", [-1, -4, -5, -(2**31), 0, 2**31 - 1])
async def test_a_length_that_is_none_behind_a_handled_request_is_refused_as_any_other(
    size: int,
) -> None:
    """It comes with the same read, so that it may have to wait for the handler."""
    began: list[int] = []
    async with FakeBroker(echo) as broker, gateway(broker, noting(began)) as under_test:
        client = await under_test.connect()
        sent = frame(1, SOME_HANDLED)
        with capture_logs() as logs:
            client.writer.write(
                len(sent).to_bytes(4, "big") + sent + size.to_bytes(4, "big", signed=True)
            )
            await client.disconnected()
            await until(lambda: not list(under_test.connections))
    assert not [line for line in logs if line["log_level"] == "error"], logs
    assert any("bytes: 1 to" in str(line.get("reason")) for line in logs), logs
