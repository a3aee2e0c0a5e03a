"""``python -m tideline.gateway``: one gateway beside one broker, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from tideline import pages
from tideline.background import Watch, cancel_and_wait, done_before, keep, spawn, watching
from tideline.control_plane import ControlPlane, connect
from tideline.control_plane.connections import check_connections
from tideline.domain.history import HistoryWatch
from tideline.domain.stand_in import as_registered
from tideline.errors import ExitCode, TidelineError
from tideline.gateway.allocator import keep_freed_memory, keep_what_is_loaded, note_memory
from tideline.gateway.assembly import build_parts, build_rules, placing_of
from tideline.gateway.beliefs import beliefs
from tideline.gateway.context import ConnectionRegistry
from tideline.gateway.event_loop import run
from tideline.gateway.messages import preload
from tideline.gateway.metrics import STORE_DIRECT
from tideline.gateway.paired_broker import why_unfit
from tideline.gateway.passing import WhatPasses
from tideline.gateway.stand_ins import StandIns
from tideline.gateway.standing import Standing
from tideline.gateway.tracking.presence import Presence
from tideline.gateway.tracking.state_directory import StateDirectory
from tideline.gateway.transactions import OpenTransactions
from tideline.gateway.transport.addresses import NodeAddresses
from tideline.gateway.transport.server import GatewayServer
from tideline.kafka.client import KafkaCluster
from tideline.kafka.security import KafkaSecurity
from tideline.kafka.wire import library
from tideline.object_store.async_store import S3ObjectStore
from tideline.object_store.client import GATEWAY, ObjectStoreClient
from tideline.observability import configure_logging
from tideline.ownership import establish
from tideline.settings import GatewaySettings, load

BROKER_TIMEOUT_MS = 5_000
ENDS_WITHIN_S = 60.0
"""From when it begins to end, and a lease, of which it waits a part: twice what its parts may take.
One that hangs would neither serve nor be started anew."""
log = structlog.get_logger()


async def serve(
    settings: GatewaySettings,
    directory: StateDirectory,
    standing: Standing,
    ends: Callable[[], None] = lambda: None,
) -> None:
    """Run one gateway until a signal stops it. Listens once it is known what is tracked. ``ends``
    is called when it begins to end.

    Raises :class:`tideline.background.BackgroundTaskEnded` if something that it cannot do without
    has ended.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with watching() as watch:
        turning = keep(standing.turn(), "standing")
        try:
            await _serve(settings, directory, stop, watch, standing, ends)
        finally:
            await cancel_and_wait(turning)


