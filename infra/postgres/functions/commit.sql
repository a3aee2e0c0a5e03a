-- What gateways write: keys of WAL objects, batches with their offsets, producer state.

CREATE FUNCTION register_object_keys(p_gateway_id integer, p_incarnation uuid, p_keys text[])
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_taken text;
BEGIN
    PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    -- What is committed without batches is collected: nobody registers a key of another kind.
    SELECT k INTO v_taken FROM unnest(p_keys) AS k
        WHERE NOT acts_as_owner() AND coalesce(k, '') !~ '(^|/)wal/[^/]+$' LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL017', format('object key %L is none of a WAL object', v_taken),
            'Register keys under wal/ only.');
    END IF;
    INSERT INTO wal_files (object_key, gateway_id, incarnation)
        SELECT k, p_gateway_id, p_incarnation FROM unnest(p_keys) AS k
        ON CONFLICT (object_key) DO NOTHING;
    SELECT f.object_key INTO v_taken FROM wal_files AS f
        WHERE f.object_key = ANY (p_keys)
            AND (f.incarnation <> p_incarnation OR f.status <> 'registered')
        LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL017', format('object key %s is taken', v_taken),
            'Register a random key that was never used.');
    END IF;
END
$$;

-- Position of the remembered batch with exactly these sequences and epoch, or NULL.
CREATE FUNCTION duplicate_position(
    p_state producer_state, p_epoch integer, p_base_sequence integer, p_last_sequence integer
) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_state.producer_epoch = p_epoch THEN
        FOR i IN 1 .. cardinality(p_state.base_sequences) LOOP
            IF p_state.base_sequences[i] = p_base_sequence
                AND p_state.last_sequences[i] = p_last_sequence THEN
                RETURN i;
            END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

