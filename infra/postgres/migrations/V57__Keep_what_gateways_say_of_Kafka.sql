-- What a gateway says that Kafka did, or is about to do. It counts when the worker has asked the
-- brokers: Postgres cannot, and a gateway's credentials may be in other hands. Told by a login role.

-- Topics that are to be born diskless.
CREATE TABLE asked_births (
    name text NOT NULL,
    asked_by text NOT NULL,
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1000000),
    timestamp_type text NOT NULL CHECK (timestamp_type IN ('CreateTime', 'LogAppendTime')),
    max_message_bytes integer NOT NULL CHECK (max_message_bytes >= 0),
    timestamp_before_max_ms bigint CHECK (timestamp_before_max_ms >= 0),
    timestamp_after_max_ms bigint CHECK (timestamp_after_max_ms >= 0),
    -- max.message.bytes as the client gave it; null: it gave none.
    given_max_message_bytes text,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why the worker does not take it; null: it has not decided so.
    refused text,
    PRIMARY KEY (name, asked_by)
);

-- Topics that Kafka may have deleted.
CREATE TABLE reported_deletions (
    topic_id uuid PRIMARY KEY REFERENCES topics (topic_id),
    reported_by text NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What the worker asks twice a second.
CREATE INDEX topics_being_born ON topics (topic_key)
    WHERE status = 'tracking' AND kind = 'born_diskless';
