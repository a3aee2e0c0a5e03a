-- What of the live split files from p_from on is not merged: of a file that begins before p_from
-- only the rest counts.
CREATE FUNCTION pending_splits(p_log_id bigint, p_from bigint)
RETURNS TABLE (
    split_id bigint, base_offset bigint, last_offset bigint, byte_size bigint, batch_count bigint,
    max_timestamp bigint, created_at timestamptz
)
LANGUAGE sql STABLE AS $$
    SELECT f.split_id, coalesce(rest.base_offset, f.base_offset), f.last_offset,
           coalesce(rest.byte_size, f.byte_size), coalesce(rest.batch_count, f.batch_count),
           f.max_timestamp, f.created_at
    FROM split_files AS f
    LEFT JOIN LATERAL (
        SELECT min(b.base_offset) AS base_offset, sum(b.byte_size)::bigint AS byte_size,
               count(*) AS batch_count
        FROM batches AS b
        WHERE f.base_offset < p_from
            AND b.log_id = f.log_id AND b.last_offset BETWEEN p_from AND f.last_offset
        HAVING count(*) > 0
    ) AS rest ON true
    WHERE f.log_id = p_log_id AND f.status = 'live' AND f.last_offset >= p_from
    ORDER BY f.base_offset
$$;

-- A request ends when everything that was committed before it is merged or expired. Append times
-- grow with the offset, so the first batch of each log tells.
CREATE FUNCTION end_tiering_requests() RETURNS void
LANGUAGE sql AS $$
    UPDATE topics AS t SET tiering_requested_at = NULL
        WHERE t.tiering_requested_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM logs AS l CROSS JOIN LATERAL (
                SELECT append_time FROM batches AS b
                    WHERE b.log_id = l.log_id AND b.last_offset >= l.suffix_start
                    ORDER BY b.last_offset LIMIT 1
            ) AS first
            WHERE l.topic_id = t.topic_id AND l.deleted_at IS NULL
                AND first.append_time <= epoch_ms(t.tiering_requested_at))
$$;

