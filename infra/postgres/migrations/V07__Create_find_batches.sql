-- Coordinates from each fetch offset on. At least one batch per log if any is available, even one
-- larger than p_max_bytes; then as many as fit, at most 500. Refuses offsets below the boundary: a
-- suffix that answered them would hide the prefix. A log without batches answers one row without
-- an object key. STABLE: one snapshot for the watermarks and the batches.
CREATE FUNCTION find_batches(
    p_topic_ids uuid[], p_partitions integer[], p_fetch_offsets bigint[], p_max_bytes integer[]
) RETURNS TABLE (
    request integer, error text, log_start bigint, high_watermark bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_suffix record;
    v_batch record;
    v_bytes bigint;
BEGIN
    FOR i IN 1 .. cardinality(p_topic_ids) LOOP
        v_suffix := suffix_bounds(p_topic_ids[i], p_partitions[i]);
        request := i;
        log_start := v_suffix.log_start;
        high_watermark := v_suffix.high_watermark;
        error := CASE
            WHEN v_suffix.error <> 'NONE' THEN v_suffix.error
            WHEN p_fetch_offsets[i] < v_suffix.boundary THEN 'BELOW_BOUNDARY'
            WHEN p_fetch_offsets[i] < v_suffix.suffix_start
                OR p_fetch_offsets[i] > v_suffix.high_watermark THEN 'OFFSET_OUT_OF_RANGE'
            ELSE 'NONE'
        END;
        object_key := NULL;
        v_bytes := 0;
        IF error = 'NONE' AND p_fetch_offsets[i] < v_suffix.high_watermark THEN
            FOR v_batch IN
                SELECT b.*, f.object_key AS key
                FROM (
                    SELECT * FROM batches
                        WHERE log_id = v_suffix.log_id AND last_offset >= p_fetch_offsets[i]
                        ORDER BY last_offset LIMIT 500
                ) AS b JOIN wal_files AS f USING (file_id)
                ORDER BY b.last_offset
            LOOP
                EXIT WHEN v_bytes > 0 AND v_bytes + v_batch.byte_size > p_max_bytes[i];
                v_bytes := v_bytes + v_batch.byte_size;
                object_key := v_batch.key;
                byte_offset := v_batch.byte_offset;
                byte_size := v_batch.byte_size;
                base_offset := v_batch.base_offset;
                last_offset := v_batch.last_offset;
                log_append_time := v_batch.log_append_time;
                append_time := v_batch.append_time;
                max_timestamp := v_batch.max_timestamp;
                RETURN NEXT;
            END LOOP;
        END IF;
        IF v_bytes = 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
