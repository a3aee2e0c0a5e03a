-- Evidence of what each phase of a migration observed, and requests to migrate.

-- Fenced: an attempt that was overtaken writes nothing. Generation 0 is "before any quiesce" and
-- may record validate and drain_transactions only.
CREATE FUNCTION record_phase(
    p_topic_id uuid, p_partition integer, p_generation integer, p_phase text, p_status text,
    p_evidence jsonb, p_waiting_reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs
        WHERE topic_id = p_topic_id AND partition = p_partition FOR SHARE;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    ELSIF p_generation <> 0 OR p_phase NOT IN ('validate', 'drain_transactions') THEN
        PERFORM assert_generation(v_log, p_generation);
    END IF;
    INSERT INTO migration_phases AS m (log_id, phase, status, generation, evidence,
            waiting_reason, ended_at)
        VALUES (v_log.log_id, p_phase, p_status, p_generation, p_evidence, p_waiting_reason,
            CASE WHEN p_status IN ('done', 'failed', 'aborted') THEN clock_timestamp() END)
        ON CONFLICT (log_id, phase) DO UPDATE SET
            status = excluded.status, generation = excluded.generation,
            evidence = excluded.evidence, waiting_reason = excluded.waiting_reason,
            ended_at = excluded.ended_at,
            -- An attempt begins when its first record follows an ended one or another generation.
            started_at = CASE
                WHEN m.generation = excluded.generation
                    AND (m.ended_at IS NULL OR excluded.ended_at IS NOT NULL) THEN m.started_at
                ELSE excluded.started_at
            END;
END
$$;

-- When a phase's present attempt began; NULL: it never did.
CREATE FUNCTION phase_began(p_topic_id uuid, p_partition integer, p_phase text) RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT m.started_at FROM logs AS l JOIN migration_phases AS m USING (log_id)
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition AND l.deleted_at IS NULL
            AND m.phase = p_phase
$$;

-- How long the newest p_partitions that have crossed took: median and 90th percentile, in s, of each
-- phase that is done, of what spans several (the names of tideline.domain.estimate.Span), and of the
-- tiering of topics with a prefix, all of whose partitions among these are ready.
CREATE FUNCTION phase_durations(p_partitions integer)
RETURNS TABLE (step text, samples bigint, p50_s double precision, p90_s double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH crossed AS MATERIALIZED (
        SELECT log_id, ended_at AS boundary_at FROM migration_phases
            WHERE phase = 'seed_and_persist' AND status = 'done'
            ORDER BY ended_at DESC, log_id DESC LIMIT p_partitions
    ), done AS MATERIALIZED (
        -- One partition after the other: how many there are is not known when this is planned.
        SELECT l.topic_id, l.has_prefix, c.boundary_at, m.phase, m.started_at, m.ended_at
            FROM crossed AS c CROSS JOIN LATERAL (
                SELECT g.topic_id, g.diskless_log_start_offset <> 0 AS has_prefix FROM logs AS g
                    WHERE g.log_id = c.log_id OFFSET 0
            ) AS l CROSS JOIN LATERAL (
                SELECT p.phase, p.started_at, p.ended_at FROM migration_phases AS p
                    WHERE p.log_id = c.log_id AND p.status = 'done' OFFSET 0
            ) AS m
    ), topics AS (
        SELECT max(d.ended_at) FILTER (WHERE d.phase = 'readiness') AS ready_at,
               max(d.boundary_at) AS boundary_at,
               count(*) FILTER (WHERE d.phase = 'readiness') AS ready,
               count(*) FILTER (WHERE d.phase = 'seed_and_persist') AS partitions
            FROM done AS d GROUP BY d.topic_id HAVING bool_or(d.has_prefix)
    ), steps AS (
        SELECT phase AS step, ended_at - started_at AS took FROM done
        UNION ALL
        SELECT CASE phase WHEN 'quiesce' THEN 'write_pause' ELSE 'crossing' END,
               boundary_at - started_at
            FROM done WHERE phase IN ('drain_transactions', 'quiesce')
        UNION ALL
        SELECT 'tiering', ready_at - boundary_at FROM topics
            WHERE ready = partitions AND ready_at >= boundary_at
    ), seconds AS (
        SELECT step, extract(epoch FROM took)::double precision AS took_s FROM steps
    )
    SELECT s.step, count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY s.took_s),
           percentile_cont(0.9) WITHIN GROUP (ORDER BY s.took_s)
        FROM seconds AS s GROUP BY s.step ORDER BY s.step
$$;

CREATE FUNCTION request_migration(
    p_topic text, p_topic_id uuid, p_requested_by text, p_options jsonb
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO migration_requests AS r (topic_id, topic, requested_by, options)
        VALUES (p_topic_id, p_topic, said_by(p_requested_by), p_options)
        ON CONFLICT (topic_id) DO UPDATE SET
            requested_by = excluded.requested_by, options = excluded.options, taken_at = NULL,
            state = 'received', reason = '', tries = 0, next_try_at = NULL,
            changed_at = clock_timestamp(),
            requested_at = CASE WHEN r.taken_at IS NULL THEN r.requested_at
                                ELSE excluded.requested_at END;
    SELECT pg_notify('tideline_requests', p_topic);
$$;

-- What a worker has to start now.
CREATE FUNCTION pending_requests() RETURNS SETOF migration_requests
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM migration_requests
        WHERE taken_at IS NULL AND (next_try_at IS NULL OR next_try_at <= clock_timestamp())
        ORDER BY requested_at
$$;
