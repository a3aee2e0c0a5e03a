-- Deletes the rows of the range and says what they were. The log is not locked yet: nobody but a
-- holder of the merge token and prune_batches removes rows, and commits only add later ones.
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

-- As V17's, and the newest batch of each producer is kept for the snapshot of the first merged
-- segment: producer_state moves on with the first commit.
CREATE OR REPLACE FUNCTION write_seeds(p_log logs, p_seeds jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM producer_state WHERE log_id = p_log.log_id;
    INSERT INTO producer_state (log_id, producer_id, producer_epoch, base_sequences,
            last_sequences, base_offsets, append_times)
        SELECT p_log.log_id, producer_id, producer_epoch,
               array_agg(base_sequence ORDER BY base_offset),
               array_agg(last_sequence ORDER BY base_offset),
               array_agg(base_offset ORDER BY base_offset),
               array_agg("timestamp" ORDER BY base_offset)
        FROM (
            SELECT s.*,
                   max(producer_epoch) OVER (PARTITION BY producer_id) AS current_epoch,
                   row_number() OVER (PARTITION BY producer_id, producer_epoch
                       ORDER BY base_offset DESC) AS age
            FROM jsonb_to_recordset(p_seeds) AS s (producer_id bigint, producer_epoch integer,
                base_sequence integer, last_sequence integer, base_offset bigint,
                last_offset bigint, "timestamp" bigint)
        ) AS seeds
        WHERE producer_epoch = current_epoch AND age <= 5
        GROUP BY producer_id, producer_epoch;
    INSERT INTO producer_snapshots (log_id, seeds_digest, entries)
        SELECT p_log.log_id, md5(p_seeds::text),
               coalesce(jsonb_agg(jsonb_build_object('producer_id', producer_id,
                   'producer_epoch', producer_epoch, 'last_sequence', last_sequence,
                   'last_offset', last_offset, 'offset_delta', last_offset - base_offset,
                   'timestamp', "timestamp") ORDER BY producer_id), '[]')
        FROM (
            SELECT DISTINCT ON (producer_id) *
            FROM jsonb_to_recordset(p_seeds) AS s (producer_id bigint, producer_epoch integer,
                last_sequence integer, base_offset bigint, last_offset bigint,
                "timestamp" bigint)
            ORDER BY producer_id, producer_epoch DESC, base_offset DESC
        ) AS newest
        ON CONFLICT (log_id) DO UPDATE SET seeds_digest = excluded.seeds_digest,
            end_offset = NULL, entries = excluded.entries;
    UPDATE logs SET seeds_digest = md5(p_seeds::text),
            seeds_last_offset = (SELECT coalesce(max(last_offset), -1)
                FROM jsonb_to_recordset(p_seeds) AS s (last_offset bigint))
        WHERE log_id = p_log.log_id;
END
$$;

-- Partitions that crossed before this: what producer_state still remembers from below B0.
INSERT INTO producer_snapshots (log_id, seeds_digest, entries)
    SELECT log_id, seeds_digest,
           jsonb_agg(jsonb_build_object('producer_id', producer_id,
               'producer_epoch', producer_epoch, 'last_sequence', last_sequence,
               'last_offset', base_offset + offset_delta, 'offset_delta', offset_delta,
               'timestamp', append_time) ORDER BY producer_id)
    FROM (
        SELECT DISTINCT ON (l.log_id, p.producer_id) l.log_id, l.seeds_digest, p.producer_id,
               p.producer_epoch, b.last_sequence, b.base_offset, b.append_time,
               (b.last_sequence - b.base_sequence + 2147483648) % 2147483648 AS offset_delta
        FROM logs AS l JOIN producer_state AS p USING (log_id)
        CROSS JOIN unnest(p.base_sequences, p.last_sequences, p.base_offsets, p.append_times)
            AS b (base_sequence, last_sequence, base_offset, append_time)
        WHERE b.base_offset < l.diskless_log_start_offset AND l.seeds_digest IS NOT NULL
        ORDER BY l.log_id, p.producer_id, b.base_offset DESC
    ) AS newest
    GROUP BY log_id, seeds_digest;
