-- What an operator decided that no rule could: who, why, when. Never updated, never deleted. No
-- reference to topics: an option may be changed before the topic is tracked.
CREATE TABLE operator_actions (
    action_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    topic_id uuid NOT NULL,
    -- NULL: the whole topic.
    partition integer,
    action text NOT NULL
        CHECK (action IN ('configure', 'accept_gap', 'force_completion', 'call_off_request')),
    decided_by text NOT NULL CHECK (decided_by <> ''),
    reason text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}',
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX operator_actions_by_topic ON operator_actions (topic, action_id);

-- First offset of a log gap [it, B0) whose loss an operator has accepted, and the leader epoch at
-- which nobody had it; -1 if none.
ALTER TABLE logs ADD COLUMN accepted_gap_from bigint NOT NULL DEFAULT -1,
    ADD COLUMN accepted_gap_epoch integer NOT NULL DEFAULT -1,
    ADD CONSTRAINT accepted_gap_lies_below_b0
        CHECK (accepted_gap_from < 0 OR accepted_gap_from < diskless_log_start_offset);

-- Frozen and sealed although a prefix is not complete; NULL: nobody forced it.
ALTER TABLE topics ADD COLUMN completion_forced_by text;

-- What became of a request: it is kept until another one of the topic takes its place.
ALTER TABLE migration_requests
    ADD COLUMN state text NOT NULL DEFAULT 'received' CHECK (state IN
        ('received', 'retrying', 'started', 'done', 'refused', 'called_off')),
    ADD COLUMN reason text NOT NULL DEFAULT '',
    ADD COLUMN tries integer NOT NULL DEFAULT 0,
    ADD COLUMN next_try_at timestamptz,
    ADD COLUMN changed_at timestamptz NOT NULL DEFAULT clock_timestamp();

UPDATE migration_requests SET state = 'started' WHERE taken_at IS NOT NULL;
