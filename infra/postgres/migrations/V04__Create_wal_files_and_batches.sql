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
    -- Since when no batch is known to lie in it. Never again: only a commit adds batches.
    unreferenced_at timestamptz,
    size bigint,
    -- The answer of the commit, element by element, so that a retry with an unknown outcome finds
    -- its own success.
    outcome_errors text[],
    outcome_base_offsets bigint[],
    outcome_append_times bigint[],
    outcome_log_starts bigint[],
    outcome_high_watermarks bigint[],
    CONSTRAINT committed_file_has_outcome CHECK (status <> 'committed' OR (
        committed_at IS NOT NULL AND size IS NOT NULL AND outcome_errors IS NOT NULL
        AND outcome_base_offsets IS NOT NULL AND outcome_append_times IS NOT NULL
        AND outcome_log_starts IS NOT NULL AND outcome_high_watermarks IS NOT NULL))
);

CREATE INDEX wal_files_not_live ON wal_files (status, file_id) WHERE status <> 'committed';
CREATE INDEX wal_files_referenced ON wal_files (file_id)
    WHERE status = 'committed' AND unreferenced_at IS NULL;
CREATE INDEX wal_files_unreferenced ON wal_files (unreferenced_at)
    WHERE unreferenced_at IS NOT NULL;

-- Coordinates of record batches. The key is the last offset, so that the batch that holds an
-- offset is the first one at or after it. Written by commit_file alone, which holds the rows of
-- the log and the file: foreign keys would only cost each batch two more lookups.
-- A batch is DISKLESS while its split_id is null, SPLIT when it is set, and TIERED when its row is
-- gone: a merged segment stands for it then (seed 002, 4.7).
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
    split_id bigint,
    PRIMARY KEY (log_id, last_offset)
);

CREATE INDEX batches_by_running_max ON batches (log_id, running_max_timestamp, last_offset);
CREATE INDEX batches_by_file ON batches (file_id);
-- Finds what is old enough without a look at what is not, however much that is.
CREATE INDEX batches_to_split ON batches (log_id, max_timestamp)
    INCLUDE (last_offset, file_id, byte_size) WHERE split_id IS NULL;
