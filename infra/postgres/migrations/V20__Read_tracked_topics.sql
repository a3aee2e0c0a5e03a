CREATE FUNCTION partition_view(p_log logs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'topic_id', p_log.topic_id, 'partition', p_log.partition,
        'state', p_log.migration_state, 'generation', p_log.generation,
        'quiesced', p_log.quiesce = 'closed',
        'boundary', p_log.diskless_log_start_offset,
        'boundary_epoch', p_log.diskless_log_start_epoch,
        'high_watermark', p_log.high_watermark,
        'suffix_start', p_log.suffix_start,
        'prefix_max_timestamp', p_log.prefix_max_timestamp,
        'prefix_max_timestamp_offset', p_log.prefix_max_timestamp_offset,
        'ready', p_log.tiering_complete)
$$;

-- Tracked topics with their partitions and overrides, in one snapshot. Deleted topics and those
-- that gateways let go of are not among them.
CREATE FUNCTION tracked_topics(p_name text)
RETURNS TABLE (
    name text, topic_id uuid, kind text, status text, timestamp_type text,
    max_message_bytes integer, partitions jsonb, overrides jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.name, t.topic_id, t.kind, t.status, t.timestamp_type, t.max_message_bytes,
           coalesce((SELECT jsonb_agg(partition_view(l) ORDER BY l.partition)
               FROM logs AS l WHERE l.topic_id = t.topic_id), '[]'),
           coalesce((SELECT jsonb_agg(to_jsonb(c) - 'topic_id' ORDER BY c.key)
               FROM config_overrides AS c WHERE c.topic_id = t.topic_id), '[]')
    FROM topics AS t
    WHERE t.tracked AND t.status <> 'deleted' AND (p_name IS NULL OR t.name = p_name)
    ORDER BY t.name
$$;

CREATE FUNCTION tracked_partition(p_topic_id uuid, p_partition integer) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT partition_view(l) FROM logs AS l
        JOIN topics AS t USING (topic_id)
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition
            AND t.tracked AND l.deleted_at IS NULL
$$;
