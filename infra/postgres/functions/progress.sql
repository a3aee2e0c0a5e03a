-- How far migrations are: everything, or what has changed since a former reading.

-- Null: of all topics.
CREATE FUNCTION live_ids(p_names text[]) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_names IS NOT NULL THEN ARRAY(SELECT topic_id FROM topics
        WHERE name = ANY (p_names) AND status <> 'deleted' AND topic_id IS NOT NULL) END
$$;

-- Of these topics; null: of all. Each call is planned for what it asks: partitions of some topics are
-- found by their index, those of all by reading the table.
CREATE FUNCTION partition_statuses(p_topic_ids uuid[], p_evidence boolean)
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, state text, generation integer,
    quiesced boolean, boundary bigint, boundary_epoch integer, high_watermark bigint,
    tiering_complete boolean, phases jsonb
)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY SELECT l.topic_name, l.topic_id, l.partition, l.migration_state, l.generation,
           l.quiesce = 'closed', l.diskless_log_start_offset, l.diskless_log_start_epoch,
           l.high_watermark, l.tiering_complete,
           coalesce((SELECT jsonb_agg(jsonb_build_object('phase', m.phase, 'status', m.status,
                   'generation', m.generation, 'started_at', m.started_at,
                   'ended_at', m.ended_at, 'waiting_reason', m.waiting_reason,
                   'evidence', CASE WHEN p_evidence THEN m.evidence ELSE '{}' END)
                   ORDER BY m.started_at)
               FROM migration_phases AS m WHERE m.log_id = l.log_id), '[]')
    FROM logs AS l
    WHERE l.deleted_at IS NULL AND (p_topic_ids IS NULL OR l.topic_id = ANY (p_topic_ids))
    ORDER BY l.topic_name, l.partition;
END
$$;

CREATE FUNCTION migration_status(p_topic text)
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, state text, generation integer,
    quiesced boolean, boundary bigint, boundary_epoch integer, high_watermark bigint,
    tiering_complete boolean, phases jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM partition_statuses(
        live_ids(CASE WHEN p_topic IS NOT NULL THEN ARRAY[p_topic] END), true)
$$;

-- Of these topics; null: of all.
CREATE FUNCTION topic_summaries(p_topic_ids uuid[])
RETURNS TABLE (
    topic text, state text, partitions bigint, phases_done bigint, waiting jsonb, since_s jsonb,
    boundaries jsonb
)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY WITH live AS (
        SELECT l.log_id, l.topic_name, l.partition, l.diskless_log_start_offset AS boundary,
               array_position(ARRAY['TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY'],
                   l.migration_state) AS advance
        FROM logs AS l
        WHERE l.deleted_at IS NULL AND (p_topic_ids IS NULL OR l.topic_id = ANY (p_topic_ids))
    ), counted AS (
        -- What an aborted migration had done counts for none, and what it waited for nobody waits for.
        SELECT v.topic_name, m.phase,
               count(*) FILTER (WHERE m.status = 'done' AND v.advance > 1) AS done,
               count(*) FILTER (WHERE m.status = 'waiting' AND v.advance > 1) AS waits,
               min(m.started_at) FILTER (
                   WHERE m.status IN ('running', 'waiting') AND v.advance > 1) AS since
        FROM live AS v JOIN migration_phases AS m USING (log_id)
        GROUP BY v.topic_name, m.phase
    ), phases AS (
        SELECT c.topic_name, sum(c.done)::bigint AS done,
               jsonb_object_agg(c.phase, c.waits) FILTER (WHERE c.waits > 0) AS waits,
               jsonb_object_agg(c.phase, extract(epoch FROM c.since))
                   FILTER (WHERE c.since IS NOT NULL) AS since
        FROM counted AS c GROUP BY c.topic_name
    )
    SELECT v.topic_name,
           (ARRAY['TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY'])[min(v.advance)],
           count(*),
           -- A partition that was born diskless has its B0 without any phase: all seven are done.
           coalesce(p.done, 0) + 7 * count(*) FILTER (WHERE v.boundary >= 0 AND NOT EXISTS
               (SELECT FROM migration_phases AS m WHERE m.log_id = v.log_id)),
           coalesce(p.waits, '{}'), coalesce(p.since, '{}'),
           coalesce(jsonb_object_agg(v.partition, v.boundary) FILTER (WHERE v.boundary >= 0), '{}')
    FROM live AS v LEFT JOIN phases AS p USING (topic_name)
    GROUP BY v.topic_name, p.done, p.waits, p.since
    ORDER BY v.topic_name;
END
$$;

