-- One worker at a time and partition, under a token, with one or several segments that follow each
-- other. Only finish_merge locks the row of a log, for its last few statements.

-- What of the recorded runs from p_from on is not merged: of a run that begins before p_from only the
-- rest counts.
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
    WHERE f.log_id = p_log_id AND f.last_offset >= p_from
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
        SELECT DISTINCT f.log_id FROM split_files AS f
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
        -- Behind a hole at the frontier no segment may begin.
        JOIN LATERAL (
            SELECT b.base_offset FROM batches AS b
                WHERE b.log_id = c.log_id AND b.last_offset >= c.start
                ORDER BY b.last_offset LIMIT 1
        ) AS first ON first.base_offset <= c.start
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

-- What the split runs of these logs would be read from: how many there are, their bytes, and the WAL
-- objects in which they lie, each looked up by itself: where statistics say that there is no file, a join
-- reads all of them for each.
CREATE FUNCTION pending_reads(p_log_ids bigint[])
RETURNS TABLE (runs bigint, run_bytes bigint, objects bigint, object_bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH pending AS MATERIALIZED (
        SELECT file_id, count(*) AS runs, sum(byte_size) AS bytes FROM split_files
            WHERE log_id = ANY (p_log_ids) GROUP BY file_id
    )
    SELECT coalesce(sum(p.runs), 0)::bigint, coalesce(sum(p.bytes), 0)::bigint, count(*),
           coalesce(sum(w.size), 0)::bigint
    FROM pending AS p CROSS JOIN LATERAL (
        SELECT f.size FROM wal_files AS f WHERE f.file_id = p.file_id OFFSET 0) AS w
$$;

-- The longest run of split batches from p_from on, without a hole, that fits one segment. Kafka's
-- offset index holds offsets relative to the base in 31 bits.
CREATE FUNCTION next_segment(
    p_log logs, p_from bigint, p_max_bytes bigint, p_max_batches integer,
    OUT base_offset bigint, OUT last_offset bigint, OUT byte_size bigint, OUT batch_count integer
)
LANGUAGE sql STABLE AS $$
    WITH run AS (
        SELECT b.*, sum(b.byte_size) OVER w AS bytes, row_number() OVER w AS n,
               first_value(b.base_offset) OVER w AS first,
               bool_or(b.split_id IS NULL OR b.base_offset <> b.expected) OVER w AS broken
        FROM (
            SELECT rows.*,
                   -- The first may begin before the suffix does, where a deletion cut it.
                   coalesce(lag(rows.last_offset) OVER (ORDER BY rows.last_offset) + 1,
                       least(rows.base_offset, p_from)) AS expected
            FROM (
                SELECT * FROM batches
                    WHERE log_id = p_log.log_id AND last_offset >= p_from
                    ORDER BY last_offset LIMIT p_max_batches
            ) AS rows
        ) AS b
        WINDOW w AS (ORDER BY b.last_offset ROWS UNBOUNDED PRECEDING)
    )
    SELECT min(base_offset), max(last_offset), sum(byte_size)::bigint, count(*)::integer
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

-- The row of a partition's claim, locked until the end of the transaction.
CREATE FUNCTION lock_merge_claim(p_topic_id uuid, p_partition integer) RETURNS merge_claims
LANGUAGE plpgsql AS $$
DECLARE
    v_claim merge_claims;
    v_log_id bigint := (SELECT log_id FROM logs
        WHERE topic_id = p_topic_id AND partition = p_partition);
BEGIN
    IF v_log_id IS NULL THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    INSERT INTO merge_claims (log_id) VALUES (v_log_id) ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT v_claim FROM merge_claims WHERE log_id = v_log_id FOR UPDATE;
    RETURN v_claim;
END
$$;

-- What the keys of a segment's objects begin with; Kafka's suffixes follow.
CREATE FUNCTION segment_key_stem(
    p_log logs, p_prefix text, p_segment_id uuid, p_base_offset bigint
) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT format('%s%s-%s/%s/%s-%s', p_prefix, p_log.topic_name, base64_url(p_log.topic_id),
        p_log.partition, lpad(p_base_offset::text, 20, '0'), base64_url(p_segment_id))
$$;

-- Records a segment that is begun under the token. A segment that this attempt began before is planned
-- anew.
CREATE FUNCTION begin_segment(
    p_log logs, p_token bigint, p_segment_id uuid, p_prefix text, p_base_offset bigint, p_last_offset bigint,
    p_size_bytes bigint, p_batch_count integer
) RETURNS merged_segments
LANGUAGE plpgsql AS $$
DECLARE
    v_segment merged_segments;
BEGIN
    INSERT INTO merged_segments AS m (segment_id, log_id, token, state, object_key_stem,
            base_offset, last_offset, size_bytes, leader_epoch, batch_count)
        VALUES (p_segment_id, p_log.log_id, p_token, 'COPY_SEGMENT_STARTED',
            segment_key_stem(p_log, p_prefix, p_segment_id, p_base_offset), p_base_offset,
            p_last_offset, p_size_bytes, p_log.diskless_log_start_epoch, p_batch_count)
        ON CONFLICT (segment_id) DO UPDATE SET token = excluded.token,
                object_key_stem = excluded.object_key_stem,
                base_offset = excluded.base_offset, last_offset = excluded.last_offset,
                size_bytes = excluded.size_bytes, batch_count = excluded.batch_count
            WHERE m.log_id = excluded.log_id AND m.state = 'COPY_SEGMENT_STARTED'
        RETURNING * INTO v_segment;
    IF NOT FOUND THEN
        PERFORM refuse('TL018', format('segment id %s was used', p_segment_id),
            'Begin every segment under a new random id.');
    END IF;
    RETURN v_segment;
END
$$;

-- Where each batch of a range lies, one element a batch, in offset order. batch_objects: from 0 on, into
-- object_keys. An append time only where it goes into the batch. Read in the order of the primary key,
-- and "+ 0": where statistics say that there is no batch, the index by file, which has the order that
-- the ranks want, is read whole. And each object is looked up by itself.
CREATE FUNCTION planned_batches(
    p_log_id bigint, p_base_offset bigint, p_last_offset bigint,
    OUT object_keys text[], OUT batch_objects integer[], OUT base_offsets bigint[],
    OUT last_offsets bigint[], OUT byte_offsets bigint[], OUT byte_sizes integer[],
    OUT append_times bigint[], OUT max_timestamps bigint[]
)
LANGUAGE sql STABLE AS $$
    WITH planned AS MATERIALIZED (
        SELECT b.*, (dense_rank() OVER (ORDER BY b.file_id + 0) - 1)::integer AS object
        FROM (SELECT * FROM batches WHERE log_id = p_log_id
                AND last_offset BETWEEN p_base_offset AND p_last_offset
            ORDER BY last_offset OFFSET 0) AS b
    )
    SELECT (SELECT array_agg((SELECT w.object_key FROM wal_files AS w WHERE w.file_id = o.file_id)
                    ORDER BY o.file_id)
                FROM (SELECT DISTINCT file_id FROM planned) AS o),
           array_agg(object ORDER BY last_offset), array_agg(base_offset ORDER BY last_offset),
           array_agg(last_offset ORDER BY last_offset), array_agg(byte_offset ORDER BY last_offset),
           array_agg(byte_size ORDER BY last_offset),
           array_agg(CASE WHEN log_append_time THEN append_time END ORDER BY last_offset),
           array_agg(max_timestamp ORDER BY last_offset)
    FROM planned
$$;

-- Ends a claim: what its worker began and has not finished goes to garbage collection.
CREATE FUNCTION end_merge_claim(p_claim merge_claims, p_reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mark_segments_for_deletion(ARRAY(SELECT segment_id FROM merged_segments
        WHERE log_id = p_claim.log_id AND token = p_claim.token
            AND state = 'COPY_SEGMENT_STARTED' ORDER BY segment_id FOR UPDATE), p_reason);
    UPDATE merge_claims SET expires_at = NULL, segment_id = NULL WHERE log_id = p_claim.log_id;
END
$$;

-- Whether another attempt has ended what was begun under one of these ids.
CREATE FUNCTION was_taken_over(p_log_id bigint, p_segment_ids uuid[]) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM merged_segments AS m WHERE m.segment_id = ANY (p_segment_ids)
        AND m.log_id = p_log_id AND m.finished_at IS NULL AND m.state <> 'COPY_SEGMENT_STARTED')
$$;

-- The next segment, as next_segment has it, without a look at many more rows than it takes: what waits
-- behind it may be a hundred times as much.
CREATE FUNCTION plan_segment(
    p_log logs, p_from bigint, p_max_bytes bigint, p_max_batches integer,
    OUT base_offset bigint, OUT last_offset bigint, OUT byte_size bigint, OUT batch_count integer
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_rows integer := least(1000, p_max_batches);
BEGIN
    LOOP
        SELECT * INTO base_offset, last_offset, byte_size, batch_count
            FROM next_segment(p_log, p_from, p_max_bytes, v_rows);
        EXIT WHEN batch_count < v_rows OR v_rows = p_max_batches;
        v_rows := least(v_rows::bigint * 4, p_max_batches);
    END LOOP;
END
$$;

-- Begins segments behind the frontier, one for each id while there is more; answers how many.
CREATE FUNCTION begin_segments(
    p_log logs, p_token bigint, p_segment_ids uuid[], p_prefix text, p_max_bytes bigint,
    p_max_batches integer
) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_from bigint := greatest(merge_frontier(p_log), p_log.suffix_start);
    v_begun integer := 0;
    v_segment_id uuid;
    v_plan record;
BEGIN
    FOREACH v_segment_id IN ARRAY p_segment_ids LOOP
        v_plan := plan_segment(p_log, v_from, p_max_bytes, p_max_batches);
        EXIT WHEN v_plan.base_offset IS NULL;
        PERFORM begin_segment(p_log, p_token, v_segment_id, p_prefix, v_plan.base_offset,
            v_plan.last_offset, v_plan.byte_size, v_plan.batch_count);
        v_from := v_plan.last_offset + 1;
        v_begun := v_begun + 1;
    END LOOP;
    RETURN v_begun;
END
$$;

-- Plans as many segments that follow each other as there are ids, under one token, one row each; fewer
-- where there is not more. No row: nothing to merge, paused, deleted, or a claim holds, also one of the
-- same worker: of two attempts of a task that run at once the first goes on. A call that is repeated with
-- the same ids takes its own claim over; no row where another attempt has taken over what it began. TL025:
-- retention has pruned batches meanwhile, and nothing is begun. Without sorts, where an index has the order:
-- where statistics say that there is no batch, all that waits would be read and sorted for each segment.
CREATE FUNCTION begin_merge(
    p_topic_id uuid, p_partition integer, p_worker uuid, p_claim_ms bigint, p_segment_ids uuid[],
    p_prefix text, p_max_bytes bigint, p_max_batches integer
) RETURNS TABLE (
    topic text, topic_id uuid, partition integer, log_id bigint, token bigint, segment_id uuid,
    object_key_stem text, base_offset bigint, last_offset bigint, byte_size bigint,
    batch_count integer, boundary_epoch integer, producers jsonb, object_keys text[],
    batch_objects integer[], base_offsets bigint[], last_offsets bigint[], byte_offsets bigint[],
    byte_sizes integer[], append_times bigint[], max_timestamps bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_log logs;
    v_claim merge_claims;
    v_token bigint;
    v_begun integer;
    v_whole integer;
BEGIN
    PERFORM assert_positive(p_max_bytes, 'bytes of a segment'),
        assert_positive(cardinality(p_segment_ids), 'segments to plan'),
        assert_positive(p_max_batches, 'batches of a segment'), assert_claim_time(p_claim_ms);
    v_claim := lock_merge_claim(p_topic_id, p_partition);
    IF (v_claim.expires_at > clock_timestamp() AND v_claim.segment_id <> ALL (p_segment_ids))
            OR was_taken_over(v_claim.log_id, p_segment_ids) THEN
        RETURN;
    END IF;
    SELECT l.* INTO v_log FROM logs AS l JOIN topics AS t USING (topic_id)
        WHERE l.log_id = v_claim.log_id AND l.deleted_at IS NULL
            AND l.diskless_log_start_offset >= 0 AND NOT t.tiering_paused;
    v_token := nextval('tiering_tokens');
    v_begun := begin_segments(v_log, v_token, p_segment_ids, p_prefix, p_max_bytes, p_max_batches);
    IF v_begun = 0 THEN
        RETURN;
    END IF;
    PERFORM mark_segments_for_deletion(ARRAY(SELECT m.segment_id FROM merged_segments AS m
        WHERE m.log_id = v_log.log_id AND m.token = v_claim.token
            AND m.state = 'COPY_SEGMENT_STARTED' AND m.segment_id <> ALL (p_segment_ids)),
        'another attempt took over');
    UPDATE merge_claims AS c SET worker = p_worker, token = v_token, segment_id = p_segment_ids[1],
            expires_at = clock_timestamp() + p_claim_ms * interval '1 millisecond'
        WHERE c.log_id = v_log.log_id;
    RETURN QUERY SELECT v_log.topic_name, p_topic_id, p_partition, v_log.log_id, v_token,
        m.segment_id, m.object_key_stem, m.base_offset, m.last_offset, m.size_bytes, m.batch_count,
        v_log.diskless_log_start_epoch, producers_before_segment(v_log), b.*
        FROM merged_segments AS m
        CROSS JOIN LATERAL planned_batches(v_log.log_id, m.base_offset, m.last_offset) AS b
        WHERE m.log_id = v_log.log_id AND m.token = v_token
            AND cardinality(b.base_offsets) = m.batch_count
        ORDER BY m.base_offset;
    GET DIAGNOSTICS v_whole = ROW_COUNT;
    -- Each statement sees what prune_batches has left by then.
    IF v_whole <> v_begun THEN
        PERFORM refuse('TL025', format('retention removed records of %s while its batches were '
            'planned', log_label(v_log)), 'Plan the segments again.');
    END IF;
END
$$;

CREATE FUNCTION refuse_stale_merge(p_log logs, p_token bigint, p_why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('TL024',
        format('merge token %s of %s is lost: %s', p_token, log_label(p_log), p_why),
        'Begin a new segment.');
END
$$;

-- Holds the claim for p_claim_ms from now on, while its worker goes on; also one that has expired and
-- was not taken over. Raises TL024 for one that is lost.
CREATE FUNCTION renew_merge(p_topic_id uuid, p_partition integer, p_token bigint, p_claim_ms bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    PERFORM assert_claim_time(p_claim_ms);
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    UPDATE merge_claims SET expires_at = clock_timestamp() + p_claim_ms * interval '1 millisecond'
        WHERE log_id = v_log.log_id AND token = p_token AND segment_id IS NOT NULL;
    IF NOT FOUND THEN
        PERFORM refuse_stale_merge(v_log, p_token, 'its claim has ended');
    END IF;
END
$$;

-- For how many ms the claim that p_worker has on the partition holds yet, 0 if it has none.
CREATE FUNCTION merge_claimed_for(p_topic_id uuid, p_partition integer, p_worker uuid)
RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(max(greatest(0,
        ceil(extract(epoch FROM c.expires_at - clock_timestamp()) * 1000)))::bigint, 0)
    FROM merge_claims AS c JOIN logs AS l USING (log_id)
    WHERE l.topic_id = p_topic_id AND l.partition = p_partition AND c.worker = p_worker
        AND c.expires_at IS NOT NULL
$$;

-- Deletes the rows of the range and says what they were, and the rows of the same runs that
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
            RETURNING base_offset, last_offset, byte_size, split_id, file_id
    ), expired AS (
        DELETE FROM batches AS b USING split_files AS f, logs AS l
            WHERE f.split_id = ANY (ARRAY(SELECT DISTINCT split_id FROM gone))
                AND l.log_id = p_log_id
                AND b.log_id = p_log_id
                AND b.last_offset BETWEEN f.base_offset AND p_base_offset - 1
                AND b.last_offset < l.suffix_start
            RETURNING b.file_id
    ), lessened AS (
        INSERT INTO lessened_files (file_id)
            SELECT file_id FROM gone UNION SELECT file_id FROM expired
    )
    SELECT count(*), min(base_offset), max(last_offset),
           sum(last_offset - base_offset + 1)::bigint, sum(byte_size)::bigint,
           bool_and(split_id IS NOT NULL), array_agg(DISTINCT split_id)
    FROM gone
$$;

-- The segment that the token may finish, locked with its claim, or has finished already.
CREATE FUNCTION lock_segment(p_log logs, p_segment_id uuid, p_token bigint)
RETURNS merged_segments
LANGUAGE plpgsql AS $$
DECLARE
    v_segment merged_segments;
    v_claim merge_claims;
    v_lost text;
BEGIN
    SELECT * INTO v_claim FROM merge_claims WHERE log_id = p_log.log_id FOR UPDATE;
    SELECT * INTO v_segment FROM merged_segments
        WHERE segment_id = p_segment_id AND log_id = p_log.log_id FOR UPDATE;
    IF v_segment.token = p_token AND v_segment.finished_at IS NOT NULL THEN
        RETURN v_segment;
    END IF;
    v_lost := CASE
        WHEN v_segment.segment_id IS NULL THEN 'its segment was collected'
        WHEN v_segment.token <> p_token THEN
            format('token %s has taken its segment over', v_segment.token)
        WHEN v_segment.state <> 'COPY_SEGMENT_STARTED' THEN
            format('its segment is to be deleted (%s)', v_segment.reason)
        WHEN v_claim.token IS DISTINCT FROM p_token THEN
            format('token %s has taken the partition over', v_claim.token)
    END;
    IF v_lost IS NOT NULL THEN
        PERFORM refuse_stale_merge(p_log, p_token, v_lost);
    END IF;
    RETURN v_segment;
END
$$;

-- Refuses a segment that is not what its plan says. Its end may lie before the planned one.
CREATE FUNCTION assert_segment_as_planned(
    p_log logs, p_plan merged_segments, p_base_offset bigint, p_last_offset bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_why text := CASE
        WHEN p_base_offset <> p_plan.base_offset THEN
            format('begins at offset %s, planned was %s', p_base_offset, p_plan.base_offset)
        WHEN p_last_offset NOT BETWEEN p_plan.base_offset AND p_plan.last_offset THEN
            format('ends at offset %s, planned were %s to %s', p_last_offset, p_plan.base_offset,
                p_plan.last_offset)
    END;
BEGIN
    IF v_why IS NOT NULL THEN
        PERFORM refuse('TL026',
            format('segment %s of %s %s', p_plan.segment_id, log_label(p_log), v_why),
            'Build the segment from exactly its plan.');
    END IF;
END
$$;

-- Refuses a segment that is not what was taken for it: nothing but retention may have changed the
-- range. p_log: as it is now, locked.
CREATE FUNCTION assert_segment_as_taken(
    p_log logs, p_segment merged_segments, p_first bigint, p_last bigint, p_offsets bigint,
    p_bytes bigint, p_batches bigint, p_all_split boolean
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_base bigint := p_segment.base_offset;
    v_why text := CASE
        WHEN v_base < merge_frontier(p_log) THEN format('begins at offset %s, but all below %s is '
            'merged', v_base, merge_frontier(p_log))
        WHEN p_batches = 0 THEN format('has no batch left from offset %s to %s', v_base,
            p_segment.last_offset)
        WHEN NOT p_all_split THEN 'has batches that are not split'
        WHEN p_last <> p_segment.last_offset THEN format('ends at offset %s, its last batch at %s',
            p_segment.last_offset, p_last)
        WHEN p_offsets <> p_last - p_first + 1 THEN format(
            'has gaps in its batches from offset %s to %s', p_first, p_last)
        WHEN p_first > greatest(v_base, p_log.suffix_start) THEN format(
            'begins at offset %s, its first batch at %s', v_base, p_first)
        WHEN p_first = v_base AND p_bytes <> p_segment.size_bytes THEN format(
            'has %s bytes, its batches have %s', p_segment.size_bytes, p_bytes)
        WHEN p_first = v_base AND p_batches <> p_segment.batch_count THEN format(
            'has %s batches, there are %s', p_segment.batch_count, p_batches)
        WHEN EXISTS (SELECT FROM batches WHERE log_id = p_log.log_id
            AND last_offset >= p_log.suffix_start AND last_offset < v_base) THEN format(
            'begins at offset %s, but below it are batches that are not merged', v_base)
        WHEN v_base > greatest(merge_frontier(p_log), p_log.suffix_start) THEN format(
            'begins at offset %s, but nothing holds those from %s on', v_base,
            greatest(merge_frontier(p_log), p_log.suffix_start))
    END;
BEGIN
    IF v_why IS NOT NULL THEN
        PERFORM refuse('TL026',
            format('segment %s of %s %s', p_segment.segment_id, log_label(p_log), v_why),
            'Abandon the segment and plan it again.');
    END IF;
END
$$;

-- Those of the recorded runs that no batch needs any more. Each is looked up by itself: where statistics
-- are those of an empty table, which most runs of merge leave behind, a join reads the batches of
-- all logs for each.
CREATE FUNCTION merged_splits(p_split_ids bigint[]) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(SELECT f.split_id FROM split_files AS f
        WHERE f.split_id = ANY (p_split_ids) AND (SELECT b.last_offset FROM batches AS b
            WHERE b.log_id = f.log_id AND b.last_offset BETWEEN f.base_offset AND f.last_offset
            ORDER BY b.log_id, b.last_offset LIMIT 1) IS NULL)
$$;

-- Moves the frontier of the log past the segment, and what begins there.
CREATE FUNCTION move_frontier(p_log logs, p_last_offset bigint, p_producers jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE logs SET tiered_high_offset = p_last_offset, migration_state = 'HYBRID',
            tiered_log_start_offset = CASE WHEN has_prefix(p_log) THEN tiered_log_start_offset
                ELSE first_merged_offset(log_id, suffix_start) END
        WHERE log_id = p_log.log_id;
    INSERT INTO producer_snapshots (log_id, end_offset, entries)
        VALUES (p_log.log_id, p_last_offset, p_producers)
        ON CONFLICT (log_id) DO UPDATE
            SET end_offset = excluded.end_offset, entries = excluded.entries;
    PERFORM notify_log(p_log.topic_id, p_log.partition);
END
$$;

-- Registers the segment, deletes its batch rows and moves the frontier. The claim ends with the last
-- segment that was planned under it. Refuses when anything but retention has changed the range.
-- Order of locks: claim, segment, batches, log. Only commits to this partition wait, and only for
-- the few statements after lock_log.
CREATE FUNCTION finish_merge(
    p_topic_id uuid, p_partition integer, p_token bigint, p_segment_id uuid,
    p_base_offset bigint, p_last_offset bigint, p_size_bytes bigint, p_max_timestamp bigint,
    p_record_count bigint, p_batch_count integer, p_offset_index_bytes integer,
    p_time_index_bytes integer, p_snapshot_bytes integer, p_epoch_checkpoint_bytes integer,
    p_producers jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
    v_segment merged_segments;
    v_taken record;
    v_worker uuid;
BEGIN
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    v_segment := lock_segment(v_log, p_segment_id, p_token);
    IF v_segment.finished_at IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM assert_segment_as_planned(v_log, v_segment, p_base_offset, p_last_offset);
    v_taken := take_merged_batches(v_log.log_id, p_base_offset, p_last_offset);
    -- From here on commits to this partition wait.
    v_log := lock_log(p_topic_id, p_partition);
    IF p_last_offset < v_log.suffix_start THEN
        PERFORM refuse('TL025',
            format('retention has removed %s up to offset %s, past segment %s (%s to %s)',
                log_label(v_log), v_log.suffix_start - 1, p_segment_id, p_base_offset,
                p_last_offset),
            'Abandon the segment: nobody can read it.');
    END IF;
    v_segment.last_offset := p_last_offset;
    v_segment.size_bytes := p_size_bytes;
    v_segment.batch_count := p_batch_count;
    PERFORM assert_segment_as_taken(v_log, v_segment, v_taken.first, v_taken.last,
        v_taken.offsets, v_taken.bytes, v_taken.batches, v_taken.all_split);
    UPDATE merged_segments SET state = 'COPY_SEGMENT_FINISHED', finished_at = clock_timestamp(),
            last_offset = p_last_offset, size_bytes = p_size_bytes,
            max_timestamp = p_max_timestamp, record_count = p_record_count,
            batch_count = p_batch_count, offset_index_bytes = p_offset_index_bytes,
            time_index_bytes = p_time_index_bytes, snapshot_bytes = p_snapshot_bytes,
            epoch_checkpoint_bytes = p_epoch_checkpoint_bytes
        WHERE segment_id = p_segment_id;
    PERFORM move_frontier(v_log, p_last_offset, p_producers);
    UPDATE merge_claims AS c SET segment_id = next.segment_id,
            expires_at = CASE WHEN next.segment_id IS NOT NULL THEN c.expires_at END
        FROM (SELECT (SELECT m.segment_id FROM merged_segments AS m
            WHERE m.log_id = v_log.log_id AND m.token = p_token
                AND m.state = 'COPY_SEGMENT_STARTED'
            ORDER BY m.base_offset LIMIT 1)) AS next (segment_id)
        WHERE c.log_id = v_log.log_id RETURNING c.worker INTO v_worker;
    DELETE FROM tiering_failures WHERE scope = 'merge' AND key = v_log.log_id;
    DELETE FROM split_files WHERE split_id = ANY (merged_splits(v_taken.split_ids));
    PERFORM note_tiering_work(v_worker, ARRAY['segments.created', 'batches.merged',
        'records.merged', 'bytes.merged'],
        ARRAY[1, p_batch_count, p_record_count, p_size_bytes]);
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
    IF v_claim.segment_id IS NOT NULL THEN
        PERFORM end_merge_claim(v_claim, p_reason);
    END IF;
END
$$;