async def _serve(
    settings: GatewaySettings,
    directory: StateDirectory,
    stop: asyncio.Event,
    watch: Watch,
    standing: Standing,
    ends: Callable[[], None],
) -> None:
    history = HistoryWatch()
    async with (
        connect(
            settings,
            application_name=f"tideline-gateway-{settings.gateway_id}",
            in_lanes=True,
            history=history,
            at_once=True,
        ) as plane,
        S3ObjectStore(settings) as store,
        KafkaCluster(
            [settings.gateway_broker],
            client_id=f"tideline-gateway-{settings.gateway_id}",
            timeout_ms=BROKER_TIMEOUT_MS,
            max_frame_bytes=settings.gateway_max_answer_bytes,
            security=KafkaSecurity.of(settings),
        ) as cluster,
        AsyncExitStack() as closing,
    ):
        try:
            STORE_DIRECT.set_function(store.is_direct)
            connections = ConnectionRegistry()
            parts = build_parts(
                settings,
                plane,
                store,
                cluster,
                connections,
                directory=directory,
                history=history,
                establish=partial(_establish, settings, plane, cluster, history),
            )
            rules = build_rules(
                parts,
                plane,
                cluster,
                OpenTransactions(cluster),
                patience_s=settings.produce_timeout_ms / 1000,
                placing=placing_of(settings, cluster),
                trigger=settings.gateway_trigger,
            )
            peers = parts.leaders.peers
            presence = Presence(parts.lease, peers, settings.gateway_broker_id)
            nodes = NodeAddresses(
                settings.gateway_peers,
                settings.gateway_broker_id,
                stood_in_for=bool(settings.gateway_stand_in),
            )
            passing = WhatPasses(parts.tracking, parts.quotas)
            server = GatewayServer(
                settings,
                rules,
                connections,
                parts.room,
                nodes,
                passing,
                partial(why_unfit, broker_id=settings.gateway_broker_id),
            )

            async def close_parts() -> None:
                await parts.close(served_out=server.served_out)

            closing.push_async_callback(_end, "parts", close_parts)
            closing.push_async_callback(_end, "server", server.stop)
            nodes.accepts = lambda: server.listening and not stop.is_set()
            nodes.zone_of = parts.leaders.zones.of
            stand_ins = StandIns(settings, server, nodes, peers, cluster)
            closing.push_async_callback(_end, "stand-ins", stand_ins.close)
            parts.lease.stand_ins = as_registered(
                {node: settings.stands_in_at[node] for node in await stand_ins.take()}
            )
            starting = spawn(parts.start(), "start")
            if not await done_before(starting, stop):
                return
            await starting
            closing.push_async_callback(_end, "presence", presence.leave)
            stand_ins.start()
            await server.start()
            presence.follow(lambda: server.listening)
            tracking = parts.tracking
            standing.serves(
                lambda: server.listening,
                lambda: tracking.lease,
                lambda: tracking.stopped,
                partial(beliefs, parts, connections, stand_ins.believed),
            )
            await watch.until(stop)
        finally:
            standing.stops()
            ends()


async def _end(what: str, close: Callable[[], Awaitable[None]]) -> None:
    """Of one part; the others are ended all the same, and why the process ends stays its reason."""
    try:
        await close()
    except Exception:
        log.exception("a part of the gateway could not be ended", part=what)


async def _establish(
    settings: GatewaySettings, plane: ControlPlane, cluster: KafkaCluster, history: HistoryWatch
) -> None:
    store = ObjectStoreClient(settings, bounds=GATEWAY)
    await establish(plane, store, settings, cluster.cluster_id, history)
    await check_connections(plane, settings, is_gateway=True)


def bound_the_end(within_s: float) -> None:
    """End the process if it has not ended by itself within ``within_s``, whatever it waits for:
    others wait for this process. What each thread does then is written to stderr, by a thread that
    needs nothing of Python's; if nobody takes that, the process ends a little later."""
    unheard = threading.Timer(within_s + 2, os._exit, (int(ExitCode.FAILED),))
    unheard.daemon = True
    for begin in (partial(faulthandler.dump_traceback_later, within_s, exit=True), unheard.start):
        try:
            begin()
        except (RuntimeError, ValueError, OSError) as error:  # no thread is left, or no stderr
            log.warning("the end of the gateway is not bounded", reason=str(error))


def main() -> int:
    """Exit codes as :class:`tideline.errors.ExitCode` has them."""
    configure_logging("gateway")
    try:
        settings = load(GatewaySettings)
        structlog.contextvars.bind_contextvars(gateway=settings.gateway_id)
        library()  # or it is refused at once
        directory = StateDirectory.hold(settings.gateway_state_dir, settings.gateway_id)
        keep_freed_memory()
        preload()
        keep_what_is_loaded()
        note_memory()
        standing = Standing(settings.gateway_id)
        pages.serve(settings.metrics_address, standing.pages())
        ends = partial(bound_the_end, ENDS_WITHIN_S + settings.gateway_lease_ms / 1000)
        run(serve(settings, directory, standing, ends), settings.gateway_event_loop)
    except TidelineError as error:
        log.error("gateway failed", error=str(error))
        return int(error.exit_code)
    except OSError as error:
        # An address that is taken or a full disk: whoever restarts it shall try again.
        log.error(
            "the gateway ended: free the address, directory or disk, or choose another one",
            error=str(error),
        )
        return int(ExitCode.FAILED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
