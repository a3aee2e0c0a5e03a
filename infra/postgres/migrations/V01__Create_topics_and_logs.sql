-- Topics are keyed by a number of our own, because a topic that is born diskless is known before
-- Kafka has given it an id, and because a deleted topic stays here as a tombstone: its id is
-- refused for ever (schedule 19).
CREATE TABLE topics (
    topic_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    topic_id uuid UNIQUE,
    kind text NOT NULL CHECK (kind IN ('migrated', 'born_diskless')),
    status text NOT NULL CHECK (status IN ('tracking', 'active', 'aborted', 'deleted')),
    tracked boolean NOT NULL DEFAULT true,
    timestamp_type text NOT NULL CHECK (timestamp_type IN ('CreateTime', 'LogAppendTime')),
    max_message_bytes integer NOT NULL CHECK (max_message_bytes >= 0),
    tiering_paused boolean NOT NULL DEFAULT false,
    -- Batches committed until then are tiered whatever their age.
    tiering_requested_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT migrated_topic_has_id CHECK (topic_id IS NOT NULL OR kind = 'born_diskless'),
    CONSTRAINT live_topic_is_tracked CHECK (tracked OR status IN ('aborted', 'deleted')),
    CONSTRAINT deleted_topic_is_not_tracked CHECK (status <> 'deleted' OR NOT tracked)
);

CREATE UNIQUE INDEX topics_live_name ON topics (name) WHERE status <> 'deleted';

-- One row per partition (seed 002, 4.1.1). Every column that changes with a commit is unindexed,
-- so that commits are heap-only updates.
CREATE TABLE logs (
    log_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    partition integer NOT NULL CHECK (partition >= 0),
    topic_name text NOT NULL,
    migration_state text NOT NULL
        CHECK (migration_state IN ('TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY')),
    -- Earliest readable offset of the whole log, -1 while unknown.
    log_start_offset bigint NOT NULL DEFAULT -1,
    -- First offset that retention has left in the suffix, -1 while it has none.
    suffix_start bigint NOT NULL DEFAULT -1,
    -- Next offset of the suffix, -1 while it has none.
    high_watermark bigint NOT NULL DEFAULT -1,
    -- Largest timestamp (ms) ever committed to the suffix, -1 if none.
    max_timestamp bigint NOT NULL DEFAULT -1,
    -- First offset in tiered storage and last one (inclusive), -1 if none.
    tiered_log_start_offset bigint NOT NULL DEFAULT -1,
    tiered_high_offset bigint NOT NULL DEFAULT -1,
    prefix_max_timestamp bigint NOT NULL DEFAULT -1,
    prefix_max_timestamp_offset bigint NOT NULL DEFAULT -1,
    -- Fencing token: every attempt takes the next one by updating the row.
    generation integer NOT NULL DEFAULT 0,
    -- open -> closed -> reopened within one generation, never back: an acknowledgement of a
    -- closure that became void must not count for another one.
    quiesce text NOT NULL DEFAULT 'open' CHECK (quiesce IN ('open', 'closed', 'reopened')),
    quiesce_deadline timestamptz,
    -- What was seeded: a digest of the input, and the last offset in it.
    seeds_digest text,
    seeds_last_offset bigint NOT NULL DEFAULT -1,
    tiering_complete boolean NOT NULL DEFAULT false,
    tiering_reason text,
    deleted_at timestamptz,
    UNIQUE (topic_id, partition),
    CONSTRAINT suffix_starts_up_to_high_watermark CHECK (suffix_start <= high_watermark),
    CONSTRAINT closed_quiesce_has_deadline
        CHECK ((quiesce = 'closed') = (quiesce_deadline IS NOT NULL))
) WITH (fillfactor = 50);
