-- Whether a periodic job would find something to do. For who starts jobs, and asks every minute.

-- Of split: how many files somebody splits now; unless any are, of how many partitions something may
-- be split, and the oldest batch of it. One look into an index a log, however many rows there are and
-- whatever statistics say.
CREATE FUNCTION split_work(p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (claimed bigint, partitions bigint, file_id bigint, max_timestamp bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET enable_bitmapscan = off SET jit = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
    claimed := (SELECT count(*) FROM wal_file_claims WHERE expires_at > clock_timestamp());
    partitions := 0;
    IF claimed = 0 THEN
        SELECT count(*), (array_agg(o.file_id ORDER BY o.age, o.file_id))[1],
               min(o.age)
            INTO partitions, file_id, max_timestamp
            FROM oldest_eligible(-9223372036854775808,
                ARRAY(SELECT w.file_id FROM withheld_wal_files(clock_timestamp()) AS w),
                p_topic_ids, p_cutoffs) AS o;
    END IF;
    RETURN NEXT;
END
$$;
