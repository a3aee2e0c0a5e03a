-- When each periodic job last did all its work. A job that never runs tells nobody by itself.
CREATE TABLE job_successes (
    job text PRIMARY KEY,
    succeeded_at timestamptz NOT NULL
);
