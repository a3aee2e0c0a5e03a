-- What the worker's watches found to disagree with Postgres in Kafka. A row stays when it ends: a tail
-- past B0 that is gone from a broker later was acknowledged by it all the same.
CREATE TABLE watch_findings (
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    -- tail: a replica's log goes on past B0. short: one ends below it. config: set past the gateways.
    kind text NOT NULL CHECK (kind IN ('tail', 'short', 'config')),
    -- The partition's number, or the config's key.
    subject text NOT NULL,
    detail jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    PRIMARY KEY (topic_id, kind, subject)
);
