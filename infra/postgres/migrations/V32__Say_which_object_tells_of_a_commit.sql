-- A WAL object ends with the outcomes of earlier commits of its stream, so that the bucket tells what
-- Postgres does (decision 19). Who carries the outcomes of a file stays as long as that file is read.
ALTER TABLE wal_files
    -- Place in the commit stream of its incarnation; null: it has no batches, or was written before
    -- objects said what they hold.
    ADD COLUMN stream_sequence bigint,
    -- Places, from 0, of the batches that are in the object and were not committed with it.
    ADD COLUMN withdrawn integer[],
    -- The committed file whose object tells the outcomes of this one.
    ADD COLUMN carried_by bigint;

CREATE INDEX wal_files_untold ON wal_files (gateway_id, incarnation, stream_sequence)
    WHERE status = 'committed' AND stream_sequence IS NOT NULL AND carried_by IS NULL;
CREATE INDEX wal_files_carried ON wal_files (carried_by)
    WHERE carried_by IS NOT NULL AND unreferenced_at IS NULL;
