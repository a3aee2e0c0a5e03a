"""What whoever has the credentials of one process can do: every function that its login role may
call, with arguments that are somebody else's, absent, negative or huge, alone and in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors, sql

from tests.contract.conftest import PASSWORDS, Database
from tests.contract.scenes import CLUSTER, PostgresScene, batch, seed
from tideline.domain.ids import TopicIdPartition

GATEWAY, WORKER, JOBS = "tideline_gateway_1", "tideline_worker", "tideline_jobs"
OWN_ID, OTHER_ID = 1, 2
OTHER = "tideline_gateway_2"
CLASSIC, CLASSIC_ID = "classic", UUID(int=77)
"""A topic that Kafka has, with records, and that Tideline has never heard of."""
TRIES = 40
"""Calls of each function that may write, with arguments drawn by a seed."""

# -- what must not change

FACTS: Mapping[str, str] = {
    "b0": """SELECT topic_id, partition, diskless_log_start_offset, diskless_log_start_epoch
        FROM logs WHERE diskless_log_start_offset >= 0""",
    "topics": "SELECT topic_key, name, topic_id, kind, status, tracked, round FROM topics",
    "logs": "SELECT log_id, migration_state, generation, quiesce, deleted_at FROM logs",
    "starts": "SELECT log_id, log_start_offset, suffix_start, tiered_log_start_offset FROM logs",
    "ends": "SELECT log_id, high_watermark FROM logs",
    "batches": "SELECT to_jsonb(b) - 'split_id' FROM batches AS b",
    "producers": "SELECT to_jsonb(p) FROM producer_state AS p",
    "leases": f"""SELECT to_jsonb(g) FROM gateways AS g WHERE gateway_id = {OTHER_ID}
        UNION ALL SELECT to_jsonb(e) FROM ended_incarnations AS e WHERE gateway_id = {OTHER_ID}""",
    "acks": f"""SELECT to_jsonb(a) FROM tracking_acks AS a WHERE gateway_id = {OTHER_ID}
        UNION ALL SELECT to_jsonb(q) FROM quiesce_acks AS q WHERE gateway_id = {OTHER_ID}""",
    "keys": f"SELECT to_jsonb(f) FROM wal_files AS f WHERE gateway_id = {OTHER_ID}",
    "words": """SELECT to_jsonb(o) FROM operator_actions AS o
        UNION ALL SELECT to_jsonb(c) FROM cluster_attestations AS c
        UNION ALL SELECT to_jsonb(h) FROM histories AS h""",
    "reports": f"""SELECT to_jsonb(a) FROM asked_births AS a WHERE asked_by = '{OTHER}'
        UNION ALL SELECT to_jsonb(d) FROM reported_deletions AS d WHERE reported_by = '{OTHER}'""",
}
"""By name: rows that are everybody's or somebody else's."""

ADDED = {"batches", "producers"}
"""To these a commit adds; nothing of them may go or become something else."""

FOR: Mapping[str, Mapping[str, set[str]]] = {
    GATEWAY: {
        # Appends: the end grows, and so does what an idempotent producer may send next.
        "commit_file": {"ends", "producers"},
        # New partitions of a topic that is diskless already are born diskless.
        "add_partitions": {"b0", "logs", "starts", "ends"},
        # DeleteRecords of clients, from B0 on and below.
        "delete_records": {"starts"},
        "advance_prefix_start": {"starts", "logs"},
        # A quiesce whose deadline has passed.
        "void_expired_quiesce": {"logs"},
    },
    WORKER: {
        # It has asked Kafka: births, deletions, migrations.
        "begin_birth": {"topics"},
        "complete_creation": {"topics", "b0", "logs", "starts", "ends"},
        "activate_topic": {"topics"},
        "release_birth": {"topics", "acks"},
        "refuse_birth": {"reports"},
        "settle_deletion": {"reports"},
        "delete_topic": {"topics", "logs"},
        "begin_migration": {"topics", "logs", "starts", "ends", "acks"},
        "abort_migration": {"topics", "logs", "producers"},
        "stop_tracking": {"topics", "acks"},
        "add_partitions": {"b0", "logs", "starts", "ends"},
        "next_generation": {"logs", "acks"},
        "close_generation": {"logs"},
        "reopen_generation": {"logs"},
        "initialize_diskless_migration": {"b0", "logs", "starts", "ends", "producers"},
        "reset_boundary": {"b0", "logs", "starts", "ends", "producers"},
        "advance_prefix_start": {"starts", "logs"},
        # Leases that have lapsed, and what operators say by its commands.
        "fence_gateway": {"leases"},
        "retire_gateway": {"leases"},
        "attest_incarnations_gone": {"leases"},
        "begin_history": {"words", "logs", "acks"},
        "attest_cluster": {"words"},
        "withdraw_attestation": {"words"},
        "record_configuration": {"words"},
        "accept_gap": {"words"},
        "force_completion": {"words"},
        "call_off_request": {"words"},
    },
    JOBS: {
        # Retention, and the end of a producer that was idle.
        "delete_records": {"starts"},
        "advance_prefix_start": {"starts", "logs"},
        "prune_batches": {"batches", "producers"},
        "expire_producers": {"producers"},
        # What splits and merges: where records lie.
        "finish_split": {"batches"},
        "finish_merge": {"batches", "logs", "starts"},
        # Keys that no batch lies under any more.
        "forget_uncommitted_keys": {"keys"},
        "mark_dead_objects": {"keys"},
        "claim_dead_files": {"keys"},
        "claim_dead_objects": {"keys"},
        "forget_dead_files": {"keys"},
    },
}
"""By login role and function: the facts that it is there to change."""

# -- a world in which everything is somebody's


@dataclass
class World:
    scene: PostgresScene
    connection: psycopg.Connection[Any]
    """The superuser's, which becomes any role."""
    pools: dict[str, list[Any]]
    """By name of an argument, else by its type."""

    def facts(self) -> dict[str, frozenset[str]]:
        return {
            name: frozenset(str(row) for row in self.connection.execute(query.encode()))
            for name, query in FACTS.items()
        }

    def call(self, role: str, function: str, arguments: list[Any], types: list[str]) -> str | None:
        """As ``role``, in the transaction at hand; what it was refused by."""
        text = sql.SQL("SELECT * FROM {}({})").format(
            sql.Identifier("tideline", function),
            sql.SQL(", ").join(sql.SQL("%s::" + kind) for kind in types),
        )
        self.connection.execute("SAVEPOINT before")
        try:
            self.connection.execute(
                sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(role))
            )
            self.connection.execute(text, arguments)
            self.connection.execute("RESET SESSION AUTHORIZATION")
        except psycopg.Error as error:
            self.connection.execute("ROLLBACK TO before")
            return f"{error.sqlstate} {error}"
        self.connection.execute("RELEASE before")
        return None

    def drawn(self, chance: random.Random, names: list[str], types: list[str]) -> list[Any]:
        return [
            chance.choice(self.pools.get(name) or self.pools[kind])
            if chance.random() < 0.9
            else None
            for name, kind in zip(names, types, strict=True)
        ]


