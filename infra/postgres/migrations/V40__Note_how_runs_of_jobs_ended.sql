-- The newest whole run of each periodic job, and the last one that failed: job_successes says when
-- one last ended well. A run that never ends was killed, or hangs.
CREATE TABLE job_attempts (
    job text PRIMARY KEY,
    run_id uuid NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz,
    failed_at timestamptz,
    error text
);
