-- B0: offsets below it are in tiered storage, offsets from it on are in the suffix. -1: not set
-- (seed 000, State model). A topic born diskless has B0 = 0.
ALTER TABLE logs
    ADD COLUMN diskless_log_start_offset bigint NOT NULL DEFAULT -1
        CHECK (diskless_log_start_offset >= -1);

UPDATE logs SET diskless_log_start_offset = 0 WHERE high_watermark >= 0;

ALTER TABLE logs ADD CONSTRAINT suffix_begins_at_boundary CHECK (
    (diskless_log_start_offset = -1 AND high_watermark = -1 AND suffix_start = -1)
    OR (diskless_log_start_offset >= 0 AND suffix_start >= diskless_log_start_offset)
);

CREATE FUNCTION get_diskless_log_start_offset(p_topic_id uuid, p_partition integer)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    RETURN v_log.diskless_log_start_offset;
END
$$;
