-- An object is marked first and deleted a grace later: a reader or an uploader that began before
-- the mark has ended by then. Marks are compare-and-set: what is marked is never finished or read
-- again. Nothing here locks a row that a commit needs.

-- As V10's, with the grace counted from when the last batch row was seen gone: a reader may have
-- found coordinates a moment before.
CREATE OR REPLACE FUNCTION claim_dead_files(p_grace_ms bigint, p_limit integer)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_before timestamptz;
BEGIN
    UPDATE wal_files AS f SET unreferenced_at = clock_timestamp()
        WHERE f.status = 'committed' AND f.unreferenced_at IS NULL
            AND NOT EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.file_id);
    v_before := clock_timestamp() - p_grace_ms * interval '1 millisecond';
    RETURN QUERY
    WITH dead AS (
        SELECT f.file_id FROM wal_files AS f
            WHERE f.status = 'deleting'
                OR (f.status = 'registered' AND f.registered_at < v_before)
                OR (f.status = 'committed' AND f.unreferenced_at <= v_before)
            ORDER BY f.file_id LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    UPDATE wal_files AS f SET status = 'deleting' FROM dead WHERE f.file_id = dead.file_id
        RETURNING f.object_key;
END
$$;

CREATE INDEX wal_files_unreferenced ON wal_files (unreferenced_at)
    WHERE unreferenced_at IS NOT NULL;

-- Split files that nothing will use: expired, of a deleted topic, or registered under a claim that
-- is lost or lapsed a grace ago.
CREATE FUNCTION mark_dead_splits_for_deletion(p_lapsed timestamptz, p_limit integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mark_splits_for_deletion(ARRAY(
        SELECT f.split_id FROM split_files AS f
            WHERE f.status = 'registered' AND NOT EXISTS (SELECT FROM wal_file_claims AS c
                WHERE c.file_id = f.file_id AND c.token = f.token AND c.expires_at > p_lapsed)
            ORDER BY f.split_id LIMIT p_limit FOR UPDATE OF f SKIP LOCKED));
    PERFORM mark_splits_for_deletion(ARRAY(
        SELECT f.split_id FROM split_files AS f JOIN logs AS l USING (log_id)
            WHERE f.status = 'live'
                AND (l.deleted_at IS NOT NULL OR f.last_offset < l.suffix_start)
            ORDER BY f.split_id LIMIT p_limit FOR UPDATE OF f SKIP LOCKED));
END
$$;

-- Segments that nobody reads or finishes: expired, of a deleted topic, or begun under a claim that
-- is lost or lapsed a grace ago.
CREATE FUNCTION mark_dead_segments_for_deletion(p_lapsed timestamptz, p_limit integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mark_segments_for_deletion(ARRAY(
        SELECT m.segment_id FROM merged_segments AS m
            WHERE m.state = 'COPY_SEGMENT_STARTED' AND NOT EXISTS (SELECT FROM merge_claims AS c
                WHERE c.log_id = m.log_id AND c.segment_id = m.segment_id
                    AND c.expires_at > p_lapsed)
            ORDER BY m.segment_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED),
        'its worker ended without finishing it');
    PERFORM mark_segments_for_deletion(ARRAY(
        SELECT m.segment_id FROM merged_segments AS m JOIN logs AS l USING (log_id)
            WHERE m.state <> 'DELETE_SEGMENT_STARTED'
                AND (l.deleted_at IS NOT NULL OR (m.state = 'COPY_SEGMENT_FINISHED'
                    AND m.last_offset < l.suffix_start))
            ORDER BY m.segment_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED),
        'expired, or its topic was deleted');
END
$$;

-- Marks what is dead and answers what was marked a grace ago, until it is forgotten.
CREATE FUNCTION claim_dead_objects(p_grace_ms bigint, p_limit integer)
RETURNS TABLE (object_key text, bucket text, kind text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_lapsed timestamptz := clock_timestamp() - p_grace_ms * interval '1 millisecond';
BEGIN
    PERFORM mark_dead_splits_for_deletion(v_lapsed, p_limit);
    PERFORM mark_dead_segments_for_deletion(v_lapsed, p_limit);
    -- What belongs to files and logs that are gone.
    DELETE FROM wal_file_claims AS c
        WHERE c.expires_at < v_lapsed
            AND NOT EXISTS (SELECT FROM wal_files AS f WHERE f.file_id = c.file_id);
    DELETE FROM tiering_failures AS t
        WHERE t.scope = 'split'
            AND NOT EXISTS (SELECT FROM wal_files AS f WHERE f.file_id = t.key);
    DELETE FROM tiering_failures AS t USING logs AS l
        WHERE t.scope = 'merge' AND l.log_id = t.key AND l.deleted_at IS NOT NULL;
    DELETE FROM producer_snapshots AS s USING logs AS l
        WHERE l.log_id = s.log_id AND l.deleted_at IS NOT NULL;
    DELETE FROM coverage_results AS r USING logs AS l
        WHERE l.log_id = r.log_id AND l.deleted_at IS NOT NULL;
    -- An orphan that is not listed any more is gone.
    DELETE FROM marked_objects AS d
        WHERE d.kind = 'orphan' AND d.marked_at < v_lapsed - interval '7 days';
    RETURN QUERY
    SELECT d.object_key, d.bucket, d.kind FROM marked_objects AS d
        WHERE d.kind <> 'orphan'
            AND d.marked_at <= clock_timestamp() - p_grace_ms * interval '1 millisecond'
        ORDER BY d.marked_at, d.segment_id, d.object_key LIKE '%.log' DESC, d.object_key
        LIMIT p_limit;
END
$$;

-- Called when the objects are gone.
CREATE FUNCTION forget_dead_objects(p_keys text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_forgotten integer;
    v_segments uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM marked_objects WHERE object_key = ANY (p_keys) RETURNING segment_id
    )
    SELECT count(*), array_agg(DISTINCT segment_id) INTO v_forgotten, v_segments FROM gone;
    DELETE FROM split_files WHERE object_key = ANY (p_keys) AND status = 'deleting';
    DELETE FROM merged_segments AS m
        WHERE m.segment_id = ANY (v_segments) AND m.state = 'DELETE_SEGMENT_STARTED'
            AND NOT EXISTS (SELECT FROM marked_objects AS d WHERE d.segment_id = m.segment_id);
    RETURN v_forgotten;
END
$$;

-- Whether anything here refers to the object.
CREATE FUNCTION is_known_object(p_bucket text, p_key text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM marked_objects
            WHERE bucket = p_bucket AND object_key = p_key AND kind <> 'orphan')
        OR (p_bucket = 'diskless' AND (
            EXISTS (SELECT FROM wal_files WHERE object_key = p_key)
            OR EXISTS (SELECT FROM split_files WHERE object_key = p_key)))
        OR (p_bucket = 'tiered' AND EXISTS (SELECT FROM merged_segments
            WHERE object_key_stem = regexp_replace(p_key, '\.[^./]*$', '')))
$$;

-- The first sight of an unknown object marks it; it may go when it is still unknown a grace later.
-- One that has become known (a key registered late) loses its mark.
CREATE FUNCTION mark_orphans_for_deletion(p_bucket text, p_keys text[], p_grace_ms bigint)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_unknown text[];
BEGIN
    v_unknown := ARRAY(SELECT DISTINCT k FROM unnest(p_keys) AS k
        WHERE NOT is_known_object(p_bucket, k));
    DELETE FROM marked_objects
        WHERE bucket = p_bucket AND object_key = ANY (p_keys) AND kind = 'orphan'
            AND object_key <> ALL (v_unknown);
    INSERT INTO marked_objects (bucket, object_key, kind)
        SELECT p_bucket, k, 'orphan' FROM unnest(v_unknown) AS k
        ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT d.object_key FROM marked_objects AS d
        WHERE d.bucket = p_bucket AND d.object_key = ANY (v_unknown) AND d.kind = 'orphan'
            AND d.marked_at <= clock_timestamp() - p_grace_ms * interval '1 millisecond'
        ORDER BY d.object_key;
END
$$;
