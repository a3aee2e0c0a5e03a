-- What operators see of tiering and steer; failures and counters of its jobs.

-- A failure in a row: retried later and later, then parked until an operator acts.
CREATE FUNCTION record_tiering_failure(
    p_scope text, p_key bigint, p_error text, p_park_after integer, p_backoff_ms bigint
) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO tiering_failures AS f (scope, key, failures, error, parked, retry_at)
        VALUES (p_scope, p_key, 1, left(p_error, 2000), p_park_after <= 1,
            clock_timestamp() + least(p_backoff_ms, 3600000) * interval '1 millisecond')
        ON CONFLICT (scope, key) DO UPDATE SET failures = f.failures + 1,
            error = excluded.error, parked = f.failures + 1 >= p_park_after,
            failed_at = excluded.failed_at,
            retry_at = clock_timestamp() + interval '1 millisecond'
                * least(p_backoff_ms * power(2, least(f.failures, 30)), 3600000)
        RETURNING failures
$$;

-- Failures of a log: its merge's, and those of WAL files that hold batches of it to split.
CREATE FUNCTION failures_of_log(p_log_id bigint)
RETURNS TABLE (scope text, key bigint, failures integer, error text, parked boolean,
    failed_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT f.scope, f.key, f.failures, f.error, f.parked, f.failed_at
    FROM tiering_failures AS f
    WHERE CASE f.scope WHEN 'merge' THEN f.key = p_log_id
        ELSE EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.key
            AND b.log_id = p_log_id AND b.split_id IS NULL) END
$$;

CREATE FUNCTION unpark_tiering(p_topic_id uuid) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM tiering_failures AS t USING logs AS l, failures_of_log(l.log_id) AS f
        WHERE l.topic_id = p_topic_id AND t.scope = f.scope AND t.key = f.key
$$;

CREATE FUNCTION pause_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_paused = true WHERE topic_key = v_topic.topic_key;
END
$$;

CREATE FUNCTION resume_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_paused = false WHERE topic_key = v_topic.topic_key;
    PERFORM unpark_tiering(v_topic.topic_id);
END
$$;

CREATE FUNCTION request_tiering(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_topic);
BEGIN
    UPDATE topics SET tiering_requested_at = clock_timestamp()
        WHERE topic_key = v_topic.topic_key;
    PERFORM unpark_tiering(v_topic.topic_id);
END
$$;

-- The last offset that tiered storage is known to hold, with all before it; -1: none is. Of a prefix that
-- is not whole the last coverage run has found where the first gap begins.
CREATE FUNCTION known_tiered_offset(p_log logs) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_log.tiered_high_offset >= 0 OR NOT has_prefix(p_log)
        THEN p_log.tiered_high_offset
        ELSE coalesce((SELECT (r.detail->>'covered_to')::bigint - 1 FROM coverage_results AS r
            WHERE r.log_id = p_log.log_id AND r.boundary = p_log.diskless_log_start_offset
                AND (r.detail->>'covered_to')::bigint > (r.detail->>'wanted_start')::bigint), -1) END
$$;

-- Seed 002, 4.8.2 TieringStatus, per partition with a suffix. Counts rows: an index-only scan.
CREATE FUNCTION tiering_status(p_topic text, p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, state text, boundary bigint,
    tiered_high_offset bigint, diskless_start_offset bigint, high_watermark bigint,
    pending_batches bigint, pending_bytes bigint, pending_split_batches bigint,
    pending_split_files bigint, eligible_bytes bigint, merged_segments bigint,
    merged_bytes bigint, paused boolean, requested_at bigint, failures integer, parked boolean,
    parked_reason text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.topic_name, l.topic_id, l.partition, l.log_id, l.migration_state,
           l.diskless_log_start_offset, known_tiered_offset(l),
           greatest(merge_frontier(l), l.suffix_start), l.high_watermark,
           unsplit.batches, unsplit.bytes + split.bytes, split.batches, split.files,
           unsplit.eligible, merged.segments, merged.bytes, t.tiering_paused,
           epoch_ms(t.tiering_requested_at), coalesce(failed.failures, 0),
           coalesce(failed.parked, false), failed.error
    FROM logs AS l
    JOIN topics AS t USING (topic_id)
    LEFT JOIN unnest(p_topic_ids, p_cutoffs) AS c (topic_id, cutoff) USING (topic_id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches, coalesce(sum(b.byte_size), 0)::bigint AS bytes,
               coalesce(sum(b.byte_size) FILTER (WHERE may_be_split(b.max_timestamp, b.append_time,
                   c.cutoff, epoch_ms(t.tiering_requested_at))), 0)::bigint AS eligible
        FROM batches AS b
        WHERE b.log_id = l.log_id AND b.split_id IS NULL
            AND b.last_offset >= l.suffix_start
    ) AS unsplit
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(s.batch_count), 0)::bigint AS batches,
               coalesce(sum(s.byte_size), 0)::bigint AS bytes, count(*) AS files
        FROM pending_splits(l.log_id, greatest(merge_frontier(l), l.suffix_start)) AS s
    ) AS split
    CROSS JOIN LATERAL (
        SELECT count(*) AS segments, coalesce(sum(m.size_bytes), 0)::bigint AS bytes
        FROM merged_segments AS m
        WHERE m.log_id = l.log_id AND m.state = 'COPY_SEGMENT_FINISHED'
            AND m.last_offset >= l.suffix_start
    ) AS merged
    LEFT JOIN LATERAL (
        SELECT max(f.failures) AS failures, bool_or(f.parked) AS parked,
               (array_agg(f.error ORDER BY f.parked DESC, f.failed_at DESC))[1] AS error
        FROM failures_of_log(l.log_id) AS f
    ) AS failed ON true
    WHERE l.deleted_at IS NULL AND l.diskless_log_start_offset >= 0
        AND (p_topic IS NULL OR l.topic_name = p_topic)
    ORDER BY l.topic_name, l.partition
