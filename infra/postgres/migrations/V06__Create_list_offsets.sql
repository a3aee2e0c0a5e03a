-- Where the suffix of a partition begins and ends, or the error that answers every read of it.
CREATE FUNCTION suffix_bounds(
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
        ELSE 'NONE'
    END;
    boundary := 0;
    suffix_start := coalesce(v_log.suffix_start, -1);
    high_watermark := coalesce(v_log.high_watermark, -1);
    log_start := coalesce(v_log.log_start_offset, -1);
END
$$;

-- The first batch of the suffix with a record at or after p_timestamp. The running maximum finds
-- it by index; only when retention has removed what made the maximum grow is it searched in order.
CREATE FUNCTION batch_at_timestamp(p_log_id bigint, p_suffix_start bigint, p_timestamp bigint)
RETURNS batches
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_batch batches;
BEGIN
    SELECT * INTO v_batch FROM batches
        WHERE log_id = p_log_id AND running_max_timestamp >= p_timestamp
            AND last_offset >= p_suffix_start
        ORDER BY running_max_timestamp, last_offset LIMIT 1;
    IF FOUND AND v_batch.max_timestamp < p_timestamp THEN
        SELECT * INTO v_batch FROM batches
            WHERE log_id = p_log_id AND last_offset > v_batch.last_offset
                AND max_timestamp >= p_timestamp
            ORDER BY last_offset LIMIT 1;
    END IF;
    RETURN v_batch;
END
$$;

-- The first batch of the suffix that holds its largest timestamp.
CREATE FUNCTION batch_of_max_timestamp(p_log_id bigint, p_suffix_start bigint)
RETURNS batches
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_batch batches;
    v_running bigint;
BEGIN
    SELECT running_max_timestamp INTO v_running FROM batches
        WHERE log_id = p_log_id AND last_offset >= p_suffix_start
        ORDER BY last_offset DESC LIMIT 1;
    v_batch := batch_at_timestamp(p_log_id, p_suffix_start, v_running);
    IF v_batch.log_id IS NULL THEN
        SELECT * INTO v_batch FROM batches
            WHERE log_id = p_log_id AND last_offset >= p_suffix_start
            ORDER BY max_timestamp DESC, last_offset LIMIT 1;
    END IF;
    RETURN v_batch;
END
$$;

-- Suffix only: never an offset below it (seed 000, "ListOffsets semantics"). Kinds: earliest,
-- latest, max_timestamp, timestamp. The last two answer the batch; its reader finds the record.
CREATE FUNCTION list_offsets(
    p_topic_id uuid, p_partition integer, p_kind text, p_timestamp bigint
) RETURNS TABLE (
    error text, found_offset bigint, found_timestamp bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_suffix record;
    v_batch batches;
BEGIN
    v_suffix := suffix_bounds(p_topic_id, p_partition);
    error := v_suffix.error;
    found_offset := -1;
    found_timestamp := -1;
    IF error = 'NONE' THEN
        CASE p_kind
            WHEN 'earliest' THEN found_offset := v_suffix.suffix_start;
            WHEN 'latest' THEN found_offset := v_suffix.high_watermark;
            WHEN 'max_timestamp' THEN
                v_batch := batch_of_max_timestamp(v_suffix.log_id, v_suffix.suffix_start);
            WHEN 'timestamp' THEN
                v_batch := batch_at_timestamp(v_suffix.log_id, v_suffix.suffix_start, p_timestamp);
        END CASE;
    END IF;
    IF v_batch.log_id IS NOT NULL THEN
        found_offset := greatest(v_batch.base_offset, v_suffix.suffix_start);
        found_timestamp := v_batch.max_timestamp;
        SELECT f.object_key INTO object_key FROM wal_files AS f WHERE f.file_id = v_batch.file_id;
        byte_offset := v_batch.byte_offset;
        byte_size := v_batch.byte_size;
        base_offset := v_batch.base_offset;
        last_offset := v_batch.last_offset;
        log_append_time := v_batch.log_append_time;
        append_time := v_batch.append_time;
        max_timestamp := v_batch.max_timestamp;
    END IF;
    RETURN NEXT;
END
$$;

-- High watermarks of the given suffixes; a partition without a suffix is left out.
CREATE FUNCTION high_watermarks(p_topic_ids uuid[], p_partitions integer[])
RETURNS TABLE (topic_id uuid, partition integer, high_watermark bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.topic_id, l.partition, l.high_watermark
    FROM unnest(p_topic_ids, p_partitions) AS wanted (topic_id, partition)
    JOIN logs AS l USING (topic_id, partition)
    WHERE l.high_watermark >= 0 AND l.deleted_at IS NULL
$$;
