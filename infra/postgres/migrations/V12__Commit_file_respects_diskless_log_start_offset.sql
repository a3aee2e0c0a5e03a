-- commit_file asks this which logs take appends: none before its boundary is set. The lock on the
-- row decides between a commit and a boundary that is being set or reset.
CREATE OR REPLACE FUNCTION lock_logs_for_commit(p_topic_ids uuid[], p_partitions integer[])
RETURNS TABLE (
    topic_id uuid, partition integer, log_id bigint, next_offset bigint,
    max_timestamp bigint, log_start_offset bigint, refusal text
)
LANGUAGE sql AS $$
    SELECT l.topic_id, l.partition, l.log_id,
           greatest(l.high_watermark, l.diskless_log_start_offset), l.max_timestamp,
           l.log_start_offset,
           CASE
               WHEN l.deleted_at IS NOT NULL THEN 'TOPIC_DELETED'
               WHEN l.diskless_log_start_offset < 0 THEN 'BOUNDARY_UNSET'
           END
    FROM logs AS l
    WHERE (l.topic_id, l.partition) IN (SELECT * FROM unnest(p_topic_ids, p_partitions))
    ORDER BY l.log_id
    FOR NO KEY UPDATE OF l
$$;
