-- A person who was asked has let the topic's batch begin.
ALTER TABLE plan_outcomes DROP CONSTRAINT plan_outcomes_outcome_check;
ALTER TABLE plan_outcomes ADD CONSTRAINT plan_outcomes_outcome_check CHECK (
    outcome IN ('started', 'done', 'aborted', 'refused', 'failed', 'rejected', 'allowed'));