$$;

-- Of each log that has something old enough to split, the oldest of it: one look into an index a log,
-- however many rows there are and whatever statistics say. tideline/domain/tiering.py judges how late it is.
CREATE FUNCTION oldest_unsplit(p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (topic text, topic_id uuid, max_timestamp bigint, append_time bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
    SELECT h.topic, h.topic_id, oldest.max_timestamp, oldest.append_time
    FROM split_horizons(p_topic_ids, p_cutoffs) AS h CROSS JOIN LATERAL (
        SELECT b.max_timestamp, b.append_time FROM batches AS b
            WHERE b.log_id = h.log_id AND b.split_id IS NULL AND b.last_offset >= h.suffix_start
                AND age_of(b.max_timestamp, b.append_time) < h.cutoff
            ORDER BY age_of(b.max_timestamp, b.append_time) LIMIT 1
    ) AS oldest
$$;

-- How many batch rows there are, by the density that the last vacuum or analysis has found: counting
-- them would take minutes where it matters.
CREATE FUNCTION estimate_batch_rows() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(sum(reltuples::double precision / relpages * pg_relation_size(oid)
            / current_setting('block_size')::integer), 0)::bigint
        FROM pg_class WHERE oid = 'batches'::regclass AND relpages > 0
$$;

-- In the order of the names, so that two drivers never wait for each other in a circle.
CREATE FUNCTION add_tiering_totals(p_totals text[], p_values bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF cardinality(p_totals) <> cardinality(p_values) THEN
        PERFORM refuse('TL018', format('%s values for %s counters', cardinality(p_values),
                cardinality(p_totals)),
            'Give one value of at least 0 for each counter.');
    ELSIF array_position(p_totals, NULL) IS NOT NULL THEN
        PERFORM refuse('TL018', 'a counter has no name', 'Name each counter.');
    ELSIF EXISTS (SELECT FROM unnest(p_values) AS value WHERE value IS NULL OR value < 0) THEN
        PERFORM refuse('TL018', 'a counter cannot decrease',
            'Give one value of at least 0 for each counter.');
    END IF;
    INSERT INTO tiering_totals AS t (total, value)
        SELECT total, sum(value) FROM unnest(p_totals, p_values) AS given (total, value)
            GROUP BY total ORDER BY total
        ON CONFLICT (total) DO UPDATE SET value = t.value + excluded.value;
END
$$;

-- Noted in the transaction that does the work. Rows are only added: nobody waits for another.
CREATE FUNCTION note_tiering_work(p_worker uuid, p_totals text[], p_values bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO tiering_work (worker, total, value)
        SELECT p_worker, total, value FROM unnest(p_totals, p_values) AS done (total, value)
            WHERE value > 0
$$;

-- What the worker has done since the last call, which adds it to the totals; and to them what workers did
-- that have not said for a day that they ended.
CREATE FUNCTION take_tiering_work(p_worker uuid) RETURNS TABLE (total text, value bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_done jsonb;
BEGIN
    WITH taken AS (
        DELETE FROM tiering_work
            WHERE worker = p_worker OR noted_at < clock_timestamp() - interval '1 day'
            RETURNING worker, total, value
    ), added AS (
        INSERT INTO tiering_totals AS t (total, value)
            SELECT total, sum(value) FROM taken GROUP BY total ORDER BY total
            ON CONFLICT (total) DO UPDATE SET value = t.value + excluded.value
    )
    SELECT jsonb_object_agg(total, value) INTO v_done FROM (
        SELECT total, sum(value) AS value FROM taken WHERE worker = p_worker GROUP BY total) AS sums;
    RETURN QUERY SELECT d.key, d.value::bigint FROM jsonb_each_text(v_done) AS d;
END
$$;

CREATE FUNCTION read_tiering_totals() RETURNS SETOF tiering_totals
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT total, sum(value)::bigint FROM (
        SELECT total, value FROM tiering_totals UNION ALL SELECT total, value FROM tiering_work
    ) AS every GROUP BY total ORDER BY total
$$;