-- Whether a sequence is p_last or one of the half cycle before it: 0 follows 2147483647.
CREATE FUNCTION sequence_is_up_to(p_sequence integer, p_last integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT mod(p_last - p_sequence::bigint + 2147483648, 2147483648) <= 1073741824
$$;

-- tideline/domain/producer_state.py in SQL: NONE, DUPLICATE, DUPLICATE_SEQUENCE_NUMBER,
-- OUT_OF_ORDER_SEQUENCE or INVALID_PRODUCER_EPOCH. A state with a null producer_id is no state.
CREATE FUNCTION judge_batch(
    p_state producer_state, p_epoch integer, p_base_sequence integer, p_last_sequence integer
) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_last integer;
BEGIN
    IF p_state.producer_id IS NULL THEN
        RETURN 'NONE';
    ELSIF p_epoch < p_state.producer_epoch THEN
        RETURN 'INVALID_PRODUCER_EPOCH';
    ELSIF p_epoch > p_state.producer_epoch THEN
        RETURN CASE WHEN p_base_sequence = 0 THEN 'NONE' ELSE 'OUT_OF_ORDER_SEQUENCE' END;
    ELSIF duplicate_position(p_state, p_epoch, p_base_sequence, p_last_sequence) IS NOT NULL THEN
        RETURN 'DUPLICATE';
    ELSIF sequence_is_up_to(p_last_sequence, p_state.unlocated_sequence) THEN
        RETURN 'DUPLICATE_SEQUENCE_NUMBER';
    END IF;
    v_last := coalesce(p_state.last_sequences[cardinality(p_state.last_sequences)],
        p_state.unlocated_sequence);
    IF p_base_sequence = (CASE WHEN v_last = 2147483647 THEN 0 ELSE v_last + 1 END) THEN
        RETURN 'NONE';
    END IF;
    RETURN 'OUT_OF_ORDER_SEQUENCE';
END
$$;

-- Each batch of a file, by its place, with the log that it goes to and the reason why nothing may
-- be appended to it, or NONE. The logs are locked in one fixed order, so that two gateways never
-- deadlock; the lock decides between a commit and a boundary that is being set or reset.
CREATE FUNCTION lock_logs_for_commit(p_topic_ids uuid[], p_partitions integer[])
RETURNS TABLE (
    i bigint, log_id bigint, next_offset bigint, max_timestamp bigint, log_start_offset bigint,
    refusal text
)
LANGUAGE sql AS $$
    WITH locked AS MATERIALIZED (
        SELECT * FROM logs AS l
            WHERE (l.topic_id, l.partition) IN (SELECT * FROM unnest(p_topic_ids, p_partitions))
            ORDER BY l.log_id
            FOR NO KEY UPDATE OF l
    )
    SELECT b.i, l.log_id, greatest(l.high_watermark, l.diskless_log_start_offset),
           l.max_timestamp, l.log_start_offset,
           CASE
               WHEN l.log_id IS NULL THEN 'UNKNOWN_LOG'
               WHEN l.deleted_at IS NOT NULL THEN 'TOPIC_DELETED'
               WHEN l.diskless_log_start_offset < 0 THEN 'BOUNDARY_UNSET'
               ELSE 'NONE'
           END
    FROM unnest(p_topic_ids, p_partitions) WITH ORDINALITY AS b (topic_id, partition, i)
    LEFT JOIN locked AS l USING (topic_id, partition)
    ORDER BY l.log_id, b.i
$$;

-- A batch that has fewer records than one would set the high watermark back, over what was acknowledged.
CREATE FUNCTION assert_batches(
    p_byte_offsets bigint[], p_byte_sizes integer[], p_record_counts integer[],
    p_producer_ids bigint[], p_producer_epochs integer[], p_base_sequences integer[],
    p_last_sequences integer[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_place bigint;
BEGIN
    SELECT i INTO v_place FROM unnest(p_byte_offsets, p_byte_sizes, p_record_counts, p_producer_ids,
            p_producer_epochs, p_base_sequences, p_last_sequences) WITH ORDINALITY
            AS b (byte_offset, byte_size, records, producer_id, epoch, base_sequence, last_sequence, i)
        WHERE coalesce(least(byte_offset + 1, byte_size, records), 0) < 1
            OR num_nulls(byte_offset, byte_size, records, producer_id, epoch, base_sequence,
                last_sequence) > 0
            OR (producer_id >= 0 AND least(epoch, base_sequence, last_sequence) < 0)
        LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL018', format('batch %s of the object is none', v_place - 1),
            'A batch has a place, a size and at least one record, and of an idempotent producer an '
            'epoch and sequences.');
    END IF;
END
$$;

-- The row of a registered key, locked until the end of the transaction: a retry of a commit that
-- still runs waits here and then finds its outcome.
CREATE FUNCTION claim_file(
    p_gateway_id integer, p_object_key text, p_size bigint, p_batches integer
) RETURNS wal_files
LANGUAGE plpgsql AS $$
DECLARE
    v_file wal_files;
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    SELECT * INTO v_file FROM wal_files WHERE object_key = p_object_key FOR UPDATE;
    IF NOT FOUND OR v_file.status = 'deleting' THEN
        PERFORM refuse('TL017',
            format('object key %s is %s', p_object_key,
                CASE WHEN v_file.file_id IS NULL THEN 'not registered' ELSE 'being deleted' END),
            'Upload the batches again under a newly registered key.');
    ELSIF v_file.gateway_id <> p_gateway_id THEN
        PERFORM refuse('TL017',
            format('object key %s belongs to gateway %s', p_object_key, v_file.gateway_id),
            'A gateway commits only keys that it registered itself.');
    ELSIF v_file.status = 'committed'
        AND (v_file.size <> p_size OR cardinality(v_file.outcome_errors) <> p_batches) THEN
        PERFORM refuse('TL017',
            format('object key %s was committed with %s bytes and %s batches, not %s and %s',
                p_object_key, v_file.size, cardinality(v_file.outcome_errors), p_size, p_batches),
            'Retry a commit with exactly its first input.');
    END IF;
    RETURN v_file;
END
$$;

-- Judges a batch by its producer's state, and remembers it if it is accepted: the last five batches
-- of one epoch are. base_offset and append_time: those that it gets then; of a duplicate those of
-- its original, else -1.
CREATE FUNCTION admit_batch(
    p_log_id bigint, p_producer_id bigint, p_epoch integer, p_base_sequence integer,
    p_last_sequence integer,
    INOUT base_offset bigint, INOUT append_time bigint, OUT error text
)
LANGUAGE plpgsql AS $$
DECLARE
    v_state producer_state;
    v_kept integer;
    v_original integer;
BEGIN
    SELECT * INTO v_state FROM producer_state AS p
        WHERE p.log_id = p_log_id AND p.producer_id = p_producer_id;
    error := judge_batch(v_state, p_epoch, p_base_sequence, p_last_sequence);
    IF error = 'NONE' THEN
        -- From where on the known batches stay: four of the same epoch, none of another.
        v_kept := CASE WHEN v_state.producer_epoch = p_epoch
            THEN cardinality(v_state.base_sequences) - 3 ELSE 6 END;
        INSERT INTO producer_state
            (log_id, producer_id, producer_epoch, base_sequences, last_sequences, base_offsets,
             append_times, unlocated_sequence)
            VALUES (p_log_id, p_producer_id, p_epoch,
                v_state.base_sequences[v_kept :] || p_base_sequence,
                v_state.last_sequences[v_kept :] || p_last_sequence,
                v_state.base_offsets[v_kept :] || base_offset,
                v_state.append_times[v_kept :] || append_time,
                -- With five known ones Kafka has forgotten what came before, too.
                CASE WHEN v_state.producer_epoch = p_epoch
                    AND cardinality(v_state.base_sequences) < 4
                    THEN v_state.unlocated_sequence END)
            ON CONFLICT (log_id, producer_id) DO UPDATE SET
                producer_epoch = excluded.producer_epoch,
                base_sequences = excluded.base_sequences,
                last_sequences = excluded.last_sequences,
                base_offsets = excluded.base_offsets, append_times = excluded.append_times,
                unlocated_sequence = excluded.unlocated_sequence,
                updated_at = excluded.updated_at;
    ELSE
        v_original := CASE WHEN error = 'DUPLICATE' THEN
            duplicate_position(v_state, p_epoch, p_base_sequence, p_last_sequence) END;
        base_offset := coalesce(v_state.base_offsets[v_original], -1);
        append_time := coalesce(v_state.append_times[v_original], -1);
    END IF;
END
$$;

-- Judges every batch, and assigns offsets to the accepted ones, log by log in the order of the
-- file. One element per batch: log_ids and running_max, the largest timestamp of the log so far,
-- are -1 for a batch that is not accepted.
CREATE FUNCTION assign_offsets(
    p_topic_ids uuid[], p_partitions integer[], p_record_counts integer[],
    p_max_timestamps bigint[], p_log_append_time boolean[], p_producer_ids bigint[],
    p_producer_epochs integer[], p_base_sequences integer[], p_last_sequences integer[],
    OUT errors text[], OUT log_ids bigint[], OUT base_offsets bigint[], OUT append_times bigint[],
    OUT running_max bigint[], OUT log_starts bigint[], OUT high_watermarks bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    v_none bigint[] := array_fill(-1::bigint, ARRAY[cardinality(p_topic_ids)]);
    v_now bigint;
    v_batch record;
    v_admitted record;
    v_log_id bigint;
    v_next bigint;
    v_max_timestamp bigint;
BEGIN
    PERFORM assert_settled();
    errors := array_fill(NULL::text, ARRAY[cardinality(p_topic_ids)]);
    SELECT v_none, v_none, v_none, v_none, v_none, v_none
        INTO log_ids, base_offsets, append_times, running_max, log_starts, high_watermarks;
    FOR v_batch IN SELECT * FROM lock_logs_for_commit(p_topic_ids, p_partitions) LOOP
        -- The clock is read when every lock is held: append times follow offsets.
        v_now := coalesce(v_now, epoch_ms(clock_timestamp()));
        errors[v_batch.i] := v_batch.refusal;
        CONTINUE WHEN v_batch.refusal <> 'NONE';
        IF v_log_id IS DISTINCT FROM v_batch.log_id THEN
            v_log_id := v_batch.log_id;
            v_next := v_batch.next_offset;
            v_max_timestamp := v_batch.max_timestamp;
        END IF;
        base_offsets[v_batch.i] := v_next;
        append_times[v_batch.i] := v_now;
        IF p_producer_ids[v_batch.i] >= 0 THEN
            v_admitted := admit_batch(v_log_id, p_producer_ids[v_batch.i],
                p_producer_epochs[v_batch.i], p_base_sequences[v_batch.i],
                p_last_sequences[v_batch.i], v_next, v_now);
            errors[v_batch.i] := v_admitted.error;
            base_offsets[v_batch.i] := v_admitted.base_offset;
            append_times[v_batch.i] := v_admitted.append_time;
        END IF;
        IF errors[v_batch.i] = 'NONE' THEN
            log_ids[v_batch.i] := v_log_id;
            v_max_timestamp := greatest(v_max_timestamp, CASE WHEN p_log_append_time[v_batch.i]
                THEN v_now ELSE p_max_timestamps[v_batch.i] END);
            running_max[v_batch.i] := v_max_timestamp;
            v_next := v_next + p_record_counts[v_batch.i];
        END IF;
        log_starts[v_batch.i] := v_batch.log_start_offset;
        high_watermarks[v_batch.i] := v_next;
    END LOOP;
END
$$;

-- The object of a file without batches tells the outcomes of others, where no object does: its gateway's own, and those
-- that anybody tells (untold_commits).
CREATE FUNCTION carry_outcomes(p_file wal_files, p_tells text[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE wal_files AS t SET carried_by = p_file.file_id
        WHERE cardinality(p_file.outcome_errors) = 0
            AND t.object_key = ANY (p_tells) AND t.status = 'committed' AND t.carried_by IS NULL
            AND (t.gateway_id = p_file.gateway_id
                OR t.committed_at < clock_timestamp() - interval '60 seconds')
$$;

-- Assigns offsets to every batch of one WAL object, in one transaction (seed 000). Answers one row
-- per batch, in their order. Idempotent by object key. Sends no NOTIFY: that would serialise
-- commits. p_stream_sequence, p_withdrawn, p_tells: place in the commit stream, places in the object
-- of the batches that are not committed with it, and the keys whose outcomes the object carries. Only
-- a file without batches carries, and has no place: else each carrier would need one of its own, and
-- what is read longest would keep all that its gateway wrote later.
CREATE FUNCTION commit_file(
    p_gateway_id integer, p_incarnation uuid, p_object_key text, p_size bigint,
    p_topic_ids uuid[], p_partitions integer[], p_byte_offsets bigint[], p_byte_sizes integer[],
    p_record_counts integer[], p_max_timestamps bigint[], p_log_append_time boolean[],
    p_producer_ids bigint[], p_producer_epochs integer[],
    p_base_sequences integer[], p_last_sequences integer[],
    p_stream_sequence bigint DEFAULT NULL, p_withdrawn integer[] DEFAULT NULL,
    p_tells text[] DEFAULT '{}'
) RETURNS TABLE (
    error text, base_offset bigint, append_time bigint, log_start bigint, high_watermark bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_file wal_files := claim_file(p_gateway_id, p_object_key, p_size, cardinality(p_topic_ids));
    v_given record;
BEGIN
    IF v_file.status <> 'committed' THEN
        PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
        PERFORM assert_batches(p_byte_offsets, p_byte_sizes, p_record_counts, p_producer_ids,
            p_producer_epochs, p_base_sequences, p_last_sequences);
        v_given := assign_offsets(p_topic_ids, p_partitions, p_record_counts, p_max_timestamps,
            p_log_append_time, p_producer_ids, p_producer_epochs, p_base_sequences,
            p_last_sequences);
        INSERT INTO batches (log_id, last_offset, base_offset, file_id, byte_offset, byte_size,
                log_append_time, append_time, max_timestamp, running_max_timestamp)
            SELECT b.log_id, b.base_offset + b.record_count - 1, b.base_offset, v_file.file_id,
                   b.byte_offset, b.byte_size, b.log_append_time, b.append_time,
                   CASE WHEN b.log_append_time THEN b.append_time ELSE b.max_timestamp END,
                   b.running_max
            FROM unnest(v_given.log_ids, v_given.base_offsets, v_given.append_times,
                    v_given.running_max, p_record_counts, p_byte_offsets, p_byte_sizes,
                    p_log_append_time, p_max_timestamps)
                AS b (log_id, base_offset, append_time, running_max, record_count, byte_offset,
                    byte_size, log_append_time, max_timestamp)
            WHERE b.log_id >= 0;
        UPDATE logs AS l SET high_watermark = t.next_offset, max_timestamp = t.max_timestamp
            FROM (SELECT log_id, max(next_offset) AS next_offset, max(running_max) AS max_timestamp
                FROM unnest(v_given.log_ids, v_given.high_watermarks, v_given.running_max)
                    AS b (log_id, next_offset, running_max)
                WHERE log_id >= 0 GROUP BY log_id) AS t
            WHERE l.log_id = t.log_id;
        UPDATE wal_files SET status = 'committed', committed_at = clock_timestamp(), size = p_size,
                outcome_errors = v_given.errors, outcome_base_offsets = v_given.base_offsets,
                outcome_append_times = v_given.append_times,
                outcome_log_starts = v_given.log_starts,
                outcome_high_watermarks = v_given.high_watermarks,
                stream_sequence = CASE WHEN cardinality(p_topic_ids) > 0 THEN p_stream_sequence END,
                withdrawn = p_withdrawn
            WHERE file_id = v_file.file_id RETURNING * INTO v_file;
        PERFORM carry_outcomes(v_file, p_tells);
        IF NOT EXISTS (SELECT FROM unnest(v_given.log_ids) AS id WHERE id >= 0) THEN
            INSERT INTO lessened_files (file_id) VALUES (v_file.file_id);
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM unnest(v_file.outcome_errors, v_file.outcome_base_offsets,
        v_file.outcome_append_times, v_file.outcome_log_starts, v_file.outcome_high_watermarks);
END
$$;

-- Commits of ended incarnations of a gateway whose outcomes no object tells yet, in the order of their
-- streams: what the process had no time for. Of other gateways those that nobody has told of for a
-- minute (ANYBODY_TELLS_AFTER_MS): theirs may never come back, and what is committed may be told by
-- anybody.
CREATE FUNCTION untold_commits(p_gateway_id integer, p_incarnation uuid, p_limit integer)
RETURNS TABLE (
    incarnation uuid, sequence bigint, object_key text, withdrawn integer[],
    errors text[], base_offsets bigint[], append_times bigint[]
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    RETURN QUERY
    SELECT f.incarnation, f.stream_sequence, f.object_key, coalesce(f.withdrawn, '{}'),
           f.outcome_errors, f.outcome_base_offsets, f.outcome_append_times
        FROM wal_files AS f
        WHERE f.incarnation <> p_incarnation
            AND (f.gateway_id = p_gateway_id
                OR f.committed_at < clock_timestamp() - interval '60 seconds')
            AND f.status = 'committed' AND f.stream_sequence IS NOT NULL AND f.carried_by IS NULL
        ORDER BY f.incarnation, f.stream_sequence LIMIT p_limit;
END
$$;

-- Whether the clock may be trusted to say who was idle. Where it went on, since the last run, by more
-- than half the time that one may be idle, it may have been set forward: a retry of a minute ago
-- would look like one of yesterday. Then nobody is forgotten for that long.
CREATE FUNCTION note_producer_expiry(p_idle interval) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_known producer_expiry;
BEGIN
    -- How the clock went before the first run nobody knows either.
    INSERT INTO producer_expiry (last_run, not_before) VALUES (v_now, v_now + p_idle)
        ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT v_known FROM producer_expiry FOR UPDATE;
    IF v_now - v_known.last_run > p_idle / 2 THEN
        v_known.not_before := v_now + p_idle;
    END IF;
    UPDATE producer_expiry SET last_run = v_now, not_before = v_known.not_before;
    RETURN v_now >= v_known.not_before;
END
$$;

-- A producer that was idle for producer.id.expiration.ms is forgotten and then treated as one
-- without state (schedule 21). Kafka allows a millisecond, by which a step of the clock cannot be told
-- from time that passed: nobody is forgotten within four hours. Called by a periodic job; at most
-- p_limit rows at a time.
CREATE FUNCTION expire_producers(p_idle_ms bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_idle interval := greatest(p_idle_ms, 14400000) * interval '1 millisecond';
    v_before timestamptz := clock_timestamp() - v_idle;
    v_expired integer;
BEGIN
    IF NOT note_producer_expiry(v_idle) THEN
        RETURN 0;
    END IF;
    -- By where they lie, locked: where statistics say that there is no producer, a join by their keys
    -- reads all of them for each.
    DELETE FROM producer_state WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM producer_state AS p
            WHERE p.updated_hour <= floor(extract(epoch FROM v_before) / 3600)::integer
                AND p.updated_at <= v_before
            ORDER BY p.updated_hour LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_expired = ROW_COUNT;
    RETURN v_expired;
END
$$;
