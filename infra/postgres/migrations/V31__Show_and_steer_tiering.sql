-- Bulk reads in key ranges [lo, hi), page by page, for partitioned readers.
CREATE FUNCTION log_id_range(OUT lo bigint, OUT hi bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(min(log_id), 0), coalesce(max(log_id) + 1, 0) FROM logs
$$;

CREATE FUNCTION file_id_range(OUT lo bigint, OUT hi bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(min(file_id), 0), coalesce(max(file_id) + 1, 0) FROM wal_files
$$;

CREATE FUNCTION tiering_partitions(p_lo bigint, p_hi bigint, p_limit integer)
RETURNS TABLE (
    log_id bigint, topic text, topic_id uuid, partition integer, state text, kind text,
    generation integer, boundary bigint, boundary_epoch integer, high_watermark bigint,
    log_start bigint, suffix_start bigint, tiered_start bigint, tiered_high_offset bigint,
    merge_frontier bigint, tiering_complete boolean, tiering_reason text, tiering_paused boolean,
    tiering_requested_at bigint, user_configs jsonb, deleted boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.log_id, l.topic_name, l.topic_id, l.partition, l.migration_state, t.kind,
           l.generation, l.diskless_log_start_offset, l.diskless_log_start_epoch,
           l.high_watermark, l.log_start_offset, l.suffix_start,
           l.tiered_log_start_offset, l.tiered_high_offset,
           CASE WHEN l.diskless_log_start_offset < 0 THEN -1 ELSE merge_frontier(l) END,
           l.tiering_complete, l.tiering_reason, t.tiering_paused,
           epoch_ms(t.tiering_requested_at),
           coalesce((SELECT jsonb_object_agg(c.key, c.user_value)
               FROM config_overrides AS c WHERE c.topic_id = l.topic_id), '{}'),
           l.deleted_at IS NOT NULL
    FROM logs AS l JOIN topics AS t USING (topic_id)
    WHERE l.log_id >= p_lo AND l.log_id < p_hi
    ORDER BY l.log_id LIMIT p_limit
$$;

-- From after (p_lo, p_after_offset) on.
CREATE FUNCTION tiering_batches(
    p_lo bigint, p_hi bigint, p_after_offset bigint, p_limit integer
) RETURNS TABLE (
    log_id bigint, base_offset bigint, last_offset bigint, byte_size integer,
    max_timestamp bigint, file_id bigint, split_id bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT b.log_id, b.base_offset, b.last_offset, b.byte_size, b.max_timestamp, b.file_id,
           b.split_id
    FROM batches AS b
    WHERE (b.log_id, b.last_offset) > (p_lo, p_after_offset) AND b.log_id < p_hi
    ORDER BY b.log_id, b.last_offset LIMIT p_limit
$$;

-- From after (p_lo, p_after_offset, p_after_id) on; a null id: from p_lo on.
CREATE FUNCTION tiering_segments(
    p_lo bigint, p_hi bigint, p_after_offset bigint, p_after_id uuid, p_limit integer
) RETURNS TABLE (
    log_id bigint, topic text, topic_id uuid, partition integer, segment_id uuid, state text,
    object_key_stem text, base_offset bigint, last_offset bigint, size_bytes bigint,
    max_timestamp bigint, leader_epoch integer, record_count bigint, batch_count integer,
    offset_index_bytes integer, time_index_bytes integer, created_at bigint, finished_at bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT m.log_id, l.topic_name, l.topic_id, l.partition, m.segment_id, m.state,
           m.object_key_stem, m.base_offset, m.last_offset, m.size_bytes, m.max_timestamp,
           m.leader_epoch, m.record_count, m.batch_count, m.offset_index_bytes,
           m.time_index_bytes, epoch_ms(m.created_at), epoch_ms(m.finished_at)
    FROM merged_segments AS m JOIN logs AS l USING (log_id)
    WHERE m.log_id >= p_lo AND m.log_id < p_hi
        AND (p_after_id IS NULL
            OR (m.log_id, m.last_offset, m.segment_id) > (p_lo, p_after_offset, p_after_id))
    ORDER BY m.log_id, m.last_offset, m.segment_id LIMIT p_limit
$$;

CREATE FUNCTION tiering_wal_files(p_lo bigint, p_hi bigint, p_limit integer)
RETURNS TABLE (
    file_id bigint, object_key text, status text, size bigint, registered_at bigint,
    committed_at bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT file_id, object_key, status, size, epoch_ms(registered_at), epoch_ms(committed_at)
    FROM wal_files WHERE file_id >= p_lo AND file_id < p_hi
    ORDER BY file_id LIMIT p_limit
$$;

-- A failure in a row: retried later and later, then parked until an operator acts.
CREATE FUNCTION record_tiering_failure(
    p_scope text, p_key bigint, p_error text, p_park_after integer, p_backoff_ms bigint
) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO tiering_failures AS f (scope, key, failures, error, parked, retry_at)
        VALUES (p_scope, p_key, 1, left(p_error, 2000), p_park_after <= 1,
            clock_timestamp() + least(p_backoff_ms, 3600000) * interval '1 millisecond')
        ON CONFLICT (scope, key) DO UPDATE SET failures = f.failures + 1,
            error = excluded.error, parked = f.failures + 1 >= p_park_after,
            failed_at = excluded.failed_at,
            retry_at = clock_timestamp() + interval '1 millisecond'
                * least(p_backoff_ms * power(2, least(f.failures, 30)), 3600000)
        RETURNING failures
$$;

CREATE FUNCTION clear_tiering_failure(p_scope text, p_key bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    DELETE FROM tiering_failures WHERE scope = p_scope AND key = p_key
$$;

-- Failures of a log: its merge's, and those of WAL files that hold batches of it to split.
CREATE FUNCTION failures_of_log(p_log_id bigint)
RETURNS TABLE (scope text, key bigint, failures integer, error text, parked boolean,
    failed_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT f.scope, f.key, f.failures, f.error, f.parked, f.failed_at
    FROM tiering_failures AS f
    WHERE CASE f.scope WHEN 'merge' THEN f.key = p_log_id
        ELSE EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.key
            AND b.log_id = p_log_id AND b.split_id IS NULL) END
$$;

CREATE FUNCTION unpark_tiering(p_topic_id uuid) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM tiering_failures AS t USING logs AS l, failures_of_log(l.log_id) AS f
        WHERE l.topic_id = p_topic_id AND t.scope = f.scope AND t.key = f.key
$$;

CREATE FUNCTION pause_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_paused = true WHERE topic_key = v_topic.topic_key;
END
$$;

CREATE FUNCTION resume_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_paused = false WHERE topic_key = v_topic.topic_key;
    PERFORM unpark_tiering(v_topic.topic_id);
END
$$;

CREATE FUNCTION request_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_requested_at = clock_timestamp()
        WHERE topic_key = v_topic.topic_key;
    PERFORM unpark_tiering(v_topic.topic_id);
END
$$;

-- Seed 002, 4.8.2 TieringStatus, per partition with a suffix. Counts rows: an index-only scan.
CREATE FUNCTION tiering_status(p_topic text, p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, state text, boundary bigint,
    tiered_high_offset bigint, diskless_start_offset bigint, high_watermark bigint,
    pending_batches bigint, pending_bytes bigint, pending_split_batches bigint,
    pending_split_files bigint, eligible_bytes bigint, merged_segments bigint,
    merged_bytes bigint, paused boolean, requested_at bigint, failures integer, parked boolean,
    parked_reason text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.topic_name, l.topic_id, l.partition, l.log_id, l.migration_state,
           l.diskless_log_start_offset, l.tiered_high_offset,
           greatest(merge_frontier(l), l.suffix_start), l.high_watermark,
           unsplit.batches, unsplit.bytes + split.bytes, split.batches, split.files,
           unsplit.eligible, merged.segments, merged.bytes, t.tiering_paused,
           epoch_ms(t.tiering_requested_at), coalesce(failed.failures, 0),
           coalesce(failed.parked, false), failed.error
    FROM logs AS l
    JOIN topics AS t USING (topic_id)
    LEFT JOIN unnest(p_topic_ids, p_cutoffs) AS c (topic_id, cutoff) USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, coalesce(sum(b.byte_size), 0)::bigint AS bytes,
               coalesce(sum(b.byte_size) FILTER (WHERE b.max_timestamp < c.cutoff
                   OR t.tiering_requested_at IS NOT NULL), 0)::bigint AS eligible
        FROM batches AS b
        WHERE b.log_id = l.log_id AND b.split_id IS NULL
            AND b.last_offset >= l.suffix_start
    ) AS unsplit
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(s.batch_count), 0)::bigint AS batches,
               coalesce(sum(s.byte_size), 0)::bigint AS bytes, count(*) AS files
        FROM pending_splits(l.log_id, greatest(merge_frontier(l), l.suffix_start)) AS s
    ) AS split
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, coalesce(sum(m.size_bytes), 0)::bigint AS bytes
        FROM merged_segments AS m
        WHERE m.log_id = l.log_id AND m.state = 'COPY_SEGMENT_FINISHED'
            AND m.last_offset >= l.suffix_start
    ) AS merged
    LEFT JOIN LATERAL (
        SELECT max(f.failures) AS failures, bool_or(f.parked) AS parked,
               (array_agg(f.error ORDER BY f.parked DESC, f.failed_at DESC))[1] AS error
        FROM failures_of_log(l.log_id) AS f
    ) AS failed ON true
    WHERE l.deleted_at IS NULL AND l.diskless_log_start_offset >= 0
        AND (p_topic IS NULL OR l.topic_name = p_topic)
    ORDER BY l.topic_name, l.partition
$$;
