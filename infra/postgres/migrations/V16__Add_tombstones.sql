-- A deleted topic says when, by whom and why; so does a name whose creation did not end.
ALTER TABLE topics
    ADD COLUMN deleted_at timestamptz,
    ADD COLUMN deleted_by text,
    ADD COLUMN deleted_why text;

UPDATE topics SET deleted_at = now(), deleted_by = 'unknown', deleted_why = 'not recorded then'
    WHERE status = 'deleted';

ALTER TABLE topics ADD CONSTRAINT tombstone_says_when_by_whom_and_why CHECK (
    CASE WHEN status = 'deleted'
        THEN deleted_at IS NOT NULL AND deleted_by IS NOT NULL AND deleted_why IS NOT NULL
        ELSE deleted_at IS NULL AND deleted_by IS NULL AND deleted_why IS NULL
    END);

CREATE INDEX topics_deleted_at ON topics (deleted_at) WHERE status = 'deleted';
