-- WAL files that lost batches, or were committed without one: those alone can have become dead. One
-- row for each transaction that took batches from a file, never merged with another's: what one
-- transaction still sees, another one may be deleting, and its own row comes with its commit.
CREATE TABLE lessened_files (
    note_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    file_id bigint NOT NULL
);

INSERT INTO lessened_files (file_id)
    SELECT f.file_id FROM wal_files AS f
        WHERE f.status = 'committed' AND f.unreferenced_at IS NULL
            AND NOT EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.file_id);

DROP INDEX wal_files_referenced;

-- A key that was never committed has no row any more once its grace is over; an object under it is
-- an orphan like any other.
DELETE FROM wal_files WHERE status = 'deleting' AND committed_at IS NULL;
