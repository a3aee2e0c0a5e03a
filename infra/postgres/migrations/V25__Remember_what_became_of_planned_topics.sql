-- When the last migration was aborted; NULL: none was, or before this was noted.
ALTER TABLE topics ADD COLUMN aborted_at timestamptz;

-- What became of each topic of a planned wave. A plan starts a topic once; a person starts it again.
CREATE TABLE plan_outcomes (
    plan text NOT NULL CHECK (plan <> ''),
    topic text NOT NULL,
    outcome text NOT NULL
        CHECK (outcome IN ('started', 'done', 'aborted', 'refused', 'failed', 'rejected')),
    reason text NOT NULL,
    -- The run of the wave that told it.
    run text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (plan, topic)
);