-- What a worker's gauges need, one row per topic: evidence of 10,000 partitions is 150 MB.
CREATE FUNCTION migration_summary()
RETURNS TABLE (
    topic text, state text, partitions bigint, phases_done bigint, waiting jsonb, since_s jsonb,
    boundaries jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM topic_summaries(NULL)
$$;

-- The state of a topic is that of its least advanced partition. Null: all topics. A topic in p_state
-- has a partition in it, and none in a state before.
CREATE FUNCTION topic_states(p_state text)
RETURNS TABLE (topic text, state text, partitions bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_states CONSTANT text[] := ARRAY['TIERED_ONLY', 'MIGRATING', 'HYBRID', 'DISKLESS_ONLY'];
BEGIN
    RETURN QUERY SELECT l.topic_name,
            v_states[min(array_position(v_states, l.migration_state))], count(*)
        FROM logs AS l
        WHERE l.deleted_at IS NULL AND (p_state IS NULL OR l.topic_name IN (
            SELECT o.topic_name FROM logs AS o
                WHERE o.deleted_at IS NULL AND o.migration_state = p_state))
        GROUP BY l.topic_name
        HAVING p_state IS NULL
            OR min(array_position(v_states, l.migration_state)) = array_position(v_states, p_state)
        ORDER BY l.topic_name;
END
$$;

-- Since a reading that answered p_since, or everything there is: whole says which. The first row says
-- from where the next reading goes on. Then come names of which nothing is true any more that was, and
-- the topics that are there now.
CREATE FUNCTION migration_changes(p_since text)
RETURNS TABLE (
    upto text, whole boolean, changed text,
    topic text, state text, partitions bigint, phases_done bigint, waiting jsonb, since_s jsonb,
    boundaries jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_now text := place_of_reading();
    v_names text[] := names_changed_since(p_since, v_now);
BEGIN
    upto := v_now;
    whole := v_names IS NULL;
    RETURN NEXT;
    upto := NULL;
    FOREACH changed IN ARRAY coalesce(v_names, '{}') LOOP
        RETURN NEXT;
    END LOOP;
    RETURN QUERY SELECT NULL, whole, NULL, s.* FROM topic_summaries(live_ids(v_names)) AS s;
END
$$;

-- As migration_changes, by partition and without evidence. Rows without phases: the high watermark
-- may have moved. Commits note nothing, so that the versions of the rows have to tell it.
CREATE FUNCTION migration_status_changes(p_since text)
RETURNS TABLE (
    upto text, whole boolean, changed text,
    topic text, topic_id uuid, partition integer, state text, generation integer,
    quiesced boolean, boundary bigint, boundary_epoch integer, high_watermark bigint,
    tiering_complete boolean, phases jsonb
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_now text := place_of_reading();
    v_names text[] := names_changed_since(p_since, v_now);
BEGIN
    upto := v_now;
    whole := v_names IS NULL;
    RETURN NEXT;
    upto := NULL;
    FOREACH changed IN ARRAY coalesce(v_names, '{}') LOOP
        RETURN NEXT;
    END LOOP;
    RETURN QUERY SELECT NULL, whole, NULL, s.* FROM partition_statuses(live_ids(v_names), false) AS s;
    IF NOT whole THEN
        RETURN QUERY SELECT NULL, whole, NULL, l.topic_name, l.topic_id, l.partition, NULL,
                NULL::integer, NULL::boolean, NULL::bigint, NULL::integer, l.high_watermark,
                NULL::boolean, NULL::jsonb
            FROM logs AS l
            WHERE l.deleted_at IS NULL AND l.topic_name <> ALL (v_names)
                AND age(l.xmin) BETWEEN 0 AND age(transaction_of_place(p_since)::xid);
    END IF;
END
$$;

-- What is told of topics beside where they stand, each kind in its order. Null: of all.
CREATE FUNCTION told_of_topics(p_names text[]) RETURNS TABLE (kind text, told jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY SELECT 'request', to_jsonb(r) FROM migration_requests AS r
        WHERE p_names IS NULL OR r.topic = ANY (p_names) ORDER BY r.requested_at;
    RETURN QUERY SELECT 'action', to_jsonb(a) FROM operator_actions AS a
        WHERE p_names IS NULL OR a.topic = ANY (p_names) ORDER BY a.action_id;
    RETURN QUERY SELECT 'verdict', jsonb_build_object('topic', t.name) || to_jsonb(v)
        FROM topics AS t JOIN verify_verdicts AS v USING (topic_id)
        WHERE t.status <> 'deleted' AND (p_names IS NULL OR t.name = ANY (p_names));
    RETURN QUERY SELECT 'finding', jsonb_build_object('topic', t.name) || to_jsonb(w)
        FROM topics AS t JOIN watch_findings AS w USING (topic_id)
        WHERE t.status <> 'deleted' AND (p_names IS NULL OR t.name = ANY (p_names))
        ORDER BY t.name, w.kind, w.subject;
END
$$;
