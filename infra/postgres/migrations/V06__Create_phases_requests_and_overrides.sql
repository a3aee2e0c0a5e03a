-- Evidence: what each phase observed, last attempt only.
CREATE TABLE migration_phases (
    log_id bigint NOT NULL REFERENCES logs (log_id),
    phase text NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'waiting', 'done', 'failed', 'aborted')),
    generation integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    waiting_reason text,
    evidence jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (log_id, phase),
    CONSTRAINT ended_phase_has_time
        CHECK ((status IN ('done', 'failed', 'aborted')) = (ended_at IS NOT NULL))
);

-- Triggers that wait for the worker.
CREATE TABLE migration_requests (
    topic_id uuid PRIMARY KEY,
    topic text NOT NULL,
    requested_by text NOT NULL,
    options jsonb NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_at timestamptz
);

-- Topic configs that Tideline overrides in Kafka, and what the user had (restored on abort).
CREATE TABLE config_overrides (
    topic_id uuid NOT NULL REFERENCES topics (topic_id),
    key text NOT NULL,
    override_value text,
    user_value text,
    PRIMARY KEY (topic_id, key)
);
