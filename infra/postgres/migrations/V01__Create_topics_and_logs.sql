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
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (topic_id IS NOT NULL OR kind = 'born_diskless')
);

CREATE UNIQUE INDEX topics_live_name ON topics (name) WHERE status <> 'deleted';

-- One row per partition (seed 002, 4.1.1). Every column that changes with a commit is unindexed,
-- so that commits are heap-only updates.
CREATE TABLE logs (
    log_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    partition integer NOT NULL CHECK (partition >= 0),
    topic_name text NOT NULL,
    -- Earliest readable offset of the whole log, -1 while unknown.
    log_start_offset bigint NOT NULL DEFAULT -1,
    -- Next offset of the suffix, -1 while it has none.
    high_watermark bigint NOT NULL DEFAULT -1,
    -- First offset in tiered storage and last one (inclusive), -1 if none.
    tiered_log_start_offset bigint NOT NULL DEFAULT -1,
    tiered_high_offset bigint NOT NULL DEFAULT -1,
    -- First offset that retention has left in the suffix, -1 while it has none.
    suffix_start bigint NOT NULL DEFAULT -1,
    migration_state text NOT NULL
        CHECK (migration_state IN ('TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY')),
    -- Largest timestamp (ms) ever committed to the suffix, -1 if none.
    max_timestamp bigint NOT NULL DEFAULT -1,
    deleted_at timestamptz,
    UNIQUE (topic_id, partition),
    CHECK (suffix_start <= high_watermark)
) WITH (fillfactor = 50);

-- Every refusal has its own SQLSTATE of class TL; tideline/control_plane/errors.py names them.
CREATE FUNCTION refuse(p_code text, p_message text, p_remedy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, HINT = p_remedy;
END
$$;

CREATE FUNCTION refuse_unknown_log(p_topic_id uuid, p_partition integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('TL001',
        format('partition %s of topic id %s is not tracked', p_partition, p_topic_id),
        'Begin tracking the topic first, or add the partition to it.');
END
$$;

-- The row of a live partition, locked against commits, aborts and boundaries until the end of the
-- transaction. Raises TL001 when there is none, TL002 when its topic was deleted.
CREATE FUNCTION lock_log(p_topic_id uuid, p_partition integer) RETURNS logs
LANGUAGE plpgsql AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs
        WHERE topic_id = p_topic_id AND partition = p_partition FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    IF v_log.deleted_at IS NOT NULL THEN
        PERFORM refuse('TL002',
            format('topic %s (id %s) was deleted', v_log.topic_name, p_topic_id),
            'A topic created anew under this name has another id: resolve the name again.');
    END IF;
    RETURN v_log;
END
$$;

CREATE FUNCTION notify_log(p_topic_id uuid, p_partition integer) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tideline_control', 'log:' || p_topic_id || ':' || p_partition)
$$;

CREATE FUNCTION notify_topic(p_name text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tideline_control', 'topic:' || p_name)
$$;
