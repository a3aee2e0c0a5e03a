-- One row: when producers were expired last, by the database's clock, which a restore, a failover or
-- an administrator may set forward. After a jump nobody is forgotten for as long as one may be idle.
CREATE TABLE producer_expiry (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_run timestamptz NOT NULL,
    not_before timestamptz NOT NULL DEFAULT '-infinity'
);
