-- Diskless batches become merged segments in tiered storage (seed 002, 4.7). A batch is DISKLESS
-- while its split_id is null, SPLIT when it is set, and TIERED when its row is gone: the merged
-- segment stands for it then.
ALTER TABLE topics
    ADD COLUMN tiering_paused boolean NOT NULL DEFAULT false,
    -- Batches committed until then are tiered whatever their age.
    ADD COLUMN tiering_requested_at timestamptz;

ALTER TABLE batches ADD COLUMN split_id bigint;

-- Finds what is old enough without a look at what is not, however much that is.
CREATE INDEX batches_to_split ON batches (log_id, max_timestamp)
    INCLUDE (last_offset, file_id, byte_size) WHERE split_id IS NULL;

ALTER TABLE wal_files
    -- Since when no batch is known to lie in it. Never again: only a commit adds batches.
    ADD COLUMN unreferenced_at timestamptz;

CREATE INDEX wal_files_referenced ON wal_files (file_id)
    WHERE status = 'committed' AND unreferenced_at IS NULL;

-- Tokens of claims, in one sequence: a token is never used twice.
CREATE SEQUENCE tiering_tokens AS bigint;

-- Who splits a WAL file. An expired claim holds until somebody takes it over.
CREATE TABLE wal_file_claims (
    file_id bigint PRIMARY KEY,
    worker uuid NOT NULL,
    token bigint NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

-- One contiguous run of offsets of one partition out of one WAL file (seed 002, 10.4, option A).
-- A key is registered before its upload; it is live from finish_split on, until its last batch is
-- merged or expired.
CREATE TABLE split_files (
    split_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object_key text NOT NULL UNIQUE,
    file_id bigint NOT NULL,
    token bigint NOT NULL,
    status text NOT NULL DEFAULT 'registered'
        CHECK (status IN ('registered', 'live', 'deleting')),
    log_id bigint,
    base_offset bigint,
    last_offset bigint,
    byte_size bigint,
    batch_count integer,
    max_timestamp bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (status <> 'live' OR (log_id IS NOT NULL AND base_offset <= last_offset
        AND byte_size > 0 AND batch_count > 0 AND max_timestamp IS NOT NULL))
);

CREATE INDEX split_files_live ON split_files (log_id, base_offset) WHERE status = 'live';
CREATE INDEX split_files_registered ON split_files (file_id, token) WHERE status = 'registered';

-- Who merges a partition. The row stays when nobody does (expires_at is null): the token fences.
CREATE TABLE merge_claims (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    worker uuid,
    token bigint NOT NULL DEFAULT 0,
    segment_id uuid,
    expires_at timestamptz
);

-- Merged segments, with the states of Kafka's remote log segments. The range and the figures are
-- the plan's until the segment is finished. Objects: object_key_stem with Kafka's suffixes.
CREATE TABLE merged_segments (
    segment_id uuid PRIMARY KEY,
    log_id bigint NOT NULL REFERENCES logs (log_id),
    token bigint NOT NULL,
    state text NOT NULL CHECK (state IN
        ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')),
    object_key_stem text NOT NULL UNIQUE,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    size_bytes bigint NOT NULL,
    max_timestamp bigint NOT NULL DEFAULT -1,
    leader_epoch integer NOT NULL,
    record_count bigint NOT NULL DEFAULT 0,
    batch_count integer NOT NULL,
    offset_index_bytes integer NOT NULL DEFAULT 0,
    time_index_bytes integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    -- Why it was given up or deleted.
    reason text,
    CHECK (base_offset <= last_offset)
);

CREATE INDEX merged_segments_by_log ON merged_segments (log_id, last_offset, segment_id);
CREATE UNIQUE INDEX merged_segments_readable ON merged_segments (log_id, last_offset)
    WHERE state = 'COPY_SEGMENT_FINISHED';
CREATE INDEX merged_segments_begun ON merged_segments (log_id)
    WHERE state = 'COPY_SEGMENT_STARTED';

-- Producer state where the next merged segment begins: a jsonb array of {producer_id,
-- producer_epoch, last_sequence, last_offset, offset_delta, timestamp}. The seeds at B0 (under
-- their digest), then the state at the end of the last merged segment.
CREATE TABLE producer_snapshots (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    seeds_digest text,
    end_offset bigint,
    entries jsonb NOT NULL
);

-- Failed attempts in a row: of a WAL file (split, its file_id) or a partition (merge, its log_id).
CREATE TABLE tiering_failures (
    scope text NOT NULL CHECK (scope IN ('split', 'merge')),
    key bigint NOT NULL,
    failures integer NOT NULL,
    error text NOT NULL,
    parked boolean NOT NULL,
    retry_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key)
);

-- Objects that nothing refers to any more. They are deleted after a grace, then forgotten. An
-- orphan is an object that was listed and is known to nobody: it must be listed again to go.
CREATE TABLE marked_objects (
    bucket text NOT NULL CHECK (bucket IN ('diskless', 'tiered')),
    object_key text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('split', 'segment', 'orphan')),
    segment_id uuid,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, object_key)
);

CREATE INDEX marked_objects_by_age ON marked_objects (marked_at);
CREATE INDEX marked_objects_of_segment ON marked_objects (segment_id)
    WHERE segment_id IS NOT NULL;

-- What the last coverage run said of a partition's prefix, for the B0 it looked at.
CREATE TABLE coverage_results (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    generation integer NOT NULL,
    boundary bigint NOT NULL,
    complete boolean NOT NULL,
    reason text NOT NULL,
    detail jsonb NOT NULL,
    run_id text NOT NULL,
    observed_at timestamptz NOT NULL,
    since timestamptz NOT NULL
);

CREATE FUNCTION epoch_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(extract(epoch FROM p_time) * 1000)::bigint
$$;
