-- B0: the point of no return (seed 000, "Choosing and persisting the boundary"). One row lock
-- decides between a boundary, an abort, a void quiesce and a newer generation.

CREATE FUNCTION get_diskless_log_start_offset(p_topic_id uuid, p_partition integer)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    RETURN v_log.diskless_log_start_offset;
END
$$;

CREATE FUNCTION assert_epoch(p_log logs, p_leader_epoch integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_leader_epoch, -1) < greatest(p_log.diskless_log_start_epoch, 0) THEN
        PERFORM refuse('TL004',
            format('leader epoch %s of %s is stale: B0 was set, or reset, at epoch %s', p_leader_epoch,
                log_label(p_log), p_log.diskless_log_start_epoch),
            'Observe the partition at its current leader.');
    END IF;
END
$$;

-- B0 is set: the same value again succeeds and changes nothing, another one is rejected.
CREATE FUNCTION assert_same_boundary(p_log logs, p_boundary bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_boundary <> p_log.diskless_log_start_offset THEN
        PERFORM refuse('TL005',
            format('B0 of %s is %s (epoch %s), it cannot become %s', log_label(p_log),
                p_log.diskless_log_start_offset, p_log.diskless_log_start_epoch, p_boundary),
            'Read B0 and go on with it; it changes only after a reset.');
    END IF;
END
$$;

CREATE FUNCTION assert_same_seeds(p_log logs, p_seeds jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_log.seeds_digest IS DISTINCT FROM md5(p_seeds::text) THEN
        PERFORM refuse('TL011',
            format('B0 of %s is set (%s) with other producer seeds', log_label(p_log),
                p_log.diskless_log_start_offset),
            'Read B0 and go on with it: seeds cannot change after it.');
    END IF;
END
$$;

-- Only batches that lie below B0 may be seeded: a late append at or past it is never
-- acknowledged, and its sequence would turn the client's retry into a duplicate (schedule 5).
CREATE FUNCTION assert_seeds_below(p_log logs, p_seeds jsonb, p_boundary bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_seed record;
BEGIN
    SELECT *, CASE
            WHEN producer_id < 0 THEN 'has no producer id'
            WHEN producer_epoch < 0 THEN 'has no producer epoch'
            WHEN base_offset < 0 AND (base_offset, last_offset) <> (-1, -1)
                THEN 'begins below offset 0'
            WHEN base_offset > last_offset THEN 'begins after its end'
            WHEN last_offset >= p_boundary THEN format('is not below B0 %s', p_boundary)
        END AS why
        INTO v_seed FROM jsonb_to_recordset(p_seeds)
            AS s (producer_id bigint, producer_epoch integer, base_offset bigint,
                last_offset bigint)
        ORDER BY why LIMIT 1;
    IF v_seed.why IS NOT NULL THEN
        PERFORM refuse('TL012',
            format('the seed of producer %s (epoch %s, offsets %s to %s) of %s %s',
                v_seed.producer_id, v_seed.producer_epoch, v_seed.base_offset,
                v_seed.last_offset, log_label(p_log), v_seed.why),
            'Seed only batches whose last offset is below B0.');
    END IF;
END
$$;

-- The last five batches of each producer's newest epoch, as commits go on from them. A seed with
-- offsets -1 tells up to which sequence it appended more, whose offsets are not known.
CREATE FUNCTION write_producer_state(p_log_id bigint, p_seeds jsonb) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM producer_state WHERE log_id = p_log_id;
    INSERT INTO producer_state (log_id, producer_id, producer_epoch, base_sequences,
            last_sequences, base_offsets, append_times, unlocated_sequence)
        SELECT p_log_id, producer_id, producer_epoch,
               coalesce(array_agg(base_sequence ORDER BY base_offset)
                   FILTER (WHERE base_offset >= 0), '{}'),
               coalesce(array_agg(last_sequence ORDER BY base_offset)
                   FILTER (WHERE base_offset >= 0), '{}'),
               coalesce(array_agg(base_offset ORDER BY base_offset)
                   FILTER (WHERE base_offset >= 0), '{}'),
               coalesce(array_agg("timestamp" ORDER BY base_offset)
                   FILTER (WHERE base_offset >= 0), '{}'),
               max(last_sequence) FILTER (WHERE base_offset < 0)
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
$$;

-- The newest batch of each producer, kept for the snapshot of the first merged segment:
-- producer_state moves on with the first commit.
CREATE FUNCTION write_first_snapshot(p_log_id bigint, p_seeds jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO producer_snapshots (log_id, seeds_digest, entries)
        SELECT p_log_id, md5(p_seeds::text),
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
            end_offset = NULL, entries = excluded.entries
$$;

-- Seeds are a jsonb array of {producer_id, producer_epoch, base_sequence, last_sequence,
-- base_offset, last_offset, timestamp}, oldest first per producer, one without offsets before them.
CREATE FUNCTION write_seeds(p_log logs, p_seeds jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM write_producer_state(p_log.log_id, p_seeds);
    PERFORM write_first_snapshot(p_log.log_id, p_seeds);
    UPDATE logs SET seeds_digest = md5(p_seeds::text),
            seeds_last_offset = (SELECT coalesce(max(last_offset), -1)
                FROM jsonb_to_recordset(p_seeds) AS s (last_offset bigint))
        WHERE log_id = p_log.log_id;
END
$$;

CREATE FUNCTION write_boundary(p_log logs, p_boundary bigint, p_leader_epoch integer,
    p_prefix_log_start bigint)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_acknowledged bigint := assert_quiesced(p_log);
BEGIN
    PERFORM assert_settled();
    IF p_boundary <= v_acknowledged THEN
        PERFORM refuse('TL006',
            format('B0 %s of %s is not above offset %s, which a gateway has acknowledged',
                p_boundary, log_label(p_log), v_acknowledged),
            'The log end offset came from a stale leader: observe every replica again.');
    ELSIF p_prefix_log_start NOT BETWEEN 0 AND p_boundary THEN
        PERFORM refuse('TL018',
            format('log start %s of %s lies outside 0..%s (B0)', p_prefix_log_start,
                log_label(p_log), p_boundary),
            'Observe the partition again.');
    ELSIF p_log.migration_state <> 'MIGRATING' THEN
        PERFORM assert_migrating(p_log);
    END IF;
    UPDATE logs SET
            diskless_log_start_offset = p_boundary, diskless_log_start_epoch = p_leader_epoch,
            suffix_start = p_boundary, high_watermark = p_boundary, max_timestamp = -1,
            log_start_offset = p_prefix_log_start,
            tiered_log_start_offset = CASE WHEN p_boundary > 0 THEN p_prefix_log_start ELSE -1 END,
            tiered_high_offset = -1, tiering_complete = (p_boundary = 0), tiering_reason = NULL,
            migration_state = CASE WHEN p_boundary > 0 THEN 'HYBRID' ELSE 'DISKLESS_ONLY' END,
            quiesce = 'open', quiesce_deadline = NULL
        WHERE log_id = p_log.log_id;
    PERFORM notify_log(p_log.topic_id, p_log.partition);
END
$$;

CREATE FUNCTION initialize_diskless_migration(
    p_topic_id uuid, p_partition integer, p_boundary bigint, p_leader_epoch integer,
    p_generation integer, p_seeds jsonb, p_prefix_log_start bigint,
    p_prefix_max_timestamp bigint, p_prefix_max_timestamp_offset bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_epoch(v_log, p_leader_epoch);
    IF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM assert_same_boundary(v_log, p_boundary);
        PERFORM assert_same_seeds(v_log, p_seeds);
        RETURN;
    END IF;
    PERFORM assert_generation(v_log, p_generation);
    PERFORM assert_migrating(v_log);
    PERFORM assert_seeds_below(v_log, p_seeds, p_boundary);
    PERFORM write_seeds(v_log, p_seeds);
    PERFORM write_boundary(v_log, p_boundary, p_leader_epoch, p_prefix_log_start);
    UPDATE logs SET prefix_max_timestamp = p_prefix_max_timestamp,
            prefix_max_timestamp_offset = p_prefix_max_timestamp_offset
        WHERE log_id = v_log.log_id;
END
$$;

-- While B0 is unset, seeds may be overwritten; then they must be the same. Takes no generation, so
-- it is granted to nobody.
CREATE FUNCTION seed_producer_state(p_topic_id uuid, p_partition integer, p_seeds jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    IF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM assert_same_seeds(v_log, p_seeds);
    ELSE
        PERFORM assert_seeds_below(v_log, p_seeds, 9223372036854775807);
        PERFORM write_seeds(v_log, p_seeds);
    END IF;
END
$$;

-- Back to "no boundary", only while the suffix is empty: live data must not be orphaned
-- (schedule 7). The leader epoch at which that was seen stays, as a fence: nobody sets a B0 that
-- was observed before. The generation is void: what gateways acknowledged under it was true before
-- they took appends again.
CREATE FUNCTION clear_boundary(p_log logs, p_leader_epoch integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_log.high_watermark > p_log.diskless_log_start_offset THEN
        PERFORM refuse('TL013',
            format('the suffix of %s holds offsets %s to %s', log_label(p_log),
                p_log.diskless_log_start_offset, p_log.high_watermark - 1),
            'A boundary is reset only while its suffix is empty.');
    ELSIF p_log.migration_state <> 'HYBRID' THEN
        PERFORM refuse('TL013',
            format('%s is %s: it has no prefix that B0 could belong to', log_label(p_log),
                p_log.migration_state),
            'Leave it as it is: its log begins with the suffix.');
    ELSIF EXISTS (SELECT FROM topics WHERE topic_id = p_log.topic_id
            AND completion_forced_by IS NOT NULL) THEN
        PERFORM refuse('TL013',
            format('the completion of topic %s was forced: its classic log is being sealed and '
                'takes no records of %s', p_log.topic_name, log_label(p_log)),
            'Migrate the topic again first: that takes the forced completion back.');
    END IF;
    DELETE FROM producer_state WHERE log_id = p_log.log_id;
    UPDATE logs SET
            diskless_log_start_offset = -1, diskless_log_start_epoch = p_leader_epoch,
            suffix_start = -1, high_watermark = -1,
            max_timestamp = -1, log_start_offset = -1, tiered_log_start_offset = -1,
            tiered_high_offset = -1, prefix_max_timestamp = -1, prefix_max_timestamp_offset = -1,
            tiering_complete = false, tiering_reason = 'the boundary was reset',
            seeds_digest = NULL, seeds_last_offset = -1, migration_state = 'MIGRATING',
            accepted_gap_from = -1, accepted_gap_epoch = -1,
            quiesce = 'reopened', quiesce_deadline = NULL
        WHERE log_id = p_log.log_id;
    PERFORM notify_log(p_log.topic_id, p_log.partition);
END
$$;

CREATE FUNCTION reset_boundary(
    p_topic_id uuid, p_partition integer, p_generation integer, p_leader_epoch integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_generation(v_log, p_generation);
    PERFORM assert_epoch(v_log, p_leader_epoch);
    IF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM clear_boundary(v_log, p_leader_epoch);
    END IF;
END
$$;

-- Seed 000 setDisklessLogStartOffset: -1 resets; a value is set when unset, under the same quiesce
-- as initialize_diskless_migration and with the seeds written before. Never around the epoch.
-- Takes no generation, so it is granted to nobody.
CREATE FUNCTION set_diskless_log_start_offset(
    p_topic_id uuid, p_partition integer, p_boundary bigint, p_leader_epoch integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_epoch(v_log, p_leader_epoch);
    IF p_boundary = -1 THEN
        IF v_log.diskless_log_start_offset >= 0 THEN
            PERFORM clear_boundary(v_log, p_leader_epoch);
        END IF;
    ELSIF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM assert_same_boundary(v_log, p_boundary);
    ELSE
        PERFORM assert_migrating(v_log);
        IF v_log.seeds_last_offset >= p_boundary THEN
            PERFORM refuse('TL012',
                format('%s was seeded up to offset %s, which is not below B0 %s',
                    log_label(v_log), v_log.seeds_last_offset, p_boundary),
                'Seed only batches whose last offset is below B0.');
        END IF;
        PERFORM write_boundary(v_log, p_boundary, p_leader_epoch, 0);
    END IF;
END
$$;

-- Succeeds only while no partition of the topic has B0 (schedule 20); repeats succeed.
CREATE FUNCTION abort_migration(p_topic_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
    v_crossed text;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('topic id %s is not tracked', p_topic_id),
            'Nothing to abort.');
    ELSIF v_topic.status = 'deleted' THEN
        PERFORM refuse('TL002', format('topic %s (id %s) was deleted', v_topic.name, p_topic_id),
            'Nothing to abort.');
    ELSIF v_topic.status = 'aborted' THEN
        RETURN;
    END IF;
    PERFORM FROM logs WHERE topic_id = p_topic_id ORDER BY log_id FOR NO KEY UPDATE;
    SELECT string_agg(format('%s (B0 %s)', partition, diskless_log_start_offset), ', '
            ORDER BY partition) INTO v_crossed
        FROM logs WHERE topic_id = p_topic_id AND diskless_log_start_offset >= 0;
    IF v_crossed IS NOT NULL OR v_topic.kind <> 'migrated' THEN
        PERFORM refuse('TL010',
            format('topic %s cannot go back: partition %s has crossed', v_topic.name,
                coalesce(v_crossed, 'of a topic born diskless')),
            'After B0 a migration only goes forward: resume it.');
    END IF;
    UPDATE topics SET status = 'aborted', aborted_at = clock_timestamp()
        WHERE topic_key = v_topic.topic_key;
    -- Whoever has begun or joined this round begins no other.
    UPDATE tracking_runs SET ended = true WHERE topic_key = v_topic.topic_key;
    UPDATE logs SET migration_state = 'TIERED_ONLY', generation = generation + 1,
            quiesce = 'open', quiesce_deadline = NULL, seeds_digest = NULL,
            seeds_last_offset = -1
        WHERE topic_id = p_topic_id;
    DELETE FROM producer_state AS p USING logs AS l
        WHERE l.topic_id = p_topic_id AND p.log_id = l.log_id;
    PERFORM notify_topic(v_topic.name);
END
$$;
