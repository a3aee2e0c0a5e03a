-- list_offsets and find_batches ask this where the suffix begins: at the boundary or later, and
-- nowhere before the boundary is set.
CREATE OR REPLACE FUNCTION suffix_bounds(
    p_topic_id uuid, p_partition integer,
    OUT error text, OUT log_id bigint, OUT boundary bigint, OUT suffix_start bigint,
    OUT high_watermark bigint, OUT log_start bigint
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs AS l
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition;
    log_id := v_log.log_id;
    error := CASE
        WHEN v_log.log_id IS NULL THEN 'UNKNOWN_LOG'
        WHEN v_log.deleted_at IS NOT NULL THEN 'TOPIC_DELETED'
        WHEN v_log.diskless_log_start_offset < 0 THEN 'BOUNDARY_UNSET'
        ELSE 'NONE'
    END;
    boundary := coalesce(v_log.diskless_log_start_offset, -1);
    suffix_start := greatest(boundary, v_log.suffix_start);
    high_watermark := coalesce(v_log.high_watermark, -1);
    log_start := coalesce(v_log.log_start_offset, -1);
END
$$;
