-- What the objects of a merged segment are to be, and when they were found to be so, a while after it
-- was finished: until then nothing that died since it was merged is collected.
ALTER TABLE merged_segments
    -- NULL: not known, it was added by a rebuild.
    ADD COLUMN snapshot_bytes integer,
    ADD COLUMN epoch_checkpoint_bytes integer,
    ADD COLUMN seen_whole_at timestamptz;

CREATE INDEX merged_segments_unseen ON merged_segments (finished_at)
    WHERE state = 'COPY_SEGMENT_FINISHED' AND seen_whole_at IS NULL;
