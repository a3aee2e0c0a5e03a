-- An object is marked first and deleted a grace later: a reader or an uploader that began before
-- the mark has ended by then. Marks are compare-and-set: what is marked is never finished or read
-- again. Nothing here locks a row that a commit needs.

-- Forgets keys that were registered at least p_grace_ms ago and never committed: no commit accepts
-- them from now on. Their objects, if there are any, are orphans then: this Postgres may be a restored
-- one, and what it knows as registered may have been committed since.
CREATE FUNCTION forget_uncommitted_keys(p_grace_ms bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_forgotten integer;
BEGIN
    DELETE FROM wal_files WHERE file_id = ANY (ARRAY(SELECT f.file_id FROM wal_files AS f
        WHERE f.status = 'registered'
            AND f.registered_at < clock_timestamp() - p_grace_ms * interval '1 millisecond'
        ORDER BY f.file_id LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END
$$;

-- Notes since when files are without a batch, of those that lost some. Costs what was lost, not what
-- is live. Answers how many notes were read. One snapshot sees the notes and the batches: a
-- transaction that is still taking batches away brings a note of its own. A file whose object alone
-- tells the outcomes of one that is still read stays with it, and is noted again when that one is
-- empty.
CREATE FUNCTION judge_lessened_files(p_limit integer) RETURNS integer
LANGUAGE sql AS $$
    WITH noted AS (
        -- An array is made once. Where statistics say that there is no note, which they mostly do, a
        -- subquery would be asked again for each. And each file is looked up by itself, and so is
        -- what it tells: where they say that there is no batch, or no file, a join reads all for each.
        DELETE FROM lessened_files WHERE note_id = ANY (ARRAY(SELECT note_id FROM lessened_files
            ORDER BY note_id LIMIT p_limit FOR UPDATE SKIP LOCKED))
            RETURNING file_id
    ), empty AS (
        UPDATE wal_files AS f SET unreferenced_at = clock_timestamp()
            WHERE f.file_id IN (SELECT file_id FROM noted)
                AND f.status = 'committed' AND f.unreferenced_at IS NULL
                AND (SELECT b.file_id FROM batches AS b WHERE b.file_id = f.file_id LIMIT 1) IS NULL
                AND (SELECT told.file_id FROM wal_files AS told WHERE told.carried_by = f.file_id
                    AND told.unreferenced_at IS NULL LIMIT 1) IS NULL
            RETURNING f.carried_by
    ), freed AS (
        INSERT INTO lessened_files (file_id)
            SELECT DISTINCT carried_by FROM empty WHERE carried_by IS NOT NULL
    )
    SELECT count(*)::integer FROM noted
$$;

-- Object keys that may be deleted: without a live batch for p_grace_ms, counted from when the last
-- batch row was seen gone: a reader may have found coordinates a moment before. They are marked
-- deleting; keys that an earlier, killed collection marked are answered again. The oldest first. What
-- died since a reader pinned what it reads waits for it.
CREATE FUNCTION claim_dead_files(p_grace_ms bigint, p_limit integer)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_before timestamptz;
BEGIN
    WHILE judge_lessened_files(10000) > 0 LOOP
    END LOOP;
    v_before := collection_horizon(p_grace_ms);
    RETURN QUERY
    WITH dead AS (
        SELECT f.file_id FROM wal_files AS f
            WHERE f.unreferenced_at <= v_before
            ORDER BY f.unreferenced_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    UPDATE wal_files AS f SET status = 'deleting' FROM dead WHERE f.file_id = dead.file_id
        RETURNING f.object_key;
END
$$;

-- Called when the objects are gone.
CREATE FUNCTION forget_dead_files(p_keys text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_forgotten integer;
BEGIN
    DELETE FROM wal_files WHERE object_key = ANY (p_keys) AND status = 'deleting';
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END
$$;

-- Marks a segment and its objects for deletion. .log goes first: without it no reader begins.
CREATE FUNCTION mark_segments_for_deletion(p_segment_ids uuid[], p_reason text) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_marked integer;
BEGIN
    WITH dead AS (
        UPDATE merged_segments SET state = 'DELETE_SEGMENT_STARTED', reason = p_reason
            WHERE segment_id = ANY (p_segment_ids) AND state <> 'DELETE_SEGMENT_STARTED'
            RETURNING segment_id, object_key_stem, finished_at
    ), marked AS (
        INSERT INTO marked_objects (bucket, object_key, segment_id, reason)
            SELECT 'tiered', object_key_stem || suffix, segment_id,
                   CASE WHEN finished_at IS NULL THEN 'unfinished' ELSE 'expired' END
            FROM dead CROSS JOIN unnest(ARRAY['.log', '.index', '.timeindex', '.txnindex',
                '.snapshot', '.leader-epoch-checkpoint']) AS suffix
            ON CONFLICT (bucket, object_key) DO UPDATE SET
                segment_id = excluded.segment_id, reason = excluded.reason,
                marked_at = excluded.marked_at
    )
    SELECT count(*) INTO v_marked FROM dead;
    RETURN v_marked;
END
$$;

-- Recorded runs that nothing will use: expired, or of a deleted topic.
CREATE FUNCTION forget_dead_splits(p_limit integer) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM split_files WHERE split_id = ANY (ARRAY(
        SELECT f.split_id FROM split_files AS f JOIN logs AS l USING (log_id)
            WHERE l.deleted_at IS NOT NULL OR f.last_offset < l.suffix_start
            ORDER BY f.split_id LIMIT p_limit FOR UPDATE OF f SKIP LOCKED))
$$;

-- Segments that nobody reads or finishes: expired, of a deleted topic, or begun under a claim that
-- is lost or lapsed a grace ago.
CREATE FUNCTION mark_dead_segments_for_deletion(p_lapsed timestamptz, p_limit integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mark_segments_for_deletion(ARRAY(
        SELECT m.segment_id FROM merged_segments AS m
            WHERE m.state = 'COPY_SEGMENT_STARTED' AND NOT EXISTS (SELECT FROM merge_claims AS c
                WHERE c.log_id = m.log_id AND c.token = m.token
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

-- Marks what is dead, and forgets what belongs to files and logs that are gone.
CREATE FUNCTION mark_dead_objects(p_grace_ms bigint, p_limit integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_lapsed timestamptz := clock_timestamp() - p_grace_ms * interval '1 millisecond';
BEGIN
    WHILE judge_lessened_files(10000) > 0 LOOP
    END LOOP;
    PERFORM forget_dead_splits(p_limit);
    PERFORM mark_dead_segments_for_deletion(v_lapsed, p_limit);
    -- Each is looked up by itself: where statistics say that there is no file, a join reads all of
    -- them for each.
    DELETE FROM wal_file_claims AS c
        WHERE c.expires_at < v_lapsed
            AND (SELECT f.file_id FROM wal_files AS f WHERE f.file_id = c.file_id) IS NULL;
    DELETE FROM tiering_failures AS t
        WHERE t.scope = 'split'
            AND (SELECT f.file_id FROM wal_files AS f WHERE f.file_id = t.key) IS NULL;
    DELETE FROM tiering_failures AS t USING logs AS l
        WHERE t.scope = 'merge' AND l.log_id = t.key AND l.deleted_at IS NOT NULL;
    DELETE FROM producer_snapshots AS s USING logs AS l
        WHERE l.log_id = s.log_id AND l.deleted_at IS NOT NULL;
    DELETE FROM coverage_results AS r USING logs AS l
        WHERE l.log_id = r.log_id AND l.deleted_at IS NOT NULL;
END
$$;

-- Segments that were finished at least p_grace_ms ago and that nobody has seen whole since, the oldest
-- first, with what their objects are to be. NULL: not known.
CREATE FUNCTION unseen_segments(p_grace_ms bigint, p_limit integer)
RETURNS TABLE (
    segment_id uuid, object_key_stem text, size_bytes bigint, offset_index_bytes bigint,
    time_index_bytes bigint, snapshot_bytes bigint, epoch_checkpoint_bytes bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT m.segment_id, m.object_key_stem, m.size_bytes, m.offset_index_bytes::bigint,
           m.time_index_bytes::bigint, m.snapshot_bytes::bigint, m.epoch_checkpoint_bytes::bigint
    FROM merged_segments AS m
    WHERE m.state = 'COPY_SEGMENT_FINISHED' AND m.seen_whole_at IS NULL
        AND m.finished_at <= clock_timestamp() - p_grace_ms * interval '1 millisecond'
    ORDER BY m.finished_at, m.segment_id LIMIT p_limit
$$;

-- All objects of these segments are as they were sent.
CREATE FUNCTION note_segments_seen(p_segment_ids uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE merged_segments SET seen_whole_at = clock_timestamp()
        WHERE segment_id = ANY (p_segment_ids) AND seen_whole_at IS NULL
$$;

-- Marked objects whose grace is over, and that nobody pins. What was never finished nobody reads; it
-- stays as long as an orphan.
CREATE FUNCTION due_objects(p_grace_ms bigint, p_orphan_grace_ms bigint)
RETURNS SETOF marked_objects
LANGUAGE sql STABLE AS $$
    SELECT d.* FROM marked_objects AS d
        WHERE d.marked_at <= CASE d.reason
            WHEN 'unfinished' THEN clock_timestamp() - p_orphan_grace_ms * interval '1 millisecond'
            ELSE (SELECT collection_horizon(p_grace_ms)) END
$$;

-- Marks what is dead and answers what was marked a grace ago, until it is forgotten.
CREATE FUNCTION claim_dead_objects(p_grace_ms bigint, p_orphan_grace_ms bigint, p_limit integer)
RETURNS TABLE (object_key text, bucket text, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    PERFORM mark_dead_objects(p_grace_ms, p_limit);
    RETURN QUERY
    SELECT d.object_key, d.bucket, d.reason
        FROM due_objects(p_grace_ms, p_orphan_grace_ms) AS d
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
    DELETE FROM merged_segments AS m
        WHERE m.segment_id = ANY (v_segments) AND m.state = 'DELETE_SEGMENT_STARTED'
            -- By itself: where statistics say that nothing is marked, a join reads all for each.
            AND (SELECT d.segment_id FROM marked_objects AS d
                WHERE d.segment_id = m.segment_id LIMIT 1) IS NULL;
    RETURN v_forgotten;
END
$$;
