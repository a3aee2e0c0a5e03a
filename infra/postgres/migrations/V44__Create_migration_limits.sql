-- What operators allow of all migrations together; the newest row holds. NULL: no limit but the worker's
-- setting (topics), or none (partitions).
CREATE TABLE migration_limits (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topics integer CONSTRAINT topics_not_negative CHECK (topics >= 0),
    partitions integer CONSTRAINT partitions_not_negative CHECK (partitions >= 0),
    set_by text NOT NULL,
    reason text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
