-- A control plane from what the bucket tells: granted to nobody, so that only the owner of the schema
-- and those who have its rights can call it. Nothing that is here is changed: rows are added where
-- there are none, and starts, segments and the high watermark move forward. Everything may be
-- repeated.

-- What is written comes from whoever has halted the history: nobody is served, no lease is held.
CREATE FUNCTION assert_rebuilding() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_active text;
BEGIN
    SELECT string_agg(format('%s at %s', gateway_id, address), ', ') INTO v_active
        FROM gateways WHERE status = 'active';
    IF v_active IS NOT NULL OR (SELECT halted FROM installation) IS NULL THEN
        PERFORM refuse('TL060',
            coalesce('gateway ' || v_active || ' is registered', 'the history is not halted'),
            'Begin the rebuild first: it watches that nobody lives, and halts the history.');
    END IF;
END
$$;

-- Halts the history, and fences gateways that stood still while they were watched. Refused where one
-- renews its lease or the worker writes beats: they live, and what they do would not be in it.
-- Tokens go on behind all that an installation that is gone may have handed out: their number is the
-- time in ns, less what the new history adds.
CREATE FUNCTION begin_rebuild(
    p_by text, p_reason text, p_gateways integer[], p_incarnations uuid[], p_renewals bigint[],
    p_beat bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_living text;
BEGIN
    IF '' IN (coalesce(p_by, ''), coalesce(p_reason, '')) THEN
        PERFORM refuse('TL018', 'nobody, or no reason, is named for a rebuild',
            'Say who does it, and what was lost.');
    END IF;
    PERFORM FROM installation FOR UPDATE;
    SELECT string_agg(format('gateway %s at %s', g.gateway_id, g.address), ', ') INTO v_living
        FROM gateways AS g
        WHERE g.status = 'active' AND NOT EXISTS (
            SELECT FROM unnest(p_gateways, p_incarnations, p_renewals)
                AS w (id, incarnation, renewals)
            WHERE (w.id, w.incarnation, w.renewals)
                = (g.gateway_id, g.incarnation, g.renewals));
    IF (SELECT max(beat) FROM history_beats) <> p_beat THEN
        v_living := concat_ws(', ', v_living, 'a worker');
    END IF;
    IF v_living IS NOT NULL THEN
        PERFORM refuse('TL060', format('%s lives and uses this Postgres', v_living),
            'Stop every gateway and worker, then begin again.');
    END IF;
    UPDATE installation SET halted = format('%s rebuilds it (%s): run `tideline rebuild --write` '
        'until it says that it is done', p_by, p_reason);
    PERFORM fence_gateway(g.gateway_id, g.incarnation, g.renewals, 'it stood still at a rebuild')
        FROM gateways AS g WHERE g.status = 'active';
    PERFORM setval('tiering_tokens', greatest(nextval('tiering_tokens'),
        (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint - 1000000000));
END
$$;

-- Generations of an installation that is gone are smaller: none has as many attempts as seconds. The
-- new history adds its million.
CREATE FUNCTION unused_generation() RETURNS integer
LANGUAGE sql AS $$
    SELECT extract(epoch FROM clock_timestamp() - timestamptz '2025-01-01 00:00Z')::integer - 1000000
$$;

-- p_topics as rows; null: not told.
CREATE FUNCTION told_topics(p_topics jsonb)
RETURNS TABLE (
    topic_id uuid, name text, kind text, timestamp_type text, max_message_bytes integer,
    timestamp_before_max_ms bigint, timestamp_after_max_ms bigint
)
LANGUAGE sql IMMUTABLE AS $$
    SELECT * FROM jsonb_to_recordset(p_topics) AS t (topic_id uuid, name text, kind text,
        timestamp_type text, max_message_bytes integer, timestamp_before_max_ms bigint,
        timestamp_after_max_ms bigint)
$$;

-- Topics that have a B0, made if they are not here; of a limit that is not told Kafka's default, or
-- what is here: it is older than what is told.
CREATE FUNCTION rebuild_topics(p_topics jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_taken record;
BEGIN
    PERFORM assert_rebuilding();
    SELECT t.name, t.topic_id, n.topic_id AS told_id INTO v_taken
        FROM topics AS t JOIN told_topics(p_topics) AS n USING (name)
        WHERE t.status <> 'deleted' AND t.topic_id IS DISTINCT FROM n.topic_id LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL014',
            format('topic %s has the id %s here, and %s in the bucket', v_taken.name,
                coalesce(v_taken.topic_id::text, '(none yet)'), v_taken.told_id),
            'Ask Kafka which one is there, and bury the other: tideline topic forget.');
    END IF;
    UPDATE topics AS t SET status = 'active', tracked = true
        FROM told_topics(p_topics) AS n
        WHERE n.topic_id = t.topic_id AND t.status IN ('tracking', 'aborted');
    UPDATE topics AS t SET
            timestamp_type = coalesce(n.timestamp_type, t.timestamp_type),
            max_message_bytes = coalesce(n.max_message_bytes, t.max_message_bytes),
            timestamp_before_max_ms = coalesce(n.timestamp_before_max_ms, t.timestamp_before_max_ms),
            timestamp_after_max_ms = coalesce(n.timestamp_after_max_ms, t.timestamp_after_max_ms)
        FROM told_topics(p_topics) AS n WHERE n.topic_id = t.topic_id;
    INSERT INTO topics (name, topic_id, kind, status, timestamp_type, max_message_bytes,
            timestamp_before_max_ms, timestamp_after_max_ms)
        SELECT n.name, n.topic_id, n.kind, 'active', coalesce(n.timestamp_type, 'CreateTime'),
               coalesce(n.max_message_bytes, 1048588),
               coalesce(n.timestamp_before_max_ms, 9223372036854775807),
               coalesce(n.timestamp_after_max_ms, 3600000)
        FROM told_topics(p_topics) AS n ORDER BY n.name
        ON CONFLICT (topic_id) DO NOTHING;
END
$$;

-- Ids that are refused for ever.
CREATE FUNCTION rebuild_tombstones(p_topic_ids uuid[], p_names text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_rebuilding();
    SELECT delete_topic(id, 'rebuild', 'the bucket says that Kafka deleted it')
        FROM unnest(p_topic_ids) AS id;
    INSERT INTO topics (name, topic_id, kind, status, tracked, timestamp_type, max_message_bytes,
            deleted_at, deleted_by, deleted_why)
        SELECT n.name, n.id, 'migrated', 'deleted', false, 'CreateTime', 0, clock_timestamp(),
               'rebuild', 'the bucket says that Kafka deleted it'
        FROM unnest(p_topic_ids, p_names) AS n (id, name)
        ON CONFLICT (topic_id) DO NOTHING
$$;

-- {key, override_value, user_value} of a topic, and the keys that it was let go of; what is here is
-- older.
CREATE FUNCTION rebuild_overrides(p_topic_id uuid, p_overrides jsonb, p_let_go text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_rebuilding();
    DELETE FROM config_overrides WHERE topic_id = p_topic_id AND key = ANY (p_let_go);
    INSERT INTO config_overrides AS c (topic_id, key, override_value, user_value)
        SELECT p_topic_id, o.key, o.override_value, o.user_value
        FROM jsonb_to_recordset(p_overrides)
            AS o (key text, override_value text, user_value text)
        ON CONFLICT (topic_id, key) DO UPDATE SET
            override_value = excluded.override_value, user_value = excluded.user_value
$$;

-- A partition, made if it is not here, with B0 where it is unset. Its prefix is looked at again.
CREATE FUNCTION rebuild_log(
    p_topic_id uuid, p_partition integer, p_generation integer, p_boundary bigint,
    p_leader_epoch integer, p_seeds jsonb, p_prefix_log_start bigint,
    p_prefix_max_timestamp bigint, p_prefix_max_timestamp_offset bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    PERFORM assert_rebuilding();
    INSERT INTO logs (topic_id, partition, topic_name, migration_state, generation)
        SELECT topic_id, p_partition, name, 'MIGRATING', greatest(p_generation, unused_generation())
            FROM topics WHERE topic_id = p_topic_id
        ON CONFLICT (topic_id, partition) DO NOTHING;
    v_log := lock_log(p_topic_id, p_partition);
    IF p_boundary < 0 THEN
        RETURN;
    ELSIF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM assert_same_boundary(v_log, p_boundary);
        RETURN;
    END IF;
    IF p_seeds IS NOT NULL THEN
        PERFORM assert_seeds_below(v_log, p_seeds, p_boundary);
        PERFORM write_seeds(v_log, p_seeds);
    END IF;
    UPDATE logs SET
            diskless_log_start_offset = p_boundary, diskless_log_start_epoch = p_leader_epoch,
            suffix_start = p_boundary, high_watermark = p_boundary,
            log_start_offset = least(greatest(p_prefix_log_start, 0), p_boundary),
            tiered_log_start_offset = CASE WHEN p_boundary > 0
                THEN least(greatest(p_prefix_log_start, 0), p_boundary) ELSE -1 END,
            prefix_max_timestamp = p_prefix_max_timestamp,
            prefix_max_timestamp_offset = p_prefix_max_timestamp_offset,
            tiering_complete = (p_boundary = 0),
            tiering_reason = CASE WHEN p_boundary > 0 THEN 'rebuilt: not looked at since' END,
            migration_state = CASE WHEN p_boundary > 0 THEN 'HYBRID' ELSE 'DISKLESS_ONLY' END,
            quiesce = 'open', quiesce_deadline = NULL
        WHERE log_id = v_log.log_id;
END
$$;

-- Where the regions of a log begin; -1: not told. None moves back.
CREATE FUNCTION rebuild_starts(
    p_topic_id uuid, p_partition integer, p_suffix_start bigint, p_prefix_start bigint,
    p_accepted_gap_from bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_rebuilding();
    IF v_log.diskless_log_start_offset < 0 THEN
        RETURN;
    END IF;
    IF p_accepted_gap_from >= 0 AND v_log.accepted_gap_from < 0 THEN
        UPDATE logs SET accepted_gap_from = p_accepted_gap_from,
                accepted_gap_epoch = diskless_log_start_epoch
            WHERE log_id = v_log.log_id;
    END IF;
    IF p_suffix_start > v_log.suffix_start THEN
        UPDATE logs SET suffix_start = p_suffix_start,
                high_watermark = greatest(high_watermark, p_suffix_start),
                log_start_offset = greatest(log_start_offset, p_suffix_start)
            WHERE log_id = v_log.log_id;
    END IF;
    IF p_prefix_start >= 0 THEN
        PERFORM advance_prefix_start(p_topic_id, p_partition, p_prefix_start);
    END IF;
    IF v_log.tiered_high_offset >= v_log.diskless_log_start_offset THEN
        PERFORM settle_tiered_region(v_log.log_id);
    END IF;
END
$$;

-- A segment that was finished, at the frontier: what is here of its range is merged. Repeats do
-- nothing.
CREATE FUNCTION rebuild_segment(
    p_topic_id uuid, p_partition integer, p_prefix text, p_segment_id uuid,
    p_base_offset bigint, p_last_offset bigint, p_size_bytes bigint, p_max_timestamp bigint,
    p_record_count bigint, p_batch_count integer, p_offset_index_bytes integer,
    p_time_index_bytes integer, p_producers jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_taken record;
BEGIN
    PERFORM assert_rebuilding();
    IF p_last_offset < merge_frontier(v_log) THEN
        RETURN;
    END IF;
    INSERT INTO merged_segments AS m (segment_id, log_id, token, state, object_key_stem,
            base_offset, last_offset, size_bytes, max_timestamp, leader_epoch, record_count,
            batch_count, offset_index_bytes, time_index_bytes, finished_at)
        VALUES (p_segment_id, v_log.log_id, nextval('tiering_tokens'), 'COPY_SEGMENT_FINISHED',
            segment_key_stem(v_log, p_prefix, p_segment_id, p_base_offset), p_base_offset,
            p_last_offset, p_size_bytes, p_max_timestamp, v_log.diskless_log_start_epoch,
            p_record_count, p_batch_count, p_offset_index_bytes, p_time_index_bytes,
            clock_timestamp())
        ON CONFLICT (segment_id) DO UPDATE SET state = excluded.state,
            last_offset = excluded.last_offset, size_bytes = excluded.size_bytes,
            max_timestamp = excluded.max_timestamp, record_count = excluded.record_count,
            batch_count = excluded.batch_count, reason = NULL,
            offset_index_bytes = excluded.offset_index_bytes,
            time_index_bytes = excluded.time_index_bytes, finished_at = excluded.finished_at,
            seen_whole_at = NULL;
    DELETE FROM marked_objects WHERE segment_id = p_segment_id;
    v_taken := take_merged_batches(v_log.log_id, p_base_offset, p_last_offset);
    UPDATE logs SET max_timestamp = greatest(max_timestamp, p_max_timestamp),
            high_watermark = greatest(high_watermark, p_last_offset + 1)
        WHERE log_id = v_log.log_id;
    PERFORM move_frontier(v_log, p_last_offset, p_producers);
    UPDATE merge_claims SET expires_at = NULL, segment_id = NULL WHERE log_id = v_log.log_id;
    DELETE FROM split_files WHERE split_id = ANY (merged_splits(v_taken.split_ids));
END
$$;

-- Objects that were committed: an array of {object_key, gateway_id, incarnation, size, sequence,
-- withdrawn, errors, base_offsets, append_times}; of one that only tells, no sequence and empty arrays.
-- A key that is known as committed stays as it is. What a retry of the commit would be told besides is
-- not known.
CREATE FUNCTION rebuild_files(p_files jsonb) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_rebuilding();
    INSERT INTO wal_files AS w (object_key, gateway_id, incarnation, status, committed_at, size,
            outcome_errors, outcome_base_offsets, outcome_append_times, outcome_log_starts,
            outcome_high_watermarks, stream_sequence, withdrawn)
        SELECT f.object_key, f.gateway_id, f.incarnation, 'committed', clock_timestamp(), f.size,
               f.errors, f.base_offsets, f.append_times,
               array_fill(-1::bigint, ARRAY[cardinality(f.errors)]),
               array_fill(-1::bigint, ARRAY[cardinality(f.errors)]), f.sequence, f.withdrawn
        FROM jsonb_to_recordset(p_files) AS f (object_key text, gateway_id integer,
            incarnation uuid, size bigint, sequence bigint, withdrawn integer[], errors text[],
            base_offsets bigint[], append_times bigint[])
        ON CONFLICT (object_key) DO UPDATE SET status = excluded.status,
            committed_at = excluded.committed_at, size = excluded.size,
            outcome_errors = excluded.outcome_errors,
            outcome_base_offsets = excluded.outcome_base_offsets,
            outcome_append_times = excluded.outcome_append_times,
            outcome_log_starts = excluded.outcome_log_starts,
            outcome_high_watermarks = excluded.outcome_high_watermarks,
            stream_sequence = excluded.stream_sequence, withdrawn = excluded.withdrawn
            WHERE w.status = 'registered'
$$;

-- Which object tells of which; both are there by now.
CREATE FUNCTION rebuild_carriers(p_keys text[], p_carriers text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_rebuilding();
    UPDATE wal_files AS f SET carried_by = c.file_id
        FROM unnest(p_keys, p_carriers) AS told (key, carrier)
        JOIN wal_files AS c ON c.object_key = told.carrier AND c.status = 'committed'
        WHERE f.object_key = told.key AND f.status = 'committed' AND f.carried_by IS NULL
$$;

-- Rows of one log, in parallel arrays; their objects are there already. What is here stays.
CREATE FUNCTION rebuild_batches(
    p_topic_id uuid, p_partition integer, p_base_offsets bigint[], p_last_offsets bigint[],
    p_object_keys text[], p_byte_offsets bigint[], p_byte_sizes integer[],
    p_log_append_time boolean[], p_append_times bigint[], p_max_timestamps bigint[],
    p_running_max bigint[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_missing text;
BEGIN
    PERFORM assert_rebuilding();
    SELECT k INTO v_missing FROM unnest(p_object_keys) AS k
        WHERE NOT EXISTS (SELECT FROM wal_files AS f
            WHERE f.object_key = k AND f.status = 'committed') LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL017', format('object key %s is not committed here', v_missing),
            'It is being collected: restore a Postgres from before, or leave its log out.');
    END IF;
    INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
            log_append_time, append_time, max_timestamp, running_max_timestamp)
        SELECT v_log.log_id, b.last_offset, b.base_offset, f.file_id, b.byte_offset, b.byte_size,
               b.log_append_time, b.append_time, b.max_timestamp, b.running_max
        FROM unnest(p_base_offsets, p_last_offsets, p_object_keys, p_byte_offsets, p_byte_sizes,
                p_log_append_time, p_append_times, p_max_timestamps, p_running_max)
            AS b (base_offset, last_offset, object_key, byte_offset, byte_size, log_append_time,
                append_time, max_timestamp, running_max)
        JOIN wal_files AS f USING (object_key)
        ON CONFLICT (log_id, last_offset) DO NOTHING;
END
$$;

-- Ends the transaction of a log: its high watermark, and the producers that are others than before,
-- an array of {producer_id, producer_epoch, base_sequences, last_sequences, base_offsets,
-- append_times, updated_at, unlocated_sequence (-1: none)}. Refused when two batches hold one offset.
CREATE FUNCTION rebuild_end_of_log(
    p_topic_id uuid, p_partition integer, p_high_watermark bigint, p_max_timestamp bigint,
    p_producers jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_twice record;
BEGIN
    PERFORM assert_rebuilding();
    SELECT * INTO v_twice FROM (
        SELECT base_offset, lag(last_offset) OVER (ORDER BY last_offset) AS before
        FROM batches WHERE log_id = v_log.log_id
    ) AS b WHERE b.base_offset <= b.before LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL026',
            format('two batches of %s hold offset %s', log_label(v_log), v_twice.base_offset),
            'Somebody wrote at the same time: stop them, then look at the report again.');
    END IF;
    UPDATE logs SET high_watermark = greatest(high_watermark, p_high_watermark),
            max_timestamp = greatest(max_timestamp, p_max_timestamp)
        WHERE log_id = v_log.log_id;
    INSERT INTO producer_state AS p (log_id, producer_id, producer_epoch, base_sequences,
            last_sequences, base_offsets, append_times, unlocated_sequence, updated_at)
        SELECT v_log.log_id, n.producer_id, n.producer_epoch, n.base_sequences, n.last_sequences,
               n.base_offsets, n.append_times, nullif(n.unlocated_sequence, -1),
               CASE WHEN n.updated_at < 0 THEN clock_timestamp()
                   ELSE to_timestamp(n.updated_at / 1000.0) END
        FROM jsonb_to_recordset(p_producers) AS n (producer_id bigint, producer_epoch integer,
            base_sequences integer[], last_sequences integer[], base_offsets bigint[],
            append_times bigint[], updated_at bigint, unlocated_sequence integer)
        ON CONFLICT (log_id, producer_id) DO UPDATE SET producer_epoch = excluded.producer_epoch,
            base_sequences = excluded.base_sequences, last_sequences = excluded.last_sequences,
            base_offsets = excluded.base_offsets, append_times = excluded.append_times,
            unlocated_sequence = excluded.unlocated_sequence, updated_at = excluded.updated_at;
END
$$;

-- What is here, for the report: every partition of a topic that is not deleted.
CREATE FUNCTION rebuild_known_logs()
RETURNS TABLE (
    topic_id uuid, partition integer, topic text, boundary bigint, suffix_start bigint,
    frontier bigint, high_watermark bigint, max_timestamp bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.topic_id, l.partition, l.topic_name, l.diskless_log_start_offset, l.suffix_start,
           CASE WHEN l.diskless_log_start_offset < 0 THEN -1 ELSE merge_frontier(l) END,
           l.high_watermark, l.max_timestamp
    FROM logs AS l WHERE l.deleted_at IS NULL
    ORDER BY l.topic_name, l.partition
$$;

-- The batches of a log from past p_after on.
CREATE FUNCTION rebuild_known_batches(
    p_topic_id uuid, p_partition integer, p_after bigint, p_limit integer
) RETURNS TABLE (
    base_offset bigint, last_offset bigint, object_key text, byte_offset bigint,
    byte_size integer, running_max_timestamp bigint, append_time bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT b.base_offset, b.last_offset, f.object_key, b.byte_offset, b.byte_size,
           b.running_max_timestamp, b.append_time
    FROM logs AS l JOIN batches AS b USING (log_id) JOIN wal_files AS f USING (file_id)
    WHERE l.topic_id = p_topic_id AND l.partition = p_partition AND b.last_offset > p_after
    ORDER BY b.last_offset LIMIT p_limit
$$;

CREATE FUNCTION rebuild_known_producers(p_topic_id uuid, p_partition integer)
RETURNS TABLE (
    producer_id bigint, producer_epoch integer, base_sequences integer[],
    last_sequences integer[], base_offsets bigint[], append_times bigint[], updated_at bigint,
    unlocated_sequence integer
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT p.producer_id, p.producer_epoch, p.base_sequences, p.last_sequences, p.base_offsets,
           p.append_times, epoch_ms(p.updated_at), coalesce(p.unlocated_sequence, -1)
    FROM logs AS l JOIN producer_state AS p USING (log_id)
    WHERE l.topic_id = p_topic_id AND l.partition = p_partition
$$;

-- Of these keys those that are committed here, with their batches; one without a batch has one row
-- with byte_offset -1.
CREATE FUNCTION rebuild_known_objects(p_keys text[])
RETURNS TABLE (object_key text, byte_offset bigint, base_offset bigint, append_time bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT f.object_key, coalesce(b.byte_offset, -1), coalesce(b.base_offset, -1),
           coalesce(b.append_time, -1)
    FROM wal_files AS f LEFT JOIN batches AS b USING (file_id)
    WHERE f.object_key = ANY (p_keys) AND f.status <> 'registered'
$$;
