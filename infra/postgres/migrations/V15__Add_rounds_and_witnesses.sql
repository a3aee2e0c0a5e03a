-- A round of tracking ends with an abort. What was acknowledged in one counts in no other.
ALTER TABLE topics ADD COLUMN round integer NOT NULL DEFAULT 1 CHECK (round >= 1);
ALTER TABLE tracking_acks ADD COLUMN round integer NOT NULL DEFAULT 1;

-- Runs of migrations that may begin no round (any more): each has begun one, or was aborted first.
CREATE TABLE tracking_runs (
    run text PRIMARY KEY,
    -- The round that it began or joined, of which topic; none if it was aborted before that.
    topic_key bigint REFERENCES topics (topic_key) ON DELETE CASCADE,
    round integer,
    ended boolean NOT NULL DEFAULT false,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX tracking_runs_of_topic ON tracking_runs (topic_key);

-- A process that stopped cleanly has released its lease: nobody waits for it to lapse.
ALTER TABLE gateways DROP CONSTRAINT gateways_status_check;
ALTER TABLE gateways ADD CONSTRAINT gateways_status_check
    CHECK (status IN ('active', 'fenced', 'released', 'retired'));

-- Incarnations that could act when a generation was closed: B0 waits for each of them, until it
-- acknowledges or is over. One that registered later is none, whatever it acknowledges.
CREATE TABLE quiesce_witnesses (
    log_id bigint NOT NULL REFERENCES logs (log_id) ON DELETE CASCADE,
    generation integer NOT NULL,
    incarnation uuid NOT NULL,
    PRIMARY KEY (log_id, generation, incarnation)
);
