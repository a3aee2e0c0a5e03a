-- What garbage collection would do, for a dry run: nothing is marked. due: its object may go now;
-- else it is marked by the next run, or its grace is not over.
CREATE FUNCTION preview_garbage(p_grace_ms bigint, p_limit integer)
RETURNS TABLE (object_key text, bucket text, kind text, due boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_before timestamptz := clock_timestamp() - p_grace_ms * interval '1 millisecond';
BEGIN
    RETURN QUERY
    SELECT f.object_key, 'diskless', 'wal', f.status = 'deleting'
            OR (f.status = 'registered') OR coalesce(f.unreferenced_at <= v_before, false)
        FROM wal_files AS f
        WHERE f.status = 'deleting'
            OR (f.status = 'registered' AND f.registered_at < v_before)
            OR (f.status = 'committed' AND NOT EXISTS (
                SELECT FROM batches AS b JOIN logs AS l USING (log_id)
                    WHERE b.file_id = f.file_id AND l.deleted_at IS NULL
                        AND b.last_offset >= l.suffix_start))
        ORDER BY f.file_id LIMIT p_limit;
    RETURN QUERY
    SELECT d.object_key, d.bucket, d.kind, d.marked_at <= v_before
        FROM marked_objects AS d WHERE d.kind <> 'orphan'
        ORDER BY d.marked_at, d.object_key LIMIT p_limit;
    RETURN QUERY
    SELECT f.object_key, 'diskless', 'split', false
        FROM split_files AS f LEFT JOIN logs AS l USING (log_id)
        WHERE (f.status = 'registered' AND NOT EXISTS (SELECT FROM wal_file_claims AS c
                WHERE c.file_id = f.file_id AND c.token = f.token AND c.expires_at > v_before))
            OR (f.status = 'live'
                AND (l.deleted_at IS NOT NULL OR f.last_offset < l.suffix_start))
        ORDER BY f.split_id LIMIT p_limit;
    RETURN QUERY
    SELECT m.object_key_stem || '.log', 'tiered', 'segment', false
        FROM merged_segments AS m JOIN logs AS l USING (log_id)
        WHERE m.state <> 'DELETE_SEGMENT_STARTED' AND (
            l.deleted_at IS NOT NULL
            OR (m.state = 'COPY_SEGMENT_FINISHED' AND m.last_offset < l.suffix_start)
            OR (m.state = 'COPY_SEGMENT_STARTED' AND NOT EXISTS (SELECT FROM merge_claims AS c
                WHERE c.log_id = m.log_id AND c.segment_id = m.segment_id
                    AND c.expires_at > v_before)))
        ORDER BY m.segment_id LIMIT p_limit;
END
$$;

-- Of listed objects, those that nothing here refers to; due: seen so a grace ago already.
CREATE FUNCTION unknown_objects(p_bucket text, p_keys text[], p_grace_ms bigint)
RETURNS TABLE (object_key text, due boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT k, EXISTS (SELECT FROM marked_objects AS d
            WHERE d.bucket = p_bucket AND d.object_key = k AND d.kind = 'orphan'
                AND d.marked_at <= clock_timestamp() - p_grace_ms * interval '1 millisecond')
        FROM (SELECT DISTINCT unnest(p_keys)) AS listed (k)
        WHERE NOT is_known_object(p_bucket, k)
        ORDER BY k
$$;

GRANT EXECUTE ON FUNCTION preview_garbage, unknown_objects TO tideline_jobs_rights;
