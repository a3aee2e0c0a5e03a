"""``make demo-racks``: a broker and then a whole rack are lost, and every rack's clients go on.

Three racks, four brokers. A topic born diskless has a replica in each rack; in each rack a producer
and a consumer say where they are. What leaves a rack is counted by the gateways, first with Kafka's
leaders, then with named ones. Beside it two topics that were migrated: a lost rack takes away the
prefix that has no replica elsewhere, and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka.admin import NewTopic

from tideline.demo import topic as topics
from tideline.demo.rack_bench import (
    BORN,
    NARROW,
    PARTITIONS,
    PLAIN,
    REFRESH,
    WAIT_S,
    WIDE,
    RackBench,
)
from tideline.demo.workload import wait_until_consumed
from tideline.demo.zones import by_broker, in_sync_but, one_in_each_rack, racks_led_in

BROKERS, RACKS = 4, 3
EXTRA = 4
"""The broker of the first rack that is lost first; the rack's other one follows."""
MANAGED = {"TIDELINE_DISKLESS_MANAGED_RF_ENABLED": "true"}
TRANSFORMER = "TIDELINE_DISKLESS_TRANSFORMER_ENABLED"
HISTORY = 300
"""Records of each of them before its migration."""


class RackTour(RackBench):
    """The steps, in their order."""

    def run(self) -> None:
        """Every step. Raises :class:`TidelineError` when one cannot be done; a bad outcome is in
        ``checks`` instead."""
        try:
            self._topics()
            with self.stage("Kafka's leaders"):
                self.count()
            self._name_leaders()
            self._lose_a_broker()
            self._lose_a_rack()
            self._bring_back()
            self._compare()
        finally:
            for producer in self.producers:
                producer.abandon()
            for *_, reader, _ in self.readers:
                reader.stop()

    def _topics(self) -> None:
        born = NewTopic(BORN, PARTITIONS[BORN], config={"diskless.enable": "true"})
        self.admin.create_topics([born])[BORN].result(60)
        placed = self.placed(BORN)
        self.check(
            "a topic born diskless has one replica in each rack",
            one_in_each_rack(placed, self.rack_of),
            f"{len(placed)} partitions, replicas by broker: {by_broker(placed)}",
        )
        for rack in self.racks:
            words: dict[str, str | int] = {"client.id": f"{rack}-clients,diskless_az={rack}"}
            self.produce(BORN, rack, {**REFRESH, **words})
            self.consume(BORN, rack, {**REFRESH, **words, "client.rack": rack})
        self.until_goes_on(BORN, time.monotonic())
        migrating = {WIDE: sorted(self.rack_of)[:RACKS], NARROW: [EXTRA]}
        for topic, replicas in migrating.items():
            self.say(f"tiered topic {topic} on brokers {replicas}: {HISTORY} records; migrates")
            topics.create_tiered(self.admin, topic, 1, len(replicas), placed=replicas)
            self.produce(topic, "history", limit=HISTORY).wait()
            topics.trigger_migration(self.admin, topic)
        self.boundaries = asyncio.run(self.migrated(list(migrating)))
        for topic in migrating:
            self.produce(topic, PLAIN, REFRESH)
            self.consume(topic, PLAIN, REFRESH)
        self.until_all_go_on(time.monotonic())

    def _name_leaders(self) -> None:
        self.say(f"{TRANSFORMER}=true, two gateways after the other two; clients go on")
        with self.stage("gateways restart"):
            self.stack.configure(MANAGED | {TRANSFORMER: "true"})
            nodes = sorted(self.stack.endpoints.gateways)
            for at_once in (nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]):
                self.read_meter()
                with ThreadPoolExecutor(len(at_once)) as pool:
                    list(pool.map(self._restart_gateway, at_once))
            self.until_nobody_leaves()
            self.until_all_go_on(time.monotonic())
        with self.stage("named leaders") as counted:
            self.count()
        before, after = self.stages[0].bytes, counted()
        for direction in before:
            self.check(
                f"{direction}: bytes stay in the client's rack once leaders are named",
                before[direction].leaving > 0.5 and after[direction].other == 0,
                f"{before[direction].leaving:.0%} left it before, "
                f"{after[direction].other:.0f} of {after[direction].same:.0f} bytes now",
            )

    def _restart_gateway(self, node: int) -> None:
        self.stack.stop(f"gateway-{node}")
        self.stack.start(f"gateway-{node}")

    def _lose_a_broker(self) -> None:
        self.say(f"broker {EXTRA} of {self.rack_of[EXTRA]} and its gateway are killed")
        with self.stage("a broker lost"):
            self._lose(EXTRA)

    def _lose_a_rack(self) -> None:
        rack = self.rack_of[EXTRA]
        rest = [node for node, where in self.rack_of.items() if where == rack and node != EXTRA]
        self.say(f"the rest of {rack}, too: broker {rest}")
        with self.stage("a rack lost") as counted:
            self._lose(*rest)
            self._until_led_by_the_living()
            self.count()
        others = [name for name in self.racks if name != rack]
        led = {name: racks_led_in(self.placed(BORN, name), self.rack_of) for name in self.racks}
        self.check(
            "clients of the racks that are left stay in them, those of the lost one go to another",
            all(led[name] == {name} for name in others) and led[rack] <= set(others),
            ", ".join(f"{name} to {'/'.join(sorted(to))}" for name, to in led.items()),
        )
        shares = [counted()[direction].leaving for direction in counted()]
        self.check(
            "only the lost rack's bytes leave it",
            all(share < 0.5 for share in shares),
            " and ".join(f"{share:.0%}" for share in shares) + " leave their client's rack",
        )
        self._check_prefixes()

    def _check_prefixes(self) -> None:
        boundary = self.boundaries[WIDE]
        wide = self.offsets_from(WIDE, 0)
        self.check(
            f"{WIDE}: a prefix with replicas in other racks is read while one is away",
            wide[:boundary] == list(range(boundary)),
            f"{len(wide)} records from offset 0 on, B0 {boundary}",
        )
        boundary = self.boundaries[NARROW]
        below = self.reader(NARROW, 0)
        try:
            suffix = self.offsets_from(NARROW, boundary)
            prefix = below.consume(1_000, 0.5)
        finally:
            below.close()
        self.check(
            f"{NARROW}: a prefix whose only replica is away waits; its suffix goes on",
            not [m for m in prefix if m.error() is None] and suffix[:1] == [boundary],
            f"{len(prefix)} records from offset 0 on, {len(suffix)} from B0 {boundary} on",
        )

    def _bring_back(self) -> None:
        self.say(f"brokers {sorted(self.lost)} and their gateways come back")
        with self.stage("brokers come back"):
            back = sorted(self.lost)
            with ThreadPoolExecutor(len(back)) as pool:
                list(pool.map(self._start, back))
            self.lost.clear()
            self.until("every replica in sync", self._all_in_sync)
            self.until_nobody_leaves()
            self.until_all_go_on(time.monotonic())
        with self.stage("all back") as counted:
            self.count()
        other = {direction: crossing.other for direction, crossing in counted().items()}
        placed = self.placed(BORN)
        self.check(
            "all back: replicas where they were and in sync, no byte leaves its rack",
            one_in_each_rack(placed, self.rack_of)
            and in_sync_but(placed, ())
            and not any(other.values()),
            f"{[list(p.replicas) for p in placed]}, {sum(other.values()):.0f} bytes",
        )

    def _start(self, node: int) -> None:
        self.stack.start(f"kafka-{node}")
        self.stack.start(f"gateway-{node}")

    def _compare(self) -> None:
        self.say("producers stop; every reader reads to the end")
        while self.producers:
            self.producers.pop().stop()
        for topic in self.boundaries:
            self.consume(topic, "at-the-end")
        for topic, name, reader, ledger in self.readers:
            ledger.compare_with(self.acknowledged[topic])
            done = wait_until_consumed(ledger, WAIT_S)
            bad = [v for p in ledger.partitions if not (v := ledger.verdict(p)).ok]
            acknowledged, consumed = ledger.counts()
            self.check(
                f"{topic}, read by {name}: consumed = acknowledged, nothing twice",
                done and not bad and not reader.resets,
                f"{acknowledged} acknowledged, {consumed} consumed"
                + "".join(f"; {verdict}" for verdict in bad),
            )
        failures = [f for ledger in self.acknowledged.values() for f in ledger.failures]
        self.check("no producer gave up a record", not failures, f"{failures[:3] or 'none did'}")

    def _lose(self, *nodes: int) -> None:
        """Kill the brokers with their gateways; returns when Kafka knows, and all go on."""
        self.read_meter()
        at = time.monotonic()
        before = [p.replicas for p in self.placed(BORN)]
        for node in nodes:
            self.stack.kill(f"gateway-{node}", restart=False)
            self.stack.kill(f"kafka-{node}", restart=False)
        self.lost.update(nodes)
        self.until_all_go_on(at)
        self.until(f"the ISR without {sorted(self.lost)}", self._all_in_sync)
        self.check(
            f"without broker {sorted(self.lost)}: every rack's producer and consumer go on",
            [p.replicas for p in self.placed(BORN)] == before,
            "in every partition; replicas stay placed, the ISR is those that live",
        )

    def _all_in_sync(self) -> bool:
        return in_sync_but(self.placed(BORN), self.lost)

    def _until_led_by_the_living(self) -> None:
        living = {rack for node, rack in self.rack_of.items() if node not in self.lost}
        self.until(
            "leaders that live",
            lambda: all(
                racks_led_in(self.placed(BORN, rack), self.rack_of)
                <= ({rack} if rack in living else living)
                for rack in self.racks
            ),
        )
