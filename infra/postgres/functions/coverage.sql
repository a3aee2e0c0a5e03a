-- Verdicts on the tiered prefix.

-- What a coverage run says of a prefix decides tieringComplete (seed 000). Fenced by the generation
-- and the B0 that the run looked at; of two runs the one that looked later stands. Answers false
-- when a later one has written already, and when readiness has set the flag since the run read it as
-- p_seen_complete: what it saw is older than that. A run that saw the objects before it began relies on
-- the look of an earlier run: it says nothing against one that has listed them since, neither
-- before it writes nor after.
CREATE FUNCTION record_coverage(
    p_topic_id uuid, p_partition integer, p_generation integer, p_boundary bigint,
    p_complete boolean, p_reason text, p_detail jsonb, p_run_id text, p_observed_at timestamptz,
    p_seen_complete boolean, p_objects_seen_at timestamptz, p_objects_digest bytea
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_last coverage_results;
    v_listed_since boolean;
    -- What a run with a clock that is ahead says must not be later than what is found tomorrow.
    v_now timestamptz := clock_timestamp();
BEGIN
    IF v_log.diskless_log_start_offset < 0 THEN
        PERFORM refuse('TL022', format('%s has no B0', log_label(v_log)),
            'There is nothing to cover until B0 is set.');
    END IF;
    PERFORM assert_generation(v_log, p_generation);
    IF p_boundary <> v_log.diskless_log_start_offset THEN
        PERFORM refuse('TL003',
            format('B0 of %s is %s, the run looked at %s', log_label(v_log),
                v_log.diskless_log_start_offset, p_boundary),
            'The boundary was reset meanwhile: the next run looks at the new one.');
    END IF;
    SELECT * INTO v_last FROM coverage_results
        WHERE log_id = v_log.log_id AND boundary = p_boundary;
    v_listed_since := NOT p_complete AND coalesce(v_last.objects_seen_at < p_objects_seen_at, false);
    IF (v_last.observed_at > p_observed_at AND v_last.observed_at <= v_now AND NOT v_listed_since)
        OR (p_complete AND p_objects_seen_at < p_observed_at
            AND (NOT v_log.tiering_complete
                OR v_last.objects_digest IS DISTINCT FROM p_objects_digest))
        OR (v_log.tiering_complete AND NOT p_complete AND NOT p_seen_complete) THEN
        RETURN false;
    END IF;
    INSERT INTO coverage_results AS r (log_id, generation, boundary, complete, reason, detail,
            run_id, observed_at, since, objects_seen_at, objects_digest)
        VALUES (v_log.log_id, p_generation, p_boundary, p_complete, p_reason, p_detail, p_run_id,
            least(p_observed_at, v_now),
            least(CASE WHEN v_last.complete = p_complete THEN v_last.since ELSE p_observed_at END, v_now),
            least(p_objects_seen_at, v_now), p_objects_digest)
        ON CONFLICT (log_id) DO UPDATE SET generation = excluded.generation,
            boundary = excluded.boundary, complete = excluded.complete, reason = excluded.reason,
            detail = excluded.detail, run_id = excluded.run_id,
            observed_at = excluded.observed_at, since = excluded.since,
            objects_seen_at = excluded.objects_seen_at, objects_digest = excluded.objects_digest;
    IF has_prefix(v_log) THEN
        PERFORM set_tiering_complete(p_topic_id, p_partition, p_generation, p_complete, p_reason);
    END IF;
    RETURN true;
END
$$;

-- Verdicts that say what is known already: only when it was looked at is written, and no log is
-- locked. p_verdicts: objects with log_id, topic_id, partition, generation, boundary, complete, reason,
-- detail, observed_at (ms), objects_seen_at (ms), objects_digest (hex). Answers whose verdicts stood; the others are record_coverages'.
CREATE FUNCTION confirm_coverage(p_verdicts jsonb, p_run_id text) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    -- In one order, so that two runs never deadlock.
    PERFORM 1 FROM coverage_results AS r
        WHERE r.log_id IN (SELECT (v ->> 'log_id')::bigint FROM jsonb_array_elements(p_verdicts) AS v)
        ORDER BY r.log_id FOR UPDATE;
    RETURN QUERY
        UPDATE coverage_results AS r
            SET observed_at = least(to_timestamp(v.observed_at / 1000.0), now()), run_id = p_run_id,
                objects_seen_at = least(to_timestamp(v.objects_seen_at / 1000.0), now()),
                objects_digest = decode(v.objects_digest, 'hex')
            FROM jsonb_to_recordset(p_verdicts) AS v (
                    log_id bigint, topic_id uuid, generation integer, boundary bigint,
                    complete boolean, reason text, detail jsonb, observed_at bigint,
                    objects_seen_at bigint, objects_digest text)
                JOIN logs AS l ON l.log_id = v.log_id
            WHERE r.log_id = v.log_id AND l.deleted_at IS NULL AND l.topic_id = v.topic_id
                AND l.generation = v.generation AND l.diskless_log_start_offset = v.boundary
                AND r.generation = v.generation AND r.boundary = v.boundary
                AND r.complete = v.complete AND r.reason = v.reason AND r.detail = v.detail
                AND r.observed_at <= to_timestamp(v.observed_at / 1000.0)
                AND (NOT v.complete OR v.objects_seen_at >= v.observed_at
                    OR r.objects_digest IS NOT DISTINCT FROM decode(v.objects_digest, 'hex'))
                AND (NOT has_prefix(l)
                    OR (l.tiering_complete = v.complete AND l.tiering_reason = v.reason))
            RETURNING r.log_id;
END
$$;

-- record_coverage for each of p_verdicts (as confirm_coverage's, and seen_complete), in the order in which
-- commits lock logs. One that is refused holds up no other: its refusal is in the answer.
CREATE FUNCTION record_coverages(p_verdicts jsonb, p_run_id text)
RETURNS TABLE (log_id bigint, written boolean, refused text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT * FROM jsonb_to_recordset(p_verdicts) AS asked (
            log_id bigint, topic_id uuid, partition integer, generation integer, boundary bigint,
            complete boolean, reason text, detail jsonb, observed_at bigint, seen_complete boolean,
            objects_seen_at bigint, objects_digest text)
            ORDER BY asked.log_id LOOP
        log_id := v.log_id;
        refused := NULL;
        BEGIN
            written := record_coverage(v.topic_id, v.partition, v.generation, v.boundary, v.complete,
                v.reason, v.detail, p_run_id, to_timestamp(v.observed_at / 1000.0), v.seen_complete,
                to_timestamp(v.objects_seen_at / 1000.0), decode(v.objects_digest, 'hex'));
        EXCEPTION
            WHEN SQLSTATE 'TL001' OR SQLSTATE 'TL002' OR SQLSTATE 'TL003' OR SQLSTATE 'TL022' THEN
                written := false;
                refused := SQLSTATE || ' ' || SQLERRM;
        END;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Every partition that was migrated and has B0, with the verdict on that B0 if there is one.
CREATE FUNCTION coverage_status(p_topic text)
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, state text, generation integer,
    boundary bigint, tiering_complete boolean, complete boolean, reason text, detail jsonb,
    run_id text, observed_at bigint, since bigint, objects_seen_at bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.topic_name, l.topic_id, l.partition, l.log_id, l.migration_state, l.generation,
           l.diskless_log_start_offset, l.tiering_complete, r.complete, r.reason,
           coalesce(r.detail, '{}'), r.run_id, epoch_ms(r.observed_at), epoch_ms(r.since),
           epoch_ms(r.objects_seen_at)
    FROM logs AS l
    LEFT JOIN coverage_results AS r
        ON r.log_id = l.log_id AND r.boundary = l.diskless_log_start_offset
    WHERE l.deleted_at IS NULL AND l.diskless_log_start_offset > 0
        AND (p_topic IS NULL OR l.topic_name = p_topic)
    ORDER BY l.topic_name, l.partition
$$;

-- Of which logs in [p_lo, p_hi) a run found every object, when, and a digest of what their segments were.
CREATE FUNCTION coverage_looks(p_lo bigint, p_hi bigint, p_limit integer)
RETURNS TABLE (log_id bigint, boundary bigint, objects_seen_at bigint, objects_digest bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT r.log_id, r.boundary, epoch_ms(r.objects_seen_at), r.objects_digest
    FROM coverage_results AS r
    WHERE r.log_id >= p_lo AND r.log_id < p_hi AND r.complete AND r.objects_digest IS NOT NULL
    ORDER BY r.log_id LIMIT p_limit
$$;
