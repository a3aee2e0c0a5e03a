-- Names of topics whose tracking has changed, by the transaction that did it. Rows are only added,
-- so that the partitions of a topic do not wait for each other in their write pauses.
CREATE TABLE tracking_changes (
    changed_by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    name text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX tracking_changes_in_order ON tracking_changes (changed_by);

-- What was changed before this transaction may be forgotten: who read before it reads everything.
CREATE TABLE tracking_changes_kept (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    forgotten_before xid8 NOT NULL DEFAULT '0'
);
INSERT INTO tracking_changes_kept DEFAULT VALUES;
