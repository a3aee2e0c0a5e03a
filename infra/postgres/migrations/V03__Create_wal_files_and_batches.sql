-- A key is registered before its object is uploaded, and committed at most once. Garbage
-- collection marks a key deleting by compare-and-set; such a key is never committed (schedule 17).
CREATE TABLE wal_files (
    file_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object_key text NOT NULL UNIQUE,
    gateway_id integer NOT NULL,
    incarnation uuid NOT NULL,
    status text NOT NULL DEFAULT 'registered'
        CHECK (status IN ('registered', 'committed', 'deleting')),
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    committed_at timestamptz,
    size bigint,
    -- The answer of the commit, element by element, so that a retry with an unknown outcome finds
    -- its own success.
    outcome_errors text[],
    outcome_base_offsets bigint[],
    outcome_append_times bigint[],
    outcome_log_starts bigint[],
    outcome_high_watermarks bigint[]
);

CREATE INDEX wal_files_not_live ON wal_files (status, file_id) WHERE status <> 'committed';

-- Coordinates of record batches. The key is the last offset, so that the batch that holds an
-- offset is the first one at or after it. Written by commit_file alone, which holds the rows of
-- the log and the file: foreign keys would only cost each batch two more lookups.
CREATE TABLE batches (
    log_id bigint NOT NULL,
    last_offset bigint NOT NULL,
    base_offset bigint NOT NULL,
    file_id bigint NOT NULL,
    byte_offset bigint NOT NULL,
    byte_size integer NOT NULL,
    log_append_time boolean NOT NULL,
    append_time bigint NOT NULL,
    -- ms; equals append_time under LogAppendTime.
    max_timestamp bigint NOT NULL,
    -- Largest max_timestamp of this log up to and including this batch: grows with the offset, so
    -- a lookup by timestamp is an index lookup.
    running_max_timestamp bigint NOT NULL,
    PRIMARY KEY (log_id, last_offset)
);

CREATE INDEX batches_by_running_max ON batches (log_id, running_max_timestamp, last_offset);
CREATE INDEX batches_by_file ON batches (file_id);

CREATE FUNCTION register_object_keys(p_gateway_id integer, p_incarnation uuid, p_keys text[])
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_taken text;
BEGIN
    PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    INSERT INTO wal_files (object_key, gateway_id, incarnation)
        SELECT k, p_gateway_id, p_incarnation FROM unnest(p_keys) AS k
        ON CONFLICT (object_key) DO NOTHING;
    SELECT f.object_key INTO v_taken FROM wal_files AS f
        WHERE f.object_key = ANY (p_keys)
            AND (f.incarnation <> p_incarnation OR f.status <> 'registered')
        LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL017', format('object key %s is taken', v_taken),
            'Register a random key that was never used.');
    END IF;
END
$$;
