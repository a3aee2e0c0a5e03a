-- A tombstone: the id is refused for ever. Waits for commits that hold a partition, and every
-- later one sees it. The rows go later, in small steps, by prune_batches.
CREATE FUNCTION delete_topic(p_topic_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id
        FOR NO KEY UPDATE;
    IF NOT FOUND OR v_topic.status = 'deleted' THEN
        RETURN;
    END IF;
    UPDATE topics SET status = 'deleted', tracked = false WHERE topic_key = v_topic.topic_key;
    PERFORM FROM logs WHERE topic_id = p_topic_id ORDER BY log_id FOR NO KEY UPDATE;
    UPDATE logs SET deleted_at = clock_timestamp() WHERE topic_id = p_topic_id;
    PERFORM notify_topic(v_topic.name);
END
$$;

-- Removes at most p_limit batch rows that nobody can read: below the start of their suffix, or of
-- a deleted topic; and the producer state of deleted topics. Locks no row that a commit needs.
-- Answers how many batch rows went; call again while it answers p_limit.
CREATE FUNCTION prune_batches(p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_pruned integer;
BEGIN
    DELETE FROM batches AS b USING (
        SELECT dead.log_id, dead.last_offset
        FROM logs AS l CROSS JOIN LATERAL (
            SELECT log_id, last_offset FROM batches
                WHERE log_id = l.log_id AND last_offset < CASE
                    WHEN l.deleted_at IS NULL THEN l.suffix_start
                    ELSE 9223372036854775807 END
                ORDER BY last_offset LIMIT p_limit
        ) AS dead
        LIMIT p_limit
    ) AS gone
    WHERE b.log_id = gone.log_id AND b.last_offset = gone.last_offset;
    GET DIAGNOSTICS v_pruned = ROW_COUNT;
    DELETE FROM producer_state AS p USING logs AS l
        WHERE l.log_id = p.log_id AND l.deleted_at IS NOT NULL;
    RETURN v_pruned;
END
$$;
