-- Objects that nothing refers to any more, marked for deletion. They are deleted after a grace,
-- then forgotten. An orphan is an object that was listed and is known to nobody: it must be listed
-- again to go.
CREATE TABLE marked_objects (
    bucket text NOT NULL CHECK (bucket IN ('diskless', 'tiered')),
    object_key text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('split', 'segment', 'orphan')),
    segment_id uuid,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, object_key)
);

CREATE INDEX marked_objects_by_age ON marked_objects (marked_at);
CREATE INDEX marked_objects_of_segment ON marked_objects (segment_id)
    WHERE segment_id IS NOT NULL;
