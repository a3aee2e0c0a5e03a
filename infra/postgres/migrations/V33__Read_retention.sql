-- What retention looks at in a suffix, and where it cuts the WAL region. Neither locks anything.

-- The units of the suffixes of p_log_ids: merged segments (region 1) and, where p_sized says so,
-- all WAL batches as one row (region 2). One statement, so that a batch that is merged meanwhile
-- counts once.
CREATE FUNCTION retention_suffix(p_log_ids bigint[], p_sized boolean[])
RETURNS TABLE (
    log_id bigint, region integer, start_offset bigint, end_offset bigint, size_bytes bigint,
    max_timestamp bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.log_id, u.*
    FROM unnest(p_log_ids, p_sized) AS wanted (log_id, sized)
    JOIN logs AS l USING (log_id)
    CROSS JOIN LATERAL (
        SELECT 1, s.base_offset, s.last_offset, s.size_bytes, s.max_timestamp
            FROM merged_segments AS s
            WHERE s.log_id = l.log_id AND s.state = 'COPY_SEGMENT_FINISHED'
                AND s.last_offset >= l.suffix_start
        UNION ALL
        SELECT 2, min(b.base_offset), max(b.last_offset), sum(b.byte_size)::bigint, -1::bigint
            FROM batches AS b
            WHERE wanted.sized AND b.log_id = l.log_id
                AND b.last_offset >= l.suffix_start
            HAVING count(*) > 0
    ) AS u
    WHERE l.deleted_at IS NULL AND l.suffix_start >= 0
$$;

-- The leading run of WAL batches that retention removes, log by log: a batch goes when its
-- max_timestamp is at most the cutoff (-1: none is), else while the excess holds all of it; either
-- way the excess shrinks. tideline.domain.retention.LeadingRun is the same rule.
-- Answers before_offset (exclusive). Looks at no more than p_limit batches in all: a log that is
-- not reached is left out, and what is left over is the next run's.
CREATE FUNCTION retention_wal_cut(
    p_log_ids bigint[], p_from bigint[], p_cutoffs bigint[], p_excess bigint[], p_limit integer
) RETURNS TABLE (
    log_id bigint, before_offset bigint, by_time bigint, by_size bigint, removed_bytes bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_left integer := p_limit;
    v_excess bigint;
    v_batch record;
BEGIN
    FOR i IN 1 .. cardinality(p_log_ids) LOOP
        EXIT WHEN v_left <= 0;
        log_id := p_log_ids[i];
        before_offset := p_from[i];
        by_time := 0;
        by_size := 0;
        removed_bytes := 0;
        v_excess := p_excess[i];
        FOR v_batch IN
            SELECT b.base_offset, b.last_offset, b.byte_size, b.max_timestamp FROM batches AS b
                WHERE b.log_id = p_log_ids[i] AND b.last_offset >= p_from[i]
                ORDER BY b.last_offset LIMIT v_left
        LOOP
            v_left := v_left - 1;
            -- What stood here was merged since the caller looked.
            EXIT WHEN v_batch.base_offset > before_offset;
            IF p_cutoffs[i] >= 0 AND v_batch.max_timestamp <= p_cutoffs[i] THEN
                by_time := by_time + 1;
            ELSIF v_excess > 0 AND v_batch.byte_size <= v_excess THEN
                by_size := by_size + 1;
            ELSE
                EXIT;
            END IF;
            v_excess := greatest(v_excess - v_batch.byte_size, 0);
            removed_bytes := removed_bytes + v_batch.byte_size;
            before_offset := v_batch.last_offset + 1;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;

GRANT EXECUTE ON FUNCTION retention_suffix, retention_wal_cut TO tideline_jobs_rights;
