-- The suffix has two regions: merged segments, then batches in WAL objects. Every function that
-- reads both is STABLE, so that one call sees one snapshot: an offset is in a segment or in
-- batches. Batches are not sorted: where statistics say that there is none, the planner would read a
-- log to its end and sort that, for the first few. (Up to Postgres 17 a sort that has to be looks so
-- expensive then that it would be compiled, each time: jit = off.)

-- Where the suffix of a partition begins and ends, or the error that answers every read of it. It
-- begins at the boundary or later, and nowhere before the boundary is set.
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
        WHEN v_log.diskless_log_start_offset < 0 THEN 'BOUNDARY_UNSET'
        ELSE 'NONE'
    END;
    boundary := coalesce(v_log.diskless_log_start_offset, -1);
    suffix_start := greatest(boundary, v_log.suffix_start);
    high_watermark := coalesce(v_log.high_watermark, -1);
    log_start := coalesce(v_log.log_start_offset, -1);
END
$$;

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

-- The batches from the one that holds p_offset on, each of which begins where the one before it
-- ended: at least one, even one larger than p_max_bytes, then as many as fit, at most p_limit. What
-- lies behind a hole is not answered, and nothing is when the hole is at p_offset.
CREATE FUNCTION batches_from(
    p_log_id bigint, p_offset bigint, p_max_bytes integer, p_limit integer
) RETURNS TABLE (
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_bytes bigint := 0;
    v_next bigint := p_offset;
BEGIN
    FOR object_key, byte_offset, byte_size, base_offset, last_offset,
        log_append_time, append_time, max_timestamp
    IN SELECT f.object_key, b.byte_offset, b.byte_size, b.base_offset, b.last_offset,
            b.log_append_time, b.append_time, b.max_timestamp
        FROM (
            SELECT * FROM batches
                WHERE log_id = p_log_id AND last_offset >= p_offset
                ORDER BY last_offset LIMIT p_limit
        ) AS b CROSS JOIN LATERAL (
            -- By itself: where statistics say that there is no file, a join reads all for each.
            SELECT w.object_key FROM wal_files AS w WHERE w.file_id = b.file_id OFFSET 0
        ) AS f
        ORDER BY b.last_offset
    LOOP
        EXIT WHEN base_offset > v_next OR (v_bytes > 0 AND base_offset < v_next);
        EXIT WHEN v_bytes > 0 AND v_bytes + byte_size > p_max_bytes;
        v_bytes := v_bytes + byte_size;
        v_next := last_offset + 1;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Coordinates from each fetch offset on, as batches_from has them: at most 500 of a log, and only
-- one of each log once 2000 were found in all, so that no answer is long whatever is asked for. An
-- offset inside a merged segment answers one row with the segment. Refuses offsets below the boundary: a suffix that answered them
-- would hide the prefix. At the high watermark there is one row without an object key. Below it
-- every offset lies in a segment or in a batch: one that does not is an error (SUFFIX_HOLE), since
-- the next offset that there is, or silence, would lose records without a sound.
CREATE FUNCTION find_batches(
    p_topic_ids uuid[], p_partitions integer[], p_fetch_offsets bigint[], p_max_bytes integer[]
) RETURNS TABLE (
    request integer, error text, log_start bigint, high_watermark bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint,
    segment jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_suffix record;
    v_there boolean;
    v_found integer := 0;
BEGIN
    PERFORM assert_settled();
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
        v_there := error = 'NONE' AND p_fetch_offsets[i] < v_suffix.high_watermark;
        segment := CASE
            WHEN v_there THEN merged_segment_at(v_suffix.log_id, p_fetch_offsets[i]) END;
        IF v_there AND segment IS NULL THEN
            FOR object_key, byte_offset, byte_size, base_offset, last_offset,
                log_append_time, append_time, max_timestamp
            IN SELECT * FROM batches_from(v_suffix.log_id, p_fetch_offsets[i], p_max_bytes[i],
                least(500, greatest(2000 - v_found, 1)))
            LOOP
                v_found := v_found + 1;
                RETURN NEXT;
            END LOOP;
            CONTINUE WHEN FOUND;
            error := 'SUFFIX_HOLE';
        END IF;
        object_key := NULL;
        RETURN NEXT;
    END LOOP;
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
        SELECT * FROM (
            SELECT * FROM merged_segments
                WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
                    AND last_offset >= p_suffix_start
                ORDER BY last_offset LIMIT 1
        ) AS first
            WHERE base_offset < p_suffix_start
                AND max_timestamp >= coalesce((SELECT max_timestamp FROM whole), -1)
        UNION ALL SELECT * FROM whole
    ) AS candidates
    ORDER BY last_offset
$$;

-- Suffix only: never an offset below it (seed 000, "ListOffsets semantics"). Kinds: earliest,
-- latest, max_timestamp, timestamp. The last two answer the batch, whose reader finds the record,
-- and the candidates among merged segments. For a timestamp the first segment with such a record
-- wins, else the batch; for the maximum the largest of all does, the smallest offset among equals.
-- found_offset and found_timestamp are the first candidate's.
CREATE FUNCTION list_offsets(
    p_topic_id uuid, p_partition integer, p_kind text, p_timestamp bigint
) RETURNS TABLE (
    error text, found_offset bigint, found_timestamp bigint,
    object_key text, byte_offset bigint, byte_size integer, base_offset bigint,
    last_offset bigint, log_append_time boolean, append_time bigint, max_timestamp bigint,
    suffix_start bigint, segments jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_suffix record;
    v_batch batches;
    v_segments merged_segments[] := '{}';
BEGIN
    PERFORM assert_settled();
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
        SELECT v_batch.byte_offset, v_batch.byte_size, v_batch.base_offset, v_batch.last_offset,
               v_batch.log_append_time, v_batch.append_time, v_batch.max_timestamp
            INTO byte_offset, byte_size, base_offset, last_offset,
                 log_append_time, append_time, max_timestamp;
        SELECT f.object_key INTO object_key FROM wal_files AS f WHERE f.file_id = v_batch.file_id;
    END IF;
    IF cardinality(v_segments) > 0 THEN
        found_offset := greatest(v_segments[1].base_offset, v_suffix.suffix_start);
        found_timestamp := v_segments[1].max_timestamp;
    END IF;
    RETURN NEXT;
END
$$;

-- High watermarks of the given suffixes; a partition without a suffix is left out, and so is one
-- whose high watermark is not above what the caller knows of it (default: it knows nothing).
CREATE FUNCTION high_watermarks(
    p_topic_ids uuid[], p_partitions integer[], p_known bigint[] DEFAULT NULL
) RETURNS TABLE (topic_id uuid, partition integer, high_watermark bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_settled();
    SELECT l.topic_id, l.partition, l.high_watermark
    FROM unnest(p_topic_ids, p_partitions, p_known) AS wanted (topic_id, partition, known)
    JOIN logs AS l USING (topic_id, partition)
    WHERE l.high_watermark > coalesce(wanted.known, -1) AND l.deleted_at IS NULL
$$;

-- Who has written to these suffixes and is not forgotten yet, of their newest batch each: at most
-- p_limit, those that wrote last. None of a log without B0.
CREATE FUNCTION describe_producers(
    p_topic_ids uuid[], p_partitions integer[], p_limit integer
) RETURNS TABLE (
    topic_id uuid, partition integer, producer_id bigint, producer_epoch integer,
    last_sequence integer, last_timestamp bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH newest AS (
        SELECT l.topic_id, l.partition, p.*
        FROM unnest(p_topic_ids, p_partitions) AS wanted (topic_id, partition)
        JOIN logs AS l USING (topic_id, partition)
        JOIN producer_state AS p USING (log_id)
        WHERE l.diskless_log_start_offset >= 0 AND l.deleted_at IS NULL
        ORDER BY p.updated_at DESC, p.producer_id LIMIT p_limit
    )
    SELECT topic_id, partition, producer_id, producer_epoch,
           coalesce(last_sequences[cardinality(last_sequences)], unlocated_sequence, -1),
           coalesce(append_times[cardinality(append_times)], -1)
    FROM newest ORDER BY topic_id, partition, producer_id
$$;