@pytest.fixture
async def world(postgres_scene: PostgresScene, database: Database) -> Any:
    scene = postgres_scene
    own, other = await scene.gateway(OWN_ID), await scene.gateway(OTHER_ID)
    both = [own, other]
    hybrid_name, (hybrid,) = await scene.migrating_topic(both)
    generation = await scene.quiesce(hybrid, both, 9)
    await scene.persist(hybrid, 10, generation, seeds=[seed(last_offset=9)])
    born_name, (born,) = await scene.diskless_topic()
    for log in (hybrid, born):
        await scene.commit(other, batch(log, records=3, producer=(9, 0, 0)))
        await scene.commit(own, batch(log, records=2))
    migrating_name, (migrating,) = await scene.migrating_topic(both)
    await scene.quiesce(migrating, both, 4)
    aborted_name, (aborted,) = await scene.migrating_topic(both)
    await scene.plane.abort_migration(aborted.topic_id)
    committed, mine, theirs = f"wal/{uuid4()}", f"wal/{uuid4()}", f"wal/{uuid4()}"
    for process, keys in ((other, [committed, theirs]), (own, [mine])):
        await scene.plane.register_object_keys(process.gateway_id, process.incarnation, keys)
    await scene.commit(other, batch(born), key=committed)
    scene.sql("DELETE FROM asked_births")
    scene.sql(
        "INSERT INTO asked_births (name, asked_by, partitions, timestamp_type, max_message_bytes) "
        "VALUES ('unborn', %s, 1, 'CreateTime', 1000)",
        OTHER,
    )
    scene.sql("INSERT INTO reported_deletions VALUES (%s, %s)", aborted.topic_id, OTHER)
    names = [CLASSIC, hybrid_name, born_name, migrating_name, aborted_name, "unborn"]
    ids = [CLASSIC_ID, hybrid.topic_id, born.topic_id, migrating.topic_id, aborted.topic_id]
    key = [theirs, committed, mine, "runs/a", "wal/new"]
    number = [0, 1, 2, -1, 10, 13, 2**31 - 1]
    pools: dict[str, list[Any]] = {
        "p_name": names,
        "p_topic": names,
        "p_kind": ["born_diskless", "migrated"],
        "p_topics": [names],
        "p_topic_id": ids,
        "p_topic_ids": [ids[1:2], ids[2:3], ids[:1]],
        "p_gateway_id": [OTHER_ID, OWN_ID, 3],
        "p_incarnation": [other.incarnation, own.incarnation, uuid4()],
        "p_incarnations": [[other.incarnation], [own.incarnation]],
        "p_watched": [other.incarnation, own.incarnation],
        "p_cluster_id": [CLUSTER, "another"],
        "p_timestamp_type": ["CreateTime", "LogAppendTime"],
        "p_partition": [0, 0, 0, 1, -1],
        "p_partitions": [[0], [0], [-1], 1, 2],
        "p_new_total": [2, 1, 0, -1, 2**31 - 1],
        "p_object_key": key,
        "p_keys": [[k] for k in key],
        "p_tells": [[committed], []],
        "p_record_counts": [[1], [-3], [0], [2**31 - 1]],
        "p_byte_offsets": [[0], [-1]],
        "p_byte_sizes": [[100], [-1], [0]],
        "p_max_timestamps": [[1_000], [2**63 - 1], [-(2**63)]],
        "p_log_append_time": [[True], [False]],
        "p_producer_ids": [[-1], [9], [7]],
        "p_producer_epochs": [[-1], [0], [2**31 - 1]],
        "p_base_sequences": [[-1], [0], [3]],
        "p_last_sequences": [[-1], [0], [3]],
        "p_size": [1_000, 100, -1],
        "p_generation": [1, 0, 2, 3, -1],
        "p_leader_epoch": [3, 0, 9, -1, 2**31 - 1],
        "p_limit": [1_000, 1, 0, -1],
        "integer": number,
        "bigint": [*number, 2**62, -(2**63), 2**63 - 1],
        "text": ["", "x", "an operator", hybrid_name, "wal/" + "x" * 2_000],
        "boolean": [True, False],
        "uuid": [*ids, other.incarnation, own.incarnation],
        "jsonb": ["{}", "[]", '{"a": 1}', '[{"producer_id": 9, "partition": 0}]'],
        "integer[]": [[], [0], [-1], [None], [2**31 - 1]],
        "bigint[]": [[], [0], [-1], [None], [2**62], [1, 2, 3]],
        "text[]": [[], [None], names, key],
        "uuid[]": [[], [None], ids],
        "boolean[]": [[], [True], [None]],
        "interval": ["0", "-1 day"],
        "double precision": [0.0, -1.0, 1e308],
        "timestamp with time zone": ["2000-01-01", "infinity", "-infinity"],
    }
    options = "-c search_path=tideline -c statement_timeout=5000"
    with psycopg.connect(database.dsn, options=options) as connection:
        yield World(scene, connection, pools)
        connection.rollback()


