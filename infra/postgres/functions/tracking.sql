-- Which topics are tracked: no topic starts to migrate before every gateway has acknowledged it.

CREATE FUNCTION add_migrating_logs(p_topic topics, p_partitions integer) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO logs (topic_id, partition, topic_name, migration_state)
        SELECT p_topic.topic_id, p, p_topic.name, 'MIGRATING'
        FROM generate_series(0, p_partitions - 1) AS p
        ON CONFLICT (topic_id, partition) DO NOTHING
$$;

-- Born diskless: B0 = 0 at epoch 0, so that the whole log is the suffix.
CREATE FUNCTION add_diskless_logs(p_topic topics, p_first integer, p_total integer) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO logs (topic_id, partition, topic_name, migration_state, log_start_offset,
            high_watermark, suffix_start, diskless_log_start_offset,
            diskless_log_start_epoch, tiering_complete)
        SELECT p_topic.topic_id, p, p_topic.name, 'DISKLESS_ONLY', 0, 0, 0, 0, 0, true
        FROM generate_series(p_first, p_total - 1) AS p
        ON CONFLICT (topic_id, partition) DO NOTHING
$$;

-- The run is over, whatever it has begun or will yet try to begin.
CREATE FUNCTION end_tracking_run(p_run text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO tracking_runs (run, ended) VALUES (p_run, true)
        ON CONFLICT (run) DO UPDATE SET ended = true
$$;

-- Locked until the end of the transaction, so that it either comes before the end of the run, and
-- the abort finds what it began, or sees it.
CREATE FUNCTION lock_tracking_run(p_run text) RETURNS tracking_runs
LANGUAGE plpgsql AS $$
DECLARE
    v_run tracking_runs;
BEGIN
    IF p_run IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO tracking_runs (run) VALUES (p_run) ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT v_run FROM tracking_runs WHERE run = p_run FOR UPDATE;
    IF v_run.ended THEN
        PERFORM refuse('TL028',
            format('run %s is over (round %s): it tracks no topic any more', p_run,
                coalesce(v_run.round::text, 'none')),
            'Start the migration again: a new run begins a new round.');
    END IF;
    RETURN v_run;
END
$$;

-- A run belongs to one round: an attempt that slept over an abort would undo it, and nobody would
-- drive what it began.
CREATE FUNCTION join_round(p_run tracking_runs, p_topic topics) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_run.round <> p_topic.round OR p_run.topic_key <> p_topic.topic_key THEN
        PERFORM refuse('TL028',
            format('run %s belongs to round %s, topic %s is in round %s', p_run.run, p_run.round,
                p_topic.name, p_topic.round),
            'Start the migration again: a new run begins a new round.');
    END IF;
    UPDATE tracking_runs SET topic_key = p_topic.topic_key, round = p_topic.round
        WHERE run = p_run.run AND round IS NULL;
END
$$;

CREATE FUNCTION assert_round(p_topic topics, p_round integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_round <> p_topic.round THEN
        PERFORM refuse('TL028',
            format('round %s of topic %s is over: it is in round %s', p_round, p_topic.name,
                p_topic.round),
            'Read the tracked topics again.');
    END IF;
END
$$;

-- ``p_run`` names the migration's run, if one asks. Answers the round.
CREATE FUNCTION begin_tracking(
    p_name text, p_topic_id uuid, p_kind text, p_partitions integer,
    p_timestamp_type text, p_max_message_bytes integer, p_run text
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
    v_run tracking_runs;
BEGIN
    -- The topic before the run, as an abort locks them.
    PERFORM pg_advisory_xact_lock(hashtextextended('tideline topic ' || p_name, 0));
    SELECT * INTO v_topic FROM topics WHERE name = p_name AND status <> 'deleted'
        FOR NO KEY UPDATE;
    v_run := lock_tracking_run(p_run);
    IF v_topic.topic_key IS NULL THEN
        IF EXISTS (SELECT FROM topics WHERE topic_id = p_topic_id) THEN
            PERFORM refuse('TL002', format('topic id %s was deleted', p_topic_id),
                'Resolve the id of topic ' || p_name || ' again.');
        END IF;
        INSERT INTO topics (name, topic_id, kind, status, timestamp_type, max_message_bytes)
            VALUES (p_name, p_topic_id, p_kind, 'tracking', p_timestamp_type, p_max_message_bytes)
            RETURNING * INTO v_topic;
    ELSIF v_topic.topic_id IS DISTINCT FROM p_topic_id OR v_topic.kind <> p_kind THEN
        PERFORM refuse('TL014',
            format('topic %s is tracked as %s with id %s, not as %s with id %s', p_name,
                v_topic.kind, v_topic.topic_id, p_kind, p_topic_id),
            'If Kafka has deleted the old one, the worker frees the name within two minutes: see '
            '`tideline topic check ' || p_name || '`.');
    ELSE
        -- A migration that begins anew means to complete every prefix.
        UPDATE topics SET timestamp_type = p_timestamp_type,
                max_message_bytes = p_max_message_bytes, completion_forced_by = NULL
            WHERE topic_key = v_topic.topic_key;
        IF v_topic.status = 'aborted' THEN
            -- A new round: what was acknowledged or observed for the aborted one is void.
            DELETE FROM tracking_acks WHERE topic_key = v_topic.topic_key;
            UPDATE topics SET status = 'tracking', tracked = true, round = round + 1
                WHERE topic_key = v_topic.topic_key RETURNING * INTO v_topic;
            PERFORM FROM logs WHERE topic_id = p_topic_id ORDER BY log_id FOR NO KEY UPDATE;
            UPDATE logs SET migration_state = 'MIGRATING', generation = generation + 1,
                    quiesce = 'open', quiesce_deadline = NULL
                WHERE topic_id = p_topic_id;
        END IF;
    END IF;
    PERFORM join_round(v_run, v_topic);
    IF p_topic_id IS NOT NULL THEN
        -- Also of a topic that is active: every gateway tracks it, and one that came past them is
        -- served by nobody.
        IF p_kind = 'migrated' THEN
            PERFORM add_migrating_logs(v_topic, p_partitions);
        ELSIF v_topic.status = 'tracking' THEN
            PERFORM add_diskless_logs(v_topic, 0, p_partitions);
        END IF;
    END IF;
    PERFORM notify_topic(p_name);
    RETURN v_topic.round;
END
$$;

-- Kafka has created the topic that is born diskless: its id is known now, and every gateway has to
-- know it before clients may: until then a request by id would reach the sealed log. So what was
-- acknowledged for the name alone is void.
CREATE FUNCTION complete_creation(p_name text, p_topic_id uuid, p_partitions integer)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_name);
BEGIN
    IF v_topic.kind <> 'born_diskless'
        OR (v_topic.topic_id IS NOT NULL AND v_topic.topic_id <> p_topic_id) THEN
        PERFORM refuse('TL014',
            format('topic %s is tracked as %s with id %s, not as born_diskless with id %s',
                p_name, v_topic.kind, v_topic.topic_id, p_topic_id),
            'Report the deletion of the old topic first.');
    END IF;
    UPDATE topics SET topic_id = p_topic_id,
            round = CASE WHEN v_topic.topic_id IS NULL AND v_topic.status = 'tracking'
                THEN round + 1 ELSE round END
        WHERE topic_key = v_topic.topic_key RETURNING * INTO v_topic;
    PERFORM add_diskless_logs(v_topic, 0, p_partitions);
    PERFORM notify_topic(p_name);
END
$$;

-- Counts for the round that the gateway has drained; null: whichever it is.
CREATE FUNCTION acknowledge_tracking(
    p_gateway_id integer, p_incarnation uuid, p_name text, p_round integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    SELECT * INTO v_topic FROM topics WHERE name = p_name AND status <> 'deleted' FOR KEY SHARE;
    IF NOT FOUND OR NOT v_topic.tracked THEN
        PERFORM refuse('TL019', format('topic %s is not tracked', p_name),
            'Read the tracked topics again.');
    END IF;
    PERFORM assert_round(v_topic, p_round);
    INSERT INTO tracking_acks (topic_key, gateway_id, incarnation, round)
        VALUES (v_topic.topic_key, p_gateway_id, p_incarnation, v_topic.round)
        ON CONFLICT (topic_key, gateway_id) DO UPDATE
            SET incarnation = excluded.incarnation, round = excluded.round,
                acknowledged_at = excluded.acknowledged_at;
    PERFORM pg_notify('tideline_acks', 'tracking:' || p_name);
END
$$;

-- Every gateway that is not retired. One that is fenced or stopped counts too: while it does not
-- know the topic it would pass produces through untracked when it wakes; it holds the start back
-- until it registers anew or an operator retires it. So does an incarnation that was replaced and
-- may still run: what its successor acknowledges is not known to it.
CREATE FUNCTION tracking_barrier(p_name text)
RETURNS TABLE (
    gateway_id integer, broker_id integer, incarnation uuid, status text, renewals bigint,
    lease_ms integer, address text, version text, registered_at timestamptz, acknowledged boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT g.gateway_id, g.broker_id, g.incarnation, g.status, g.renewals, g.lease_ms, g.address,
           g.version, g.registered_at, a.gateway_id IS NOT NULL
    FROM gateways AS g
    LEFT JOIN topics AS t ON t.name = p_name AND t.status <> 'deleted'
    LEFT JOIN tracking_acks AS a ON a.topic_key = t.topic_key AND a.gateway_id = g.gateway_id
        AND a.incarnation = g.incarnation AND a.round = t.round
    WHERE g.status <> 'retired'
    UNION ALL
    SELECT u.*, false FROM unaccounted_incarnations() AS u
    ORDER BY gateway_id, registered_at DESC
$$;

CREATE FUNCTION activate_topic(p_name text, p_round integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_name);
    v_missing text;
BEGIN
    PERFORM assert_round(v_topic, p_round);
    IF v_topic.status = 'active' THEN
        RETURN;
    ELSIF v_topic.status <> 'tracking' THEN
        PERFORM refuse('TL016', format('topic %s is %s, not tracking', p_name, v_topic.status),
            'Begin tracking it again.');
    END IF;
    SELECT string_agg(format('%s (%s at %s)', gateway_id, status, address), ', ') INTO v_missing
        FROM tracking_barrier(p_name) WHERE NOT acknowledged;
    IF v_missing IS NOT NULL THEN
        PERFORM refuse('TL015',
            format('topic %s is not tracked yet by gateway %s', p_name, v_missing),
            'Wait for it, or retire it once it is certainly cut off from the brokers. One that is '
            'unaccounted was replaced and may still run: start the gateway over its state '
            'directory, or make sure that it is gone and say so with `tideline gateway account`.');
    END IF;
    UPDATE topics SET status = 'active' WHERE topic_key = v_topic.topic_key;
    PERFORM notify_topic(p_name);
END
$$;

CREATE FUNCTION assert_partition_count(p_total integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_total, 0) NOT BETWEEN 1 AND 1000000 THEN
        PERFORM refuse('TL018', format('no topic has %s partitions', coalesce(p_total::text, 'null')),
            'Name how many partitions Kafka has: 1 to 1000000.');
    END IF;
END
$$;

-- New partitions of a topic that is diskless already are born diskless (schedule 22): from p_first up to
-- p_total (exclusive), all of which the caller has seen empty in Kafka; nobody has looked at another
-- topic of the name.
CREATE FUNCTION add_partitions(
    p_name text, p_topic_id uuid, p_first integer, p_total integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics := lock_live_topic(p_name);
    v_pending text;
    v_unseen integer;
BEGIN
    PERFORM assert_partition_count(p_total);
    IF v_topic.topic_id IS DISTINCT FROM p_topic_id THEN
        PERFORM refuse('TL014',
            format('topic %s is tracked with id %s, not with id %s', p_name, v_topic.topic_id,
                p_topic_id),
            'Read the tracked topics again.');
    END IF;
    SELECT string_agg(partition::text, ', ' ORDER BY partition) INTO v_pending FROM logs
        WHERE topic_id = p_topic_id AND diskless_log_start_offset < 0;
    IF v_pending IS NOT NULL THEN
        PERFORM refuse('TL023',
            format('topic %s is migrating (no B0 yet: partition %s)', p_name, v_pending),
            'Add partitions when the migration is done, or abort it first.');
    END IF;
    SELECT min(p) INTO v_unseen FROM generate_series(0, p_first - 1) AS p
        WHERE NOT EXISTS (SELECT FROM logs WHERE topic_id = p_topic_id AND partition = p);
    IF v_unseen IS NOT NULL THEN
        PERFORM refuse_unknown_log(p_topic_id, v_unseen);
    END IF;
    PERFORM add_diskless_logs(v_topic, p_first, p_total);
    PERFORM notify_topic(p_name);
END
$$;

-- Gateways let go of the topic. Refused once a partition has B0: nobody else could serve it.
CREATE FUNCTION stop_tracking(p_name text, p_round integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
    v_crossed text;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE name = p_name AND status <> 'deleted'
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM assert_round(v_topic, p_round);
    SELECT string_agg(format('%s (%s)', partition,
            CASE WHEN diskless_log_start_offset >= 0 THEN 'B0 ' || diskless_log_start_offset
                 ELSE migration_state END), ', ' ORDER BY partition) INTO v_crossed
        FROM logs
        WHERE topic_id = v_topic.topic_id
            AND (diskless_log_start_offset >= 0 OR migration_state <> 'TIERED_ONLY');
    IF v_crossed IS NOT NULL THEN
        PERFORM refuse('TL010',
            format('topic %s cannot be let go: partition %s', p_name, v_crossed),
            'Abort the migration first; after B0 a topic stays tracked until it is deleted.');
    END IF;
    DELETE FROM tracking_acks WHERE topic_key = v_topic.topic_key;
    IF v_topic.topic_id IS NULL THEN
        PERFORM bury_birth(v_topic, 'gateway', 'its creation failed');
    ELSE
        -- The rows stay: generations of a later migration go on from here.
        UPDATE topics SET tracked = false, status = 'aborted'
            WHERE topic_key = v_topic.topic_key;
    END IF;
    PERFORM notify_topic(p_name);
END
$$;

CREATE FUNCTION partition_view(p_log logs) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'topic_id', p_log.topic_id, 'partition', p_log.partition,
        'state', p_log.migration_state, 'generation', p_log.generation,
        'quiesced', p_log.quiesce = 'closed',
        'boundary', p_log.diskless_log_start_offset,
        'boundary_epoch', p_log.diskless_log_start_epoch,
        'high_watermark', p_log.high_watermark,
        'suffix_start', p_log.suffix_start,
        'prefix_max_timestamp', p_log.prefix_max_timestamp,
        'prefix_max_timestamp_offset', p_log.prefix_max_timestamp_offset,
        'ready', p_log.tiering_complete,
        'accepted_gap_from', p_log.accepted_gap_from,
        'prefix_gone', p_log.diskless_log_start_offset >= 0 AND NOT has_prefix(p_log))
$$;

-- Tracked topics with their partitions and overrides, in one snapshot. Deleted topics and those
-- that gateways let go of are not among them.
CREATE FUNCTION tracked_topics(p_name text)
RETURNS TABLE (
    name text, topic_id uuid, kind text, status text, timestamp_type text,
    max_message_bytes integer, timestamp_before_max_ms bigint, timestamp_after_max_ms bigint,
    round integer, partitions jsonb, overrides jsonb, completion_forced_by text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.name, t.topic_id, t.kind, t.status, t.timestamp_type, t.max_message_bytes,
           t.timestamp_before_max_ms, t.timestamp_after_max_ms,
           t.round, coalesce((SELECT jsonb_agg(partition_view(l) ORDER BY l.partition)
               FROM logs AS l WHERE l.topic_id = t.topic_id), '[]'),
           coalesce((SELECT jsonb_agg(to_jsonb(c) - 'topic_id' ORDER BY c.key)
               FROM config_overrides AS c WHERE c.topic_id = t.topic_id), '[]'),
           t.completion_forced_by
    FROM topics AS t
    WHERE t.tracked AND t.status <> 'deleted' AND (p_name IS NULL OR t.name = p_name)
    ORDER BY t.name
$$;

CREATE FUNCTION tracked_partition(p_topic_id uuid, p_partition integer) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT partition_view(l) FROM logs AS l
        JOIN topics AS t USING (topic_id)
        WHERE l.topic_id = p_topic_id AND l.partition = p_partition
            AND t.tracked AND l.deleted_at IS NULL
$$;
