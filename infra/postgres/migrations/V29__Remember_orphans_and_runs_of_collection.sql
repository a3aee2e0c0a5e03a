-- Objects that were listed and that nothing refers to, since when. One that was written anew since is
-- another object: its time starts again. Times of modification are S3's, in ms.
CREATE TABLE orphan_reports (
    bucket text NOT NULL CHECK (bucket IN ('diskless', 'tiered')),
    object_key text NOT NULL,
    size bigint NOT NULL,
    etag text NOT NULL,
    modified_ms bigint NOT NULL,
    first_run bigint NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_run bigint NOT NULL,
    PRIMARY KEY (bucket, object_key)
);

CREATE INDEX orphan_reports_by_age ON orphan_reports (first_seen, bucket, object_key);
CREATE INDEX orphan_reports_by_run ON orphan_reports (last_run);

-- Why an object is dead. What is unfinished here may have been finished in a history that a restore
-- has taken back: it stays as long as an orphan.
DELETE FROM marked_objects WHERE kind = 'orphan';
ALTER TABLE marked_objects
    ADD COLUMN reason text NOT NULL DEFAULT 'unfinished'
        CHECK (reason IN ('merged', 'expired', 'unfinished')),
    DROP CONSTRAINT marked_objects_kind_check,
    ADD CONSTRAINT marked_objects_kind_check CHECK (kind IN ('split', 'segment'));
ALTER TABLE marked_objects ALTER COLUMN reason DROP DEFAULT;

-- Runs of the collection: what each found due, beside what was listed, and what became of it. A run
-- that found more due than it may delete is held until somebody allows exactly that.
CREATE TABLE gc_runs (
    run_number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'held', 'done')),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    -- When it was counted what is due: what an allowance of it is about.
    judged_at timestamptz,
    listed_objects bigint,
    listed_bytes bigint,
    due_objects bigint NOT NULL DEFAULT 0,
    due_bytes bigint NOT NULL DEFAULT 0,
    due_orphans bigint NOT NULL DEFAULT 0,
    due_orphan_bytes bigint NOT NULL DEFAULT 0,
    deleted_objects bigint NOT NULL DEFAULT 0,
    held_because text,
    allowed_by text,
    allowed_because text,
    allowed_at timestamptz,
    -- The run that deleted what this one was held for.
    used_by bigint,
    CONSTRAINT allowance_says_who_and_why CHECK ((allowed_at IS NULL)
        = (allowed_by IS NULL) AND (allowed_at IS NULL) = (allowed_because IS NULL)),
    CONSTRAINT held_run_says_why CHECK ((state = 'held') = (held_because IS NOT NULL))
);