def login_roles(connection: psycopg.Connection[Any]) -> list[str]:
    """Whoever logs in with rights of Tideline's, beside the superuser."""
    rows = connection.execute(
        "SELECT rolname FROM pg_roles AS r WHERE rolcanlogin AND NOT rolsuper AND EXISTS ("
        "SELECT FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid "
        "WHERE m.member = r.oid AND g.rolname LIKE 'tideline%') ORDER BY 1"
    )
    return [str(name) for (name,) in rows]


def granted(
    connection: psycopg.Connection[Any], role: str
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Functions that may write, with names and types of what they take."""
    rows = connection.execute(
        """SELECT proname, coalesce(proargnames[1 : pronargs], '{}'),
               ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) AS t)
           FROM pg_proc WHERE pronamespace = 'tideline'::regnamespace AND provolatile = 'v'
               AND prorettype <> 'trigger'::regtype AND has_function_privilege(%s, oid, 'EXECUTE')
           ORDER BY proname""",
        [role],
    )
    yield from rows.fetchall()


def changed(
    role: str, function: str, before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]
) -> list[str]:
    """What is another fact now, and is not for this function of the role to change."""
    allowed = FOR.get(role, {}).get(function, set())
    return [
        f"{name}: {sorted(before[name] - after[name])} became {sorted(after[name] - before[name])}"
        for name in FACTS
        if name not in allowed
        and (before[name] - after[name] if name in ADDED else before[name] ^ after[name])
    ]


def test_the_roles_that_log_in_are_those_that_are_tried_here(world: World) -> None:
    assert login_roles(world.connection) == sorted(PASSWORDS) == sorted(FOR)


@pytest.mark.parametrize("role", sorted(FOR))
def test_no_call_of_a_granted_function_changes_what_the_role_is_not_for(
    world: World, role: str
) -> None:
    before = world.facts()
    for function, names, types in granted(world.connection, role):
        chance = random.Random(f"{role} {function}")
        first = [
            (world.pools.get(n) or world.pools[t])[0] for n, t in zip(names, types, strict=True)
        ]
        tries = [first, [None] * len(names)]
        tries += [world.drawn(chance, names, types) for _ in range(TRIES if names else 0)]
        for arguments in tries:
            world.connection.execute("SAVEPOINT alone")
            refused = world.call(role, function, arguments, types)
            if refused is None:
                found = changed(role, function, before, world.facts())
                assert not found, (function, dict(zip(names, arguments, strict=True)), found)
            world.connection.execute("ROLLBACK TO alone")


@pytest.mark.parametrize("role", sorted(FOR))
@pytest.mark.parametrize("seed_", range(3))
def test_no_order_of_calls_changes_what_the_role_is_not_for(
    world: World, role: str, seed_: int
) -> None:
    """One after the other: each finds what those before it have left."""
    chance = random.Random(f"{role} {seed_}")
    functions = list(granted(world.connection, role))
    before = world.facts()
    for _ in range(300):
        function, names, types = chance.choice(functions)
        arguments = world.drawn(chance, names, types)
        if world.call(role, function, arguments, types) is None:
            after = world.facts()
            found = changed(role, function, before, after)
            assert not found, (function, dict(zip(names, arguments, strict=True)), found)
            before = after


@pytest.mark.parametrize("role", sorted(FOR))
def test_no_role_has_a_right_on_a_table_a_sequence_or_a_schema(world: World, role: str) -> None:
    rows = world.connection.execute(
        """SELECT c.oid::regclass::text, p FROM pg_class AS c, unnest(ARRAY['SELECT', 'INSERT',
               'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p
           WHERE c.relnamespace IN ('tideline'::regnamespace, 'tideline_records'::regnamespace)
               AND c.relkind IN ('r', 'v', 'p') AND has_table_privilege(%s, c.oid, p)
           UNION ALL SELECT c.oid::regclass::text, p FROM pg_class AS c,
               unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS p
           WHERE c.relnamespace = 'tideline'::regnamespace AND c.relkind = 'S'
               AND has_sequence_privilege(%s, c.oid, p)
           UNION ALL SELECT n.nspname, 'CREATE' FROM pg_namespace AS n
               WHERE n.nspname LIKE 'tideline%%' AND has_schema_privilege(%s, n.oid, 'CREATE')""",
        [role] * 3,
    ).fetchall()
    iceberg = {
        (f"tideline_records.{table}", right)
        for table in ("iceberg_tables", "iceberg_namespace_properties")
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
    }
    assert set(rows) == (iceberg if role == JOBS else set())


def test_nothing_is_granted_to_everybody(world: World) -> None:
    rows = world.connection.execute(
        """SELECT oid::regprocedure::text FROM pg_proc,
               LATERAL aclexplode(coalesce(proacl, acldefault('f', proowner))) AS a
           WHERE pronamespace = 'tideline'::regnamespace AND a.grantee = 0
           UNION ALL SELECT c.oid::regclass::text FROM pg_class AS c,
               LATERAL aclexplode(c.relacl) AS a
           WHERE c.relnamespace::regnamespace::text LIKE 'tideline%' AND a.grantee = 0"""
    ).fetchall()
    assert rows == []


# -- one by one, so that it is seen what refuses


def refusal(world: World, role: str, text: str, *parameters: object) -> str:
    """The code by which it is refused."""
    world.connection.execute("SAVEPOINT refused")
    world.connection.execute(
        sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(role))
    )
    with pytest.raises(psycopg.Error) as refused:
        world.connection.execute(text.encode(), parameters)
    world.connection.execute("ROLLBACK TO refused")
    return str(refused.value.sqlstate)


@pytest.mark.parametrize(
    "call",
    [
        "begin_tracking('classic', %s, 'born_diskless', 1, 'CreateTime', 1000, NULL)",
        "begin_birth('unborn')",
        "complete_creation('unborn', %s, 1)",
        "activate_topic('classic', NULL)",
        "delete_topic(%s, 'an operator', 'nothing')",
        "stop_tracking('classic', NULL)",
        "release_birth(1, 'an operator', 'nothing')",
        "override_config(%s, 'retention.ms', '1', '1', NULL)",
        "fence_gateway(2, %s, 0, 'nothing')",
    ],
)
def test_a_gateway_does_not_decide_what_kafka_tells(world: World, call: str) -> None:
    parameters = [CLASSIC_ID] * call.count("%s")
    assert refusal(world, GATEWAY, f"SELECT {call}", *parameters) == (
        errors.InsufficientPrivilege.sqlstate
    )


@pytest.mark.parametrize(
    "call",
    [
        "register_gateway(2, 2, gen_random_uuid(), 'h:1', '1', 3000, {i}, {r})",
        "register_gateway(3, 3, gen_random_uuid(), 'h:1', '1', 3000, NULL, NULL)",
        "renew_lease(2, {i})",
        "renew_and_list(2, {i})",
        "note_serving(2, {i}, false)",
        "release_gateway(2, {i})",
        "account_incarnations(2, ARRAY[{i}], 'stopped')",
        "acknowledge_tracking(2, {i}, 'x', NULL)",
        "acknowledge_quiesce(2, {i}, gen_random_uuid(), 0, 1, 0, 0)",
        "register_object_keys(2, {i}, '{{wal/x}}')",
        "untold_commits(2, {i}, 10)",
        "commit_file(2, {i}, 'wal/x', 1, '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', "
        "'{{}}', '{{}}', '{{}}', '{{}}')",
        "renew_lease(NULL, {i})",
    ],
)
def test_a_gateway_speaks_for_no_other(world: World, call: str) -> None:
    ((incarnation, renewals),) = world.connection.execute(
        "SELECT incarnation, renewals FROM gateways WHERE gateway_id = 2"
    ).fetchall()
    text = call.format(i=f"'{incarnation}'::uuid", r=renewals)
    assert refusal(world, GATEWAY, f"SELECT {text}") == "TL051"


@pytest.mark.parametrize(
    ("address", "version", "rack", "stand_ins"),
    [(513, 1, 1, 1), (1, 513, 1, 1), (1, 1, 513, 1), (1, 1, 1, 262_145)],
)
def test_a_gateway_says_no_more_than_each_renewal_of_others_can_read(
    world: World, address: int, version: int, rack: int, stand_ins: int
) -> None:
    said = ", ".join(f"repeat('x', {n})" for n in (rack, stand_ins))
    call = f"""register_gateway({OWN_ID}, 1, gen_random_uuid(), repeat('x', {address}),
        repeat('x', {version}), 3000, NULL, NULL, {said})"""
    assert refusal(world, GATEWAY, f"SELECT {call}") == errors.CheckViolation.sqlstate


def commit_of(world: World, key: str, topic_id: UUID, counts: str = "{1}") -> str:
    ((incarnation,),) = world.connection.execute(
        "SELECT incarnation FROM gateways WHERE gateway_id = 1"
    ).fetchall()
    world.connection.execute(
        "INSERT INTO wal_files (object_key, gateway_id, incarnation) VALUES (%s, 1, %s) "
        "ON CONFLICT DO NOTHING",
        [key, incarnation],
    )
    nobody = ", ".join(["'{-1}'"] * 4)
    return (
        f"commit_file(1, '{incarnation}', '{key}', 100, ARRAY['{topic_id}'::uuid], '{{0}}', "
        f"'{{0}}', '{{100}}', '{counts}', '{{1000}}', '{{f}}', {nobody})"
    )


@pytest.mark.parametrize("counts", ["{-3}", "{0}", "{NULL}"])
def test_a_batch_without_a_record_does_not_set_the_end_back(world: World, counts: str) -> None:
    hybrid = world.pools["p_topic_id"][1]
    call = commit_of(world, "wal/mine", hybrid, counts)
    assert refusal(world, GATEWAY, f"SELECT {call}") == "TL018"


@pytest.mark.parametrize("key", ["runs/a", "meta/topic.json", "tideline-owner.json", "wal/a/b"])
def test_a_gateway_registers_no_key_of_what_others_wrote(world: World, key: str) -> None:
    """Committed without a batch it would be collected, and the object under it deleted."""
    ((incarnation,),) = world.connection.execute(
        "SELECT incarnation FROM gateways WHERE gateway_id = 1"
    ).fetchall()
    text = "SELECT register_object_keys(1, %s, %s)"
    assert refusal(world, GATEWAY, text, incarnation, [key]) == "TL017"


def test_a_gateway_tells_no_outcomes_that_another_one_still_tells(world: World) -> None:
    ((theirs,),) = world.connection.execute(
        "SELECT object_key FROM wal_files WHERE gateway_id = 2 AND status = 'committed' LIMIT 1"
    ).fetchall()
    commit_of(world, "wal/mine", CLASSIC_ID)
    ((incarnation,),) = world.connection.execute(
        "SELECT incarnation FROM gateways WHERE gateway_id = 1"
    ).fetchall()
    empty = ", ".join(["'{}'"] * 11)
    text = f"SELECT commit_file(1, %s, 'wal/mine', 1, {empty}, NULL, NULL, %s)"
    world.connection.execute(
        sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(GATEWAY))
    )
    world.connection.execute(text.encode(), [incarnation, [theirs]])
    world.connection.execute("RESET SESSION AUTHORIZATION")
    ((carried,),) = world.connection.execute(
        "SELECT carried_by FROM wal_files WHERE object_key = %s", [theirs]
    ).fetchall()
    assert carried is None


def test_what_comes_through_a_gateway_says_so(world: World) -> None:
    hybrid = world.pools["p_topic_id"][1]
    world.connection.execute(
        sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(GATEWAY))
    )
    world.connection.execute("SELECT request_migration('x', %s, 'cli: root', '{}')", [hybrid])
    world.connection.execute(
        "SELECT halt_history(history_id, 'a commit is missing') FROM server_identity(NULL, NULL)"
    )
    world.connection.execute("RESET SESSION AUTHORIZATION")
    rows = world.connection.execute(
        "SELECT requested_by, halted FROM migration_requests, installation WHERE topic_id = %s",
        [hybrid],
    ).fetchall()
    through = "(through tideline_gateway_1)"
    assert rows == [(f"cli: root {through}", f"a commit is missing {through}")]


@pytest.mark.parametrize("role", [WORKER, JOBS])
def test_without_its_generation_nobody_changes_a_partition(world: World, role: str) -> None:
    """Null is no generation."""
    hybrid = world.pools["p_topic_id"][1]
    text = "SELECT set_tiering_complete(%s, 0, NULL, true, 'x')"
    assert refusal(world, role, text, hybrid) == "TL003"


def test_a_log_of_the_fixture_is_what_the_tests_say(world: World) -> None:
    hybrid = TopicIdPartition(world.pools["p_topic_id"][1], 0)
    rows = world.scene.sql(
        "SELECT migration_state, diskless_log_start_offset, high_watermark FROM logs "
        "WHERE topic_id = %s",
        hybrid.topic_id,
    )
    assert rows == [("HYBRID", 10, 15)]
