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
    CONSTRAINT live_split_is_described CHECK (status <> 'live' OR (log_id IS NOT NULL
        AND base_offset <= last_offset AND byte_size > 0 AND batch_count > 0
        AND max_timestamp IS NOT NULL))
);

CREATE INDEX split_files_live ON split_files (log_id, base_offset) WHERE status = 'live';
CREATE INDEX split_files_registered ON split_files (file_id, token) WHERE status = 'registered';
