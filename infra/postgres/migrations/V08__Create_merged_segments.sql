-- Who merges a partition. The row stays when nobody does: the token fences.
CREATE TABLE merge_claims (
    log_id bigint PRIMARY KEY REFERENCES logs (log_id),
    worker uuid,
    token bigint NOT NULL DEFAULT 0,
    segment_id uuid,
    expires_at timestamptz,
    CONSTRAINT claim_of_segment_expires CHECK ((segment_id IS NULL) = (expires_at IS NULL))
);

-- Merged segments, with the states of Kafka's remote log segments. The range and the figures are
-- the plan's until the segment is finished. Objects: object_key_stem with Kafka's suffixes.
CREATE TABLE merged_segments (
    segment_id uuid PRIMARY KEY,
    log_id bigint NOT NULL REFERENCES logs (log_id),
    token bigint NOT NULL,
    state text NOT NULL CHECK (state IN
        ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')),
    object_key_stem text NOT NULL UNIQUE,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    size_bytes bigint NOT NULL,
    max_timestamp bigint NOT NULL DEFAULT -1,
    leader_epoch integer NOT NULL,
    record_count bigint NOT NULL DEFAULT 0,
    batch_count integer NOT NULL,
    offset_index_bytes integer NOT NULL DEFAULT 0,
    time_index_bytes integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    -- Why it was given up or deleted.
    reason text,
    CONSTRAINT segment_has_offsets CHECK (base_offset <= last_offset),
    CONSTRAINT finished_segment_has_time
        CHECK (state <> 'COPY_SEGMENT_FINISHED' OR finished_at IS NOT NULL)
);

CREATE INDEX merged_segments_by_log ON merged_segments (log_id, last_offset, segment_id);
CREATE UNIQUE INDEX merged_segments_readable ON merged_segments (log_id, last_offset)
    WHERE state = 'COPY_SEGMENT_FINISHED';
CREATE INDEX merged_segments_begun ON merged_segments (log_id)
    WHERE state = 'COPY_SEGMENT_STARTED';
