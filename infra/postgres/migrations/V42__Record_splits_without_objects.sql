-- A run of a WAL file is recorded and not copied: it has no object of its own, and its bytes are those
-- of its batches in the WAL object, which stays until they are merged. Rows with a key are of an earlier
-- version; their objects go when their last batch is merged, as they always did.
ALTER TABLE split_files ALTER COLUMN object_key DROP NOT NULL;

-- The second telling of a split finds what the first one has recorded.
CREATE INDEX split_files_recorded ON split_files (file_id, token) WHERE object_key IS NULL;

-- What was split and merged, noted in the transaction that did it: so a count is right whoever is
-- killed, tried again or run twice. Rows are only added, so that nobody waits for another; a run that
-- ends adds its own up into tiering_totals.
CREATE TABLE tiering_work (
    worker uuid NOT NULL,
    total text NOT NULL,
    value bigint NOT NULL CHECK (value >= 0),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX tiering_work_by_worker ON tiering_work (worker);
CREATE INDEX tiering_work_by_age ON tiering_work (noted_at);
