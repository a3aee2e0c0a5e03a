-- Orphans: objects that were listed and that nothing refers to. They are reported first, and deleted
-- by a later run that lists them again, unchanged, a grace of days after the first report. Keys are
-- random and registered before the object is written: an object that is unknown once stays unknown,
-- unless the history is restored and rebuilt, which the grace leaves time for.

-- Whether anything here refers to the object.
CREATE FUNCTION is_known_object(p_bucket text, p_key text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM marked_objects WHERE bucket = p_bucket AND object_key = p_key)
        OR (p_bucket = 'diskless' AND EXISTS (SELECT FROM wal_files WHERE object_key = p_key))
        OR (p_bucket = 'tiered' AND EXISTS (SELECT FROM merged_segments
            WHERE object_key_stem = regexp_replace(p_key, '\.[^./]*$', '')))
$$;

-- Of listed objects, those that nothing here refers to, with since when they are reported; NULL: not
-- yet. Changes nothing.
CREATE FUNCTION unknown_objects(p_bucket text, p_keys text[])
RETURNS TABLE (object_key text, reported_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT k, (SELECT epoch_ms(r.first_seen) FROM orphan_reports AS r
            WHERE r.bucket = p_bucket AND r.object_key = k)
        FROM (SELECT DISTINCT unnest(p_keys)) AS listed (k)
        WHERE NOT is_known_object(p_bucket, k)
        ORDER BY k
$$;

-- Reports those of the listed objects that nothing here refers to, and answers them. One that was
-- written anew since its report is reported anew; one that is known by now loses its report.
CREATE FUNCTION report_orphans(
    p_run_number bigint, p_bucket text, p_keys text[], p_sizes bigint[], p_etags text[],
    p_modified_ms bigint[]
) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_unknown text[] := ARRAY(SELECT object_key FROM unknown_objects(p_bucket, p_keys));
BEGIN
    DELETE FROM orphan_reports
        WHERE bucket = p_bucket AND object_key = ANY (p_keys) AND object_key <> ALL (v_unknown);
    INSERT INTO orphan_reports AS r
            (bucket, object_key, size, etag, modified_ms, first_run, last_run)
        SELECT DISTINCT ON (l.key)
               p_bucket, l.key, l.size, l.etag, l.modified_ms, p_run_number, p_run_number
        FROM unnest(p_keys, p_sizes, p_etags, p_modified_ms) AS l (key, size, etag, modified_ms)
        WHERE l.key = ANY (v_unknown)
        ORDER BY l.key
        ON CONFLICT (bucket, object_key) DO UPDATE SET last_run = excluded.last_run,
            size = excluded.size, etag = excluded.etag, modified_ms = excluded.modified_ms,
            (first_run, first_seen) = (SELECT
                CASE WHEN same THEN r.first_run ELSE excluded.first_run END,
                CASE WHEN same THEN r.first_seen ELSE excluded.first_seen END
                FROM (SELECT (r.size, r.etag, r.modified_ms)
                    = (excluded.size, excluded.etag, excluded.modified_ms)) AS s (same));
    RETURN QUERY SELECT unnest(v_unknown);
END
$$;

-- Orphans that this run has listed and an earlier one has reported a grace ago.
CREATE FUNCTION due_orphans(p_run_number bigint, p_grace_ms bigint) RETURNS SETOF orphan_reports
LANGUAGE sql STABLE AS $$
    SELECT r.* FROM orphan_reports AS r
        WHERE r.last_run >= p_run_number AND r.first_run < p_run_number
            AND r.first_seen <= clock_timestamp() - p_grace_ms * interval '1 millisecond'
            AND NOT is_known_object(r.bucket, r.object_key)
$$;

-- The oldest reports first. They come again until they are forgotten.
CREATE FUNCTION claim_orphans(p_run_number bigint, p_grace_ms bigint, p_limit integer)
RETURNS TABLE (object_key text, bucket text, size bigint, reported_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT object_key, bucket, size, epoch_ms(first_seen)
        FROM due_orphans(p_run_number, p_grace_ms)
        ORDER BY first_seen, bucket, object_key LIMIT p_limit
$$;

-- Called when the objects are gone.
CREATE FUNCTION forget_orphans(p_bucket text, p_keys text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_forgotten integer;
BEGIN
    DELETE FROM orphan_reports WHERE bucket = p_bucket AND object_key = ANY (p_keys);
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END
$$;
