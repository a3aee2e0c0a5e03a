-- Idempotent producer state: one row per producer, its last five batches in parallel arrays,
-- oldest first (Kafka: ProducerStateEntry). One row makes a commit a single heap-only update.
CREATE TABLE producer_state (
    log_id bigint NOT NULL,
    producer_id bigint NOT NULL CHECK (producer_id >= 0),
    producer_epoch integer NOT NULL,
    base_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    append_times bigint[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (log_id, producer_id)
) WITH (fillfactor = 50);

-- Producer state where the next merged segment begins: a jsonb array of {producer_id,
-- producer_epoch, last_sequence, last_offset, offset_delta, timestamp}. The seeds at B0 (under
-- their digest), then the state at the end of the last merged segment.
CREATE TABLE producer_snapshots (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    seeds_digest text,
    end_offset bigint,
    entries jsonb NOT NULL
);
