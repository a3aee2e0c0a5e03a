-- A planned wave has gone on without a topic whose migration took too long, and goes on.
ALTER TABLE plan_outcomes DROP CONSTRAINT plan_outcomes_outcome_check;
ALTER TABLE plan_outcomes ADD CONSTRAINT plan_outcomes_outcome_check CHECK (outcome IN (
    'started', 'done', 'aborted', 'refused', 'failed', 'rejected', 'allowed', 'left_behind'));
