-- The suffix has two regions: merged segments, then batches in WAL objects. Both functions are
-- STABLE, so that one call sees one snapshot: an offset is in a segment or in batches.
CREATE FUNCTION segment_view(p_segment merged_segments) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'segment_id', p_segment.segment_id, 'object_key_stem', p_segment.object_key_stem,
        'base_offset', p_segment.base_offset, 'last_offset', p_segment.last_offset,
        'size_bytes', p_segment.size_bytes, 'max_timestamp', p_segment.max_timestamp,
        'offset_index_bytes', p_segment.offset_index_bytes,
        'time_index_bytes', p_segment.time_index_bytes)
$$;

-- The readable segment that holds the offset, or null.
CREATE FUNCTION merged_segment_at(p_log_id bigint, p_offset bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT segment_view(found) FROM (
        SELECT * FROM merged_segments AS m
            WHERE m.log_id = p_log_id AND m.state = 'COPY_SEGMENT_FINISHED'
                AND m.last_offset >= p_offset
            ORDER BY m.last_offset LIMIT 1
    ) AS found
    WHERE found.base_offset <= p_offset
$$;

-- As V07's, and an offset inside a merged segment answers one row with the segment.
DROP FUNCTION find_batches(uuid[], integer[], bigint[], integer[]);

CREATE FUNCTION find_batches(
    p_topic_ids uuid[], p_partitions integer[], p_fetch_offsets bigint[], p_max_bytes integer[]
) RETURNS TABLE (
    request integer, error text, log_start bigint, high_watermark bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint,
    segment jsonb
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
        segment := NULL;
        v_bytes := 0;
        IF error = 'NONE' AND p_fetch_offsets[i] < v_suffix.high_watermark THEN
            segment := merged_segment_at(v_suffix.log_id, p_fetch_offsets[i]);
            IF segment IS NULL THEN
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
        END IF;
        IF v_bytes = 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Segments that may hold the first record at or after p_timestamp, in offset order. Only the one
-- that the suffix starts in can fail to: its latest records may lie below the start.
CREATE FUNCTION segments_at_timestamp(
    p_log_id bigint, p_suffix_start bigint, p_timestamp bigint
) RETURNS SETOF merged_segments
LANGUAGE sql STABLE AS $$
    SELECT * FROM merged_segments
        WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
            AND last_offset >= p_suffix_start AND max_timestamp >= p_timestamp
        ORDER BY last_offset LIMIT 8
$$;

-- Segments that may hold the largest timestamp of the suffix, in offset order: the first one with
-- the largest of those that lie wholly in it, and the one that the suffix starts in.
CREATE FUNCTION segments_of_max_timestamp(p_log_id bigint, p_suffix_start bigint)
RETURNS SETOF merged_segments
LANGUAGE sql STABLE AS $$
    WITH whole AS (
        SELECT * FROM merged_segments
            WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
                AND last_offset >= p_suffix_start AND base_offset >= p_suffix_start
            ORDER BY max_timestamp DESC, last_offset LIMIT 1
    )
    SELECT * FROM (
        SELECT * FROM merged_segments
            WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
                AND last_offset >= p_suffix_start AND base_offset < p_suffix_start
                AND max_timestamp >= coalesce((SELECT max_timestamp FROM whole), -1)
        UNION ALL SELECT * FROM whole
    ) AS candidates
    ORDER BY last_offset
$$;

-- As V06's, and the candidates among merged segments beside the batch. For a timestamp the first
-- segment with such a record wins, else the batch; for the maximum the largest of all does, the
-- smallest offset among equals. found_offset and found_timestamp are the first candidate's.
DROP FUNCTION list_offsets(uuid, integer, text, bigint);

CREATE FUNCTION list_offsets(
    p_topic_id uuid, p_partition integer, p_kind text, p_timestamp bigint
) RETURNS TABLE (
    error text, found_offset bigint, found_timestamp bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint,
    suffix_start bigint, segments jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_suffix record;
    v_batch batches;
    v_segments merged_segments[] := '{}';
BEGIN
    v_suffix := suffix_bounds(p_topic_id, p_partition);
    error := v_suffix.error;
    found_offset := -1;
    found_timestamp := -1;
    suffix_start := coalesce(v_suffix.suffix_start, -1);
    IF error = 'NONE' THEN
        CASE p_kind
            WHEN 'earliest' THEN found_offset := v_suffix.suffix_start;
            WHEN 'latest' THEN found_offset := v_suffix.high_watermark;
            WHEN 'max_timestamp' THEN
                v_segments := ARRAY(SELECT s FROM segments_of_max_timestamp(v_suffix.log_id,
                    v_suffix.suffix_start) AS s);
                v_batch := batch_of_max_timestamp(v_suffix.log_id, v_suffix.suffix_start);
            WHEN 'timestamp' THEN
                v_segments := ARRAY(SELECT s FROM segments_at_timestamp(v_suffix.log_id,
                    v_suffix.suffix_start, p_timestamp) AS s);
                v_batch := batch_at_timestamp(v_suffix.log_id, v_suffix.suffix_start, p_timestamp);
        END CASE;
    END IF;
    segments := (SELECT coalesce(jsonb_agg(segment_view(s) ORDER BY s.last_offset), '[]')
        FROM unnest(v_segments) AS s);
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
    IF cardinality(v_segments) > 0 THEN
        found_offset := greatest(v_segments[1].base_offset, v_suffix.suffix_start);
        found_timestamp := v_segments[1].max_timestamp;
    END IF;
    RETURN NEXT;
END
$$;
