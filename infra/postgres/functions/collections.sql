-- Runs of the collection: what is due is counted before anything goes; a run that found more than it
-- may delete deletes nothing and is held until an operator allows exactly that.

-- The number of a new run, and what it may delete of a run that was held and is allowed: held_age_ms
-- is how long ago that one counted; -1: nothing is allowed. An allowance that is not used within a day
-- is void. Reports of orphans that no run has listed for a while are of objects that are gone.
CREATE FUNCTION begin_gc_run(p_run_id uuid)
RETURNS TABLE (
    run_number bigint, held_run uuid, held_age_ms bigint, held_objects bigint, held_bytes bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_held gc_runs;
BEGIN
    INSERT INTO gc_runs (run_id) VALUES (p_run_id) RETURNING gc_runs.run_number INTO run_number;
    SELECT * INTO v_held FROM gc_runs
        WHERE state = 'held' AND used_by IS NULL
            AND allowed_at > clock_timestamp() - interval '1 day'
        ORDER BY run_number LIMIT 1;
    held_run := v_held.run_id;
    held_age_ms := coalesce(
        ceil(extract(epoch FROM clock_timestamp() - v_held.judged_at) * 1000)::bigint, -1);
    held_objects := coalesce(v_held.due_objects, 0);
    held_bytes := coalesce(v_held.due_bytes, 0);
    RETURN NEXT;
END
$$;

-- What is due now, by kind and reason. Costs what is due.
CREATE FUNCTION measure_garbage(p_run_number bigint, p_grace_ms bigint, p_orphan_grace_ms bigint)
RETURNS TABLE (kind text, reason text, objects bigint, bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT 'wal', 'empty', count(*), coalesce(sum(f.size), 0)::bigint FROM wal_files AS f
        WHERE f.unreferenced_at <= (SELECT collection_horizon(p_grace_ms))
    UNION ALL
    -- Each is looked up by itself: where statistics say that there is no segment, a join reads all of
    -- them for each object.
    SELECT 'segment', d.reason, count(*),
           coalesce(sum((SELECT m.size_bytes FROM merged_segments AS m
               WHERE m.segment_id = d.segment_id))
               FILTER (WHERE d.object_key LIKE '%.log'), 0)::bigint
        FROM due_objects(p_grace_ms, p_orphan_grace_ms) AS d
        GROUP BY d.reason
    UNION ALL
    SELECT 'orphan', 'unknown', count(*), coalesce(sum(o.size), 0)::bigint
        FROM due_orphans(p_run_number, p_orphan_grace_ms) AS o
$$;

-- What was listed (NULL: nothing was) and is due, and why the run is held, NULL if it is not.
CREATE FUNCTION judge_gc_run(
    p_run_number bigint, p_listed_objects bigint, p_listed_bytes bigint, p_due_objects bigint,
    p_due_bytes bigint, p_due_orphans bigint, p_due_orphan_bytes bigint, p_held_because text
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE gc_runs SET judged_at = clock_timestamp(), listed_objects = p_listed_objects,
            listed_bytes = p_listed_bytes, due_objects = p_due_objects, due_bytes = p_due_bytes,
            due_orphans = p_due_orphans, due_orphan_bytes = p_due_orphan_bytes,
            held_because = p_held_because,
            state = CASE WHEN p_held_because IS NULL THEN 'running' ELSE 'held' END,
            ended_at = CASE WHEN p_held_because IS NULL THEN NULL ELSE clock_timestamp() END
        WHERE run_number = p_run_number
$$;

-- p_held_run: the run whose allowance is used up by this one, or NULL. Reports of objects that no
-- run has listed for 30 days, and runs of a year ago, are forgotten.
CREATE FUNCTION end_gc_run(p_run_number bigint, p_deleted_objects bigint, p_held_run uuid)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_old bigint;
BEGIN
    UPDATE gc_runs SET state = 'done', ended_at = clock_timestamp(),
            deleted_objects = p_deleted_objects
        WHERE run_number = p_run_number;
    UPDATE gc_runs SET used_by = p_run_number WHERE run_id = p_held_run;
    SELECT max(run_number) INTO v_old FROM gc_runs
        WHERE started_at < clock_timestamp() - interval '30 days';
    DELETE FROM orphan_reports WHERE last_run < v_old;
    DELETE FROM gc_runs WHERE started_at < clock_timestamp() - interval '1 year';
END
$$;

-- An operator lets the next run delete what this one was held for.
CREATE FUNCTION allow_gc_run(p_run_id uuid, p_decided_by text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_run gc_runs;
BEGIN
    IF btrim(p_decided_by) = '' OR btrim(p_reason) = '' THEN
        PERFORM refuse('TL018',
            format('allowing run %s: who decides it (%L) and why (%L) must be said', p_run_id,
                p_decided_by, p_reason),
            'Give a name and a reason.');
    END IF;
    SELECT * INTO v_run FROM gc_runs WHERE run_id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('TL018', format('there was no run %s of the collection', p_run_id),
            'tideline gc runs shows the runs.');
    ELSIF v_run.state <> 'held' THEN
        PERFORM refuse('TL018', format('run %s is not held: it is %s', p_run_id, v_run.state),
            'Only a run that was held for what it would delete needs to be allowed.');
    ELSIF v_run.used_by IS NOT NULL THEN
        PERFORM refuse('TL018',
            format('what run %s was held for was deleted by run number %s', p_run_id,
                v_run.used_by),
            'What is due now is another set: allow the newest held run.');
    END IF;
    UPDATE gc_runs SET allowed_by = p_decided_by, allowed_because = p_reason,
            allowed_at = clock_timestamp()
        WHERE run_id = p_run_id;
END
$$;

-- An operator says that this Postgres knows all that was acknowledged, although runs up to p_above,
-- which it does not know, have collected in the bucket: numbers go on behind them, and every orphan is
-- reported anew.
CREATE FUNCTION adopt_gc_runs(
    p_above bigint, p_run_id uuid, p_decided_by text, p_reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF btrim(p_decided_by) = '' OR btrim(p_reason) = '' THEN
        PERFORM refuse('TL018',
            format('adopting the runs up to %s: who decides it (%L) and why (%L) must be said',
                p_above, p_decided_by, p_reason),
            'Give a name and a reason.');
    END IF;
    DELETE FROM orphan_reports;
    DELETE FROM gc_runs WHERE run_number = p_above;
    INSERT INTO gc_runs (run_number, run_id, state, ended_at, allowed_by, allowed_because,
            allowed_at) OVERRIDING SYSTEM VALUE
        VALUES (p_above, p_run_id, 'done', clock_timestamp(), p_decided_by, p_reason,
            clock_timestamp());
    PERFORM setval(pg_get_serial_sequence('gc_runs', 'run_number'), greatest(p_above,
        (SELECT max(run_number) FROM gc_runs)));
END
$$;

-- The newest runs first.
CREATE FUNCTION list_gc_runs(p_limit integer)
RETURNS TABLE (
    run_number bigint, run_id uuid, state text, started_ms bigint, ended_ms bigint,
    listed_objects bigint, listed_bytes bigint, due_objects bigint, due_bytes bigint,
    due_orphans bigint, due_orphan_bytes bigint, deleted_objects bigint, held_because text,
    allowed_by text, allowed_because text, used_by bigint, orphans bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT g.run_number, g.run_id, g.state, epoch_ms(g.started_at), epoch_ms(g.ended_at),
           g.listed_objects, g.listed_bytes, g.due_objects, g.due_bytes, g.due_orphans,
           g.due_orphan_bytes, g.deleted_objects, g.held_because, g.allowed_by, g.allowed_because,
           g.used_by, (SELECT count(*) FROM orphan_reports)
        FROM gc_runs AS g ORDER BY g.run_number DESC LIMIT p_limit
$$;

-- What is dead, for a dry run: nothing is marked. due: its object may go now; else it is marked by the
-- next run, or its grace is not over.
CREATE FUNCTION preview_garbage(p_grace_ms bigint, p_orphan_grace_ms bigint, p_limit integer)
RETURNS TABLE (object_key text, bucket text, kind text, reason text, due boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_before timestamptz := clock_timestamp() - p_grace_ms * interval '1 millisecond';
BEGIN
    RETURN QUERY
    SELECT f.object_key, 'diskless', 'wal', 'empty',
            f.unreferenced_at <= (SELECT collection_horizon(p_grace_ms))
        FROM wal_files AS f WHERE f.unreferenced_at IS NOT NULL
        ORDER BY f.unreferenced_at LIMIT p_limit;
    RETURN QUERY
    SELECT f.object_key, 'diskless', 'wal', 'empty', false
        FROM wal_files AS f WHERE f.status = 'committed' AND f.unreferenced_at IS NULL
            AND f.file_id IN (SELECT n.file_id FROM lessened_files AS n
                UNION SELECT b.file_id FROM unreadable_batches(p_limit) AS b)
            AND (SELECT b.file_id FROM batches AS b
                WHERE b.file_id = f.file_id AND b.last_offset >= (SELECT l.suffix_start
                    FROM logs AS l WHERE l.log_id = b.log_id AND l.deleted_at IS NULL)
                LIMIT 1) IS NULL
            AND (SELECT told.file_id FROM wal_files AS told WHERE told.carried_by = f.file_id
                AND told.unreferenced_at IS NULL LIMIT 1) IS NULL
        ORDER BY f.file_id LIMIT p_limit;
    RETURN QUERY
    SELECT d.object_key, d.bucket, 'segment', d.reason, EXISTS (SELECT
            FROM due_objects(p_grace_ms, p_orphan_grace_ms) AS o
            WHERE (o.bucket, o.object_key) = (d.bucket, d.object_key))
        FROM marked_objects AS d ORDER BY d.marked_at, d.object_key LIMIT p_limit;
    RETURN QUERY
    SELECT m.object_key_stem || '.log', 'tiered', 'segment',
            CASE WHEN m.finished_at IS NULL THEN 'unfinished' ELSE 'expired' END, false
        FROM merged_segments AS m JOIN logs AS l USING (log_id)
        WHERE m.state <> 'DELETE_SEGMENT_STARTED' AND (
            l.deleted_at IS NOT NULL
            OR (m.state = 'COPY_SEGMENT_FINISHED' AND m.last_offset < l.suffix_start)
            OR (m.state = 'COPY_SEGMENT_STARTED' AND NOT EXISTS (SELECT FROM merge_claims AS c
                WHERE c.log_id = m.log_id AND c.token = m.token
                    AND c.expires_at > v_before)))
        ORDER BY m.segment_id LIMIT p_limit;
    RETURN QUERY
    SELECT o.object_key, o.bucket, 'orphan', 'unknown',
            o.first_seen <= clock_timestamp() - p_orphan_grace_ms * interval '1 millisecond'
        FROM orphan_reports AS o ORDER BY o.first_seen, o.bucket, o.object_key LIMIT p_limit;
END
$$;