CREATE FUNCTION merge_candidates()
RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, base_offset bigint,
    last_offset bigint, bytes bigint, batches bigint, files bigint, oldest_split_at bigint,
    oldest_max_timestamp bigint, requested boolean, segments_in_progress uuid[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM end_tiering_requests();
    RETURN QUERY
    WITH waiting AS MATERIALIZED (
        SELECT DISTINCT f.log_id FROM split_files AS f WHERE f.status = 'live'
    ), candidates AS (
        SELECT l.log_id, l.topic_name, l.topic_id, l.partition,
               t.tiering_requested_at IS NOT NULL AS requested,
               greatest(merge_frontier(l), l.suffix_start) AS start
        FROM waiting AS w JOIN logs AS l USING (log_id) JOIN topics AS t USING (topic_id)
        WHERE l.deleted_at IS NULL AND t.status <> 'deleted' AND NOT t.tiering_paused
            AND NOT EXISTS (SELECT FROM tiering_failures AS f
                WHERE f.scope = 'merge' AND f.key = l.log_id
                    AND (f.parked OR f.retry_at > clock_timestamp()))
    ), runs AS (
        SELECT c.*, s.base_offset, s.last_offset, s.byte_size, s.batch_count, s.max_timestamp,
               s.created_at,
               -- Each file begins where the one before it ended; the first, where the log does.
               bool_and(s.base_offset <= s.expected)
                   OVER (PARTITION BY c.log_id ORDER BY s.base_offset) AS unbroken
        FROM candidates AS c
        CROSS JOIN LATERAL (
            SELECT b.base_offset FROM batches AS b
                WHERE b.log_id = c.log_id AND b.last_offset >= c.start
                ORDER BY b.last_offset LIMIT 1
        ) AS first
        CROSS JOIN LATERAL (
            SELECT p.*, coalesce(lag(p.last_offset) OVER (ORDER BY p.base_offset) + 1,
                       first.base_offset) AS expected
                FROM pending_splits(c.log_id, c.start) AS p
        ) AS s
    )
    SELECT r.topic_name, r.topic_id, r.partition, r.log_id, min(r.base_offset),
           max(r.last_offset), sum(r.byte_size)::bigint, sum(r.batch_count)::bigint, count(*),
           epoch_ms(min(r.created_at)),
           (array_agg(r.max_timestamp ORDER BY r.base_offset))[1], r.requested,
           ARRAY(SELECT c.segment_id FROM merge_claims AS c
               WHERE c.log_id = r.log_id AND c.expires_at > clock_timestamp())
    FROM runs AS r
    WHERE r.unbroken
    GROUP BY r.topic_name, r.topic_id, r.partition, r.log_id, r.requested
    ORDER BY min(r.created_at), r.log_id;
END
$$;

-- The longest run of split batches from the frontier on that fits one segment. Kafka's offset
-- index holds offsets relative to the base in 31 bits.
CREATE FUNCTION next_segment(
    p_log logs, p_max_bytes bigint, p_max_batches integer,
    OUT base_offset bigint, OUT last_offset bigint, OUT byte_size bigint, OUT batch_count integer,
    OUT split_ids bigint[]
)
LANGUAGE sql STABLE AS $$
    WITH run AS (
        SELECT b.*, sum(b.byte_size) OVER w AS bytes, row_number() OVER w AS n,
               first_value(b.base_offset) OVER w AS first,
               bool_or(b.split_id IS NULL OR b.base_offset <> b.expected) OVER w AS broken
        FROM (
            SELECT rows.*,
                   coalesce(lag(rows.last_offset) OVER (ORDER BY rows.last_offset) + 1,
                       rows.base_offset) AS expected
            FROM (
                SELECT * FROM batches
                    WHERE log_id = p_log.log_id AND last_offset
                        >= greatest(merge_frontier(p_log), p_log.suffix_start)
                    ORDER BY last_offset LIMIT p_max_batches
            ) AS rows
        ) AS b
        WINDOW w AS (ORDER BY b.last_offset ROWS UNBOUNDED PRECEDING)
    )
    SELECT min(base_offset), max(last_offset), sum(byte_size)::bigint, count(*)::integer,
           array_agg(DISTINCT split_id)
    FROM run
    WHERE NOT broken AND (n = 1 OR (bytes <= p_max_bytes AND last_offset - first <= 2147483647))
$$;

CREATE FUNCTION base64_url(p_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT rtrim(translate(encode(uuid_send(p_id), 'base64'), '+/', '-_'), '=')
$$;

-- Those that have expired since are no part of it: snapshots would grow for ever.
CREATE FUNCTION producers_before_segment(p_log logs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(entry ORDER BY (entry ->> 'producer_id')::bigint), '[]')
    FROM producer_snapshots AS s CROSS JOIN jsonb_array_elements(s.entries) AS entry
    WHERE s.log_id = p_log.log_id
        AND (s.end_offset IS NOT NULL OR s.seeds_digest = p_log.seeds_digest)
        AND EXISTS (SELECT FROM producer_state AS p WHERE p.log_id = p_log.log_id
            AND p.producer_id = (entry ->> 'producer_id')::bigint)
$$;

-- No row: nothing to merge, paused, deleted, or another worker's claim holds. The same worker
-- takes its own claim over, so that a task that is tried again fences its first try.
CREATE FUNCTION begin_merge(
    p_topic_id uuid, p_partition integer, p_worker uuid, p_claim_ms bigint, p_segment_id uuid,
    p_prefix text, p_max_bytes bigint, p_max_batches integer
) RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, token bigint, segment_id uuid,
    object_key_stem text, base_offset bigint, last_offset bigint, byte_size bigint,
    batch_count integer, boundary_epoch integer, files jsonb, producers jsonb
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_log logs;
    v_claim merge_claims;
    v_plan record;
BEGIN
    IF p_max_bytes < 1 OR p_max_batches < 1 OR p_claim_ms NOT BETWEEN 1 AND 86400000 THEN
        PERFORM refuse('TL018',
            format('a segment of %s bytes and %s batches or a claim of %s ms cannot be begun',
                p_max_bytes, p_max_batches, p_claim_ms),
            'Choose at least one of each, for 1 to 86400000 ms.');
    END IF;
    SELECT * INTO v_log FROM logs AS l
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    INSERT INTO merge_claims (log_id) VALUES (v_log.log_id) ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT v_claim FROM merge_claims AS c WHERE c.log_id = v_log.log_id FOR UPDATE;
    IF v_claim.expires_at > clock_timestamp() AND v_claim.worker <> p_worker THEN
        RETURN;
    END IF;
    SELECT * INTO STRICT v_log FROM logs AS l WHERE l.log_id = v_log.log_id;
    IF v_log.deleted_at IS NOT NULL OR v_log.diskless_log_start_offset < 0
        OR EXISTS (SELECT FROM topics AS t
            WHERE t.topic_id = p_topic_id AND t.tiering_paused) THEN
        RETURN;
    END IF;
    v_plan := next_segment(v_log, p_max_bytes, p_max_batches);
    IF v_plan.base_offset IS NULL THEN
        RETURN;
    END IF;
    IF v_claim.segment_id <> p_segment_id THEN
        PERFORM mark_segments_for_deletion(ARRAY(SELECT m.segment_id FROM merged_segments AS m
            WHERE m.segment_id = v_claim.segment_id AND m.state = 'COPY_SEGMENT_STARTED'),
            'another attempt took over');
    END IF;
    INSERT INTO merged_segments AS m (segment_id, log_id, token, state, object_key_stem,
            base_offset, last_offset, size_bytes, leader_epoch, batch_count)
        VALUES (p_segment_id, v_log.log_id, nextval('tiering_tokens'), 'COPY_SEGMENT_STARTED',
            format('%s%s-%s/%s/%s-%s', p_prefix, v_log.topic_name, base64_url(p_topic_id),
                p_partition, lpad(v_plan.base_offset::text, 20, '0'), base64_url(p_segment_id)),
            v_plan.base_offset, v_plan.last_offset, v_plan.byte_size,
            v_log.diskless_log_start_epoch, v_plan.batch_count)
        ON CONFLICT (segment_id) DO UPDATE SET token = excluded.token,
                object_key_stem = excluded.object_key_stem,
                base_offset = excluded.base_offset, last_offset = excluded.last_offset,
                size_bytes = excluded.size_bytes, batch_count = excluded.batch_count
            WHERE m.log_id = excluded.log_id AND m.state = 'COPY_SEGMENT_STARTED'
        RETURNING m.token, m.object_key_stem INTO token, object_key_stem;
    IF NOT FOUND THEN
        PERFORM refuse('TL018', format('segment id %s was used', p_segment_id),
            'Begin every segment under a new random id.');
    END IF;
    UPDATE merge_claims AS c SET worker = p_worker, token = begin_merge.token,
            segment_id = p_segment_id,
            expires_at = clock_timestamp() + p_claim_ms * interval '1 millisecond'
        WHERE c.log_id = v_log.log_id;
    topic := v_log.topic_name;
    topic_id := p_topic_id;
    partition := p_partition;
    log_id := v_log.log_id;
    segment_id := p_segment_id;
    base_offset := v_plan.base_offset;
    last_offset := v_plan.last_offset;
    byte_size := v_plan.byte_size;
    batch_count := v_plan.batch_count;
    boundary_epoch := v_log.diskless_log_start_epoch;
    files := (SELECT jsonb_agg(jsonb_build_object('split_id', f.split_id,
            'object_key', f.object_key, 'base_offset', f.base_offset,
            'last_offset', f.last_offset, 'byte_size', f.byte_size) ORDER BY f.base_offset)
        FROM split_files AS f WHERE f.split_id = ANY (v_plan.split_ids));
    producers := producers_before_segment(v_log);
    RETURN NEXT;
END
$$;

-- Deletes the rows of the range and says what they were, and the rows of the same split files that
-- have expired before it: prune_batches may not have been there yet, and such a row would keep its
-- file for as long as retention does not reach the file's end. The log is not locked yet: nobody
-- but a holder of the merge token and prune_batches removes rows, and commits only add later ones.
CREATE FUNCTION take_merged_batches(
    p_log_id bigint, p_base_offset bigint, p_last_offset bigint,
    OUT batches bigint, OUT first bigint, OUT last bigint, OUT offsets bigint, OUT bytes bigint,
    OUT all_split boolean, OUT split_ids bigint[]
)
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM batches
            WHERE log_id = p_log_id AND last_offset BETWEEN p_base_offset AND p_last_offset
            RETURNING base_offset, last_offset, byte_size, split_id
    ), expired AS (
        DELETE FROM batches AS b USING split_files AS f, logs AS l
            WHERE f.split_id IN (SELECT split_id FROM gone) AND l.log_id = p_log_id
                AND b.log_id = p_log_id
                AND b.last_offset BETWEEN f.base_offset AND p_base_offset - 1
                AND b.last_offset < l.suffix_start
    )
    SELECT count(*), min(base_offset), max(last_offset),
           sum(last_offset - base_offset + 1)::bigint, sum(byte_size)::bigint,
           bool_and(split_id IS NOT NULL), array_agg(DISTINCT split_id)
    FROM gone
$$;

-- Registers the segment, deletes its batch rows and moves the frontier. Answers the keys of split
-- files that no batch needs any more. Refuses when anything but retention has changed the range.
-- Order of locks: claim, segment, batches, log. Only commits to this partition wait, and only for
-- the few statements after lock_log.
CREATE FUNCTION finish_merge(
    p_topic_id uuid, p_partition integer, p_token bigint, p_segment_id uuid,
    p_base_offset bigint, p_last_offset bigint, p_size_bytes bigint, p_max_timestamp bigint,
    p_record_count bigint, p_batch_count integer, p_offset_index_bytes integer,
    p_time_index_bytes integer, p_producers jsonb
) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
    v_segment merged_segments;
    v_taken record;
    v_done bigint[];
BEGIN
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    PERFORM FROM merge_claims WHERE log_id = v_log.log_id FOR UPDATE;
    SELECT * INTO v_segment FROM merged_segments
        WHERE segment_id = p_segment_id AND log_id = v_log.log_id FOR UPDATE;
    IF v_segment.token = p_token AND v_segment.finished_at IS NOT NULL THEN
        RETURN;
    ELSIF v_segment.segment_id IS NULL OR v_segment.token <> p_token
        OR v_segment.state <> 'COPY_SEGMENT_STARTED'
        OR NOT EXISTS (SELECT FROM merge_claims
            WHERE log_id = v_log.log_id AND token = p_token) THEN
        PERFORM refuse('TL024',
            format('merge token %s of %s is lost', p_token, log_label(v_log)),
            'Another attempt took over, or the segment was collected: begin a new one.');
    ELSIF p_base_offset <> v_segment.base_offset
        OR p_last_offset NOT BETWEEN v_segment.base_offset AND v_segment.last_offset THEN
        PERFORM refuse('TL026',
            format('segment %s of %s holds offsets %s to %s, planned were %s to %s',
                p_segment_id, log_label(v_log), p_base_offset, p_last_offset,
                v_segment.base_offset, v_segment.last_offset),
            'Build the segment from exactly its plan.');
    END IF;
    v_taken := take_merged_batches(v_log.log_id, p_base_offset, p_last_offset);
    -- From here on commits to this partition wait.
    v_log := lock_log(p_topic_id, p_partition);
    IF p_last_offset < v_log.suffix_start THEN
        PERFORM refuse('TL025',
            format('retention has removed %s up to offset %s, past segment %s (%s to %s)',
                log_label(v_log), v_log.suffix_start - 1, p_segment_id,
                p_base_offset, p_last_offset),
            'Abandon the segment: nobody can read it.');
    ELSIF p_base_offset < merge_frontier(v_log) OR NOT coalesce(v_taken.all_split, false)
        OR v_taken.last <> p_last_offset
        OR v_taken.offsets <> p_last_offset - v_taken.first + 1
        OR v_taken.first > greatest(p_base_offset, v_log.suffix_start)
        OR (v_taken.first = p_base_offset
            AND (v_taken.bytes <> p_size_bytes OR v_taken.batches <> p_batch_count))
        OR EXISTS (SELECT FROM batches WHERE log_id = v_log.log_id
            AND last_offset >= v_log.suffix_start AND last_offset < p_base_offset) THEN
        PERFORM refuse('TL026',
            format('segment %s of %s has offsets %s to %s in %s batches of %s bytes; the split '
                'batches there are %s to %s in %s of %s', p_segment_id, log_label(v_log),
                p_base_offset, p_last_offset, p_batch_count, p_size_bytes,
                coalesce(v_taken.first, -1), coalesce(v_taken.last, -1), v_taken.batches,
                coalesce(v_taken.bytes, 0)),
            'Abandon the segment and plan it again.');
    END IF;
    UPDATE merged_segments SET state = 'COPY_SEGMENT_FINISHED', finished_at = clock_timestamp(),
            last_offset = p_last_offset, size_bytes = p_size_bytes,
            max_timestamp = p_max_timestamp, record_count = p_record_count,
            batch_count = p_batch_count, offset_index_bytes = p_offset_index_bytes,
            time_index_bytes = p_time_index_bytes
        WHERE segment_id = p_segment_id;
    UPDATE logs SET tiered_high_offset = p_last_offset, migration_state = 'HYBRID',
            tiered_log_start_offset = CASE WHEN has_prefix(v_log) THEN tiered_log_start_offset
                ELSE first_merged_offset(log_id, suffix_start) END
        WHERE log_id = v_log.log_id;
    INSERT INTO producer_snapshots (log_id, end_offset, entries)
        VALUES (v_log.log_id, p_last_offset, p_producers)
        ON CONFLICT (log_id) DO UPDATE
            SET end_offset = excluded.end_offset, entries = excluded.entries;
    UPDATE merge_claims SET expires_at = NULL, segment_id = NULL WHERE log_id = v_log.log_id;
    DELETE FROM tiering_failures WHERE scope = 'merge' AND key = v_log.log_id;
    PERFORM notify_log(p_topic_id, p_partition);
    v_done := ARRAY(SELECT f.split_id FROM split_files AS f
        WHERE f.split_id = ANY (v_taken.split_ids) AND NOT EXISTS (SELECT FROM batches AS b
            WHERE b.log_id = f.log_id AND b.last_offset BETWEEN f.base_offset AND f.last_offset));
    RETURN QUERY SELECT mark_splits_for_deletion(v_done);
END
$$;

CREATE FUNCTION abandon_merge(
    p_topic_id uuid, p_partition integer, p_token bigint, p_reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_claim merge_claims;
BEGIN
    SELECT c.* INTO v_claim FROM merge_claims AS c JOIN logs AS l USING (log_id)
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition AND c.token = p_token
        FOR UPDATE OF c;
    IF v_claim.segment_id IS NULL THEN
        RETURN;
    END IF;
    PERFORM mark_segments_for_deletion(ARRAY(SELECT segment_id FROM merged_segments
        WHERE segment_id = v_claim.segment_id AND state = 'COPY_SEGMENT_STARTED'
        FOR UPDATE), p_reason);
    UPDATE merge_claims SET expires_at = NULL, segment_id = NULL WHERE log_id = v_claim.log_id;
END
$$;
