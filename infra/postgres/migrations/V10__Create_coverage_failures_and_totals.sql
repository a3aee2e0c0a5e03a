-- What the last coverage run said of a partition's prefix, for the B0 it looked at.
CREATE TABLE coverage_results (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    generation integer NOT NULL,
    boundary bigint NOT NULL,
    complete boolean NOT NULL,
    reason text NOT NULL,
    detail jsonb NOT NULL,
    run_id text NOT NULL,
    observed_at timestamptz NOT NULL,
    since timestamptz NOT NULL
);

-- Failed attempts in a row: of a WAL file (split, its file_id) or a partition (merge, its log_id).
CREATE TABLE tiering_failures (
    scope text NOT NULL CHECK (scope IN ('split', 'merge')),
    key bigint NOT NULL,
    failures integer NOT NULL,
    error text NOT NULL,
    parked boolean NOT NULL,
    retry_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key)
);

-- Counters of split and merge (seed 002, 4.8.1). A job lives only as long as its run; what the
-- worker exports must outlive it. Names: tideline/domain/tiering_totals.py.
CREATE TABLE tiering_totals (
    total text PRIMARY KEY,
    value bigint NOT NULL CHECK (value >= 0)
);
