-- Bulk reads in key ranges [lo, hi), page by page, for partitioned readers. Without sorts, whatever
-- statistics say: each page would read all that follows it.

CREATE FUNCTION log_id_range(OUT lo bigint, OUT hi bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(min(log_id), 0), coalesce(max(log_id) + 1, 0) FROM logs
$$;

CREATE FUNCTION tiering_partitions(p_lo bigint, p_hi bigint, p_limit integer)
RETURNS TABLE (
    log_id bigint, topic text, topic_id uuid, partition integer, state text, kind text,
    generation integer, boundary bigint, boundary_epoch integer, accepted_gap_from bigint,
    high_watermark bigint, log_start bigint, suffix_start bigint, tiered_start bigint, tiered_high_offset bigint,
    merge_frontier bigint, tiering_complete boolean, tiering_reason text, tiering_paused boolean,
    tiering_requested_at bigint, user_configs jsonb, deleted boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.log_id, l.topic_name, l.topic_id, l.partition, l.migration_state, t.kind,
           l.generation, l.diskless_log_start_offset, l.diskless_log_start_epoch,
           l.accepted_gap_from, l.high_watermark, l.log_start_offset, l.suffix_start,
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
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off SET enable_incremental_sort = off AS $$
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
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off SET enable_incremental_sort = off AS $$
    SELECT m.log_id, l.topic_name, l.topic_id, l.partition, m.segment_id, m.state,
           m.object_key_stem, m.base_offset, m.last_offset, m.size_bytes, m.max_timestamp,
           m.leader_epoch, m.record_count, m.batch_count, m.offset_index_bytes,
           m.time_index_bytes, epoch_ms(m.created_at), epoch_ms(m.finished_at)
    FROM (
        SELECT * FROM merged_segments AS s
            -- One comparison, which finds the place in the index: no segment ends at -1.
            WHERE (s.log_id, s.last_offset, s.segment_id) > (p_lo,
                    CASE WHEN p_after_id IS NULL THEN -1 ELSE p_after_offset END,
                    coalesce(p_after_id, '00000000-0000-0000-0000-000000000000'))
                AND s.log_id < p_hi
            ORDER BY s.log_id, s.last_offset, s.segment_id LIMIT p_limit
    ) AS m JOIN logs AS l USING (log_id)
    ORDER BY m.log_id, m.last_offset, m.segment_id
$$;
