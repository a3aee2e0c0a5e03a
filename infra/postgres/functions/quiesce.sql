-- Generations of a partition, and their closing before B0.

-- Takes the next generation: everything that carries an older one is stale, and its quiesce void.
CREATE FUNCTION next_generation(p_topic_id uuid, p_partition integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_migrating(v_log);
    UPDATE logs SET generation = generation + 1, quiesce = 'open', quiesce_deadline = NULL
        WHERE log_id = v_log.log_id;
    DELETE FROM quiesce_acks WHERE log_id = v_log.log_id;
    DELETE FROM quiesce_witnesses WHERE log_id = v_log.log_id;
    PERFORM notify_log(p_topic_id, p_partition);
    RETURN v_log.generation + 1;
END
$$;

CREATE FUNCTION close_generation(
    p_topic_id uuid, p_partition integer, p_generation integer, p_hold_ms bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    PERFORM assert_generation(v_log, p_generation);
    PERFORM assert_migrating(v_log);
    IF p_hold_ms NOT BETWEEN 1 AND 600000 THEN
        PERFORM refuse('TL018', format('a hold of %s ms is not allowed', p_hold_ms),
            'Choose between 1 and 600000 ms: producers are parked that long.');
    ELSIF NOT EXISTS (SELECT FROM topics WHERE topic_id = p_topic_id AND status = 'active') THEN
        PERFORM refuse('TL015',
            format('topic %s is not tracked by every gateway yet', v_log.topic_name),
            'Wait for the tracking barrier and activate the topic first.');
    ELSIF v_log.diskless_log_start_offset >= 0 THEN
        PERFORM refuse('TL005',
            format('%s has B0 %s already', log_label(v_log), v_log.diskless_log_start_offset),
            'Go on with the phases after B0.');
    ELSIF v_log.quiesce = 'reopened' THEN
        PERFORM refuse('TL007',
            format('generation %s of %s was closed before and is void', p_generation,
                log_label(v_log)),
            'Take the next generation and close that.');
    END IF;
    IF v_log.quiesce = 'open' THEN
        -- Not when the call is repeated: the barrier may have been passed meanwhile, and an
        -- incarnation that registered after that would be waited for by nobody.
        INSERT INTO quiesce_witnesses (log_id, generation, incarnation)
            SELECT v_log.log_id, p_generation, incarnation FROM gateways WHERE status = 'active';
    END IF;
    UPDATE logs SET quiesce = 'closed',
            quiesce_deadline = clock_timestamp() + p_hold_ms * interval '1 millisecond'
        WHERE log_id = v_log.log_id;
    PERFORM notify_log(p_topic_id, p_partition);
END
$$;

CREATE FUNCTION acknowledge_quiesce(
    p_gateway_id integer, p_incarnation uuid, p_topic_id uuid, p_partition integer,
    p_generation integer, p_highest_acknowledged_offset bigint, p_read_ceiling bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs;
BEGIN
    PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    SELECT * INTO v_log FROM logs WHERE topic_id = p_topic_id AND partition = p_partition;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    PERFORM assert_generation(v_log, p_generation);
    IF v_log.quiesce <> 'closed' THEN
        PERFORM refuse('TL007',
            format('generation %s of %s is not closed', p_generation, log_label(v_log)),
            'Un-park: there is nothing to acknowledge.');
    END IF;
    INSERT INTO quiesce_acks AS a (log_id, generation, gateway_id, incarnation,
            highest_acknowledged_offset, read_ceiling)
        VALUES (v_log.log_id, p_generation, p_gateway_id, p_incarnation,
            p_highest_acknowledged_offset, p_read_ceiling)
        ON CONFLICT (log_id, generation, gateway_id, incarnation) DO UPDATE SET
            highest_acknowledged_offset = greatest(a.highest_acknowledged_offset,
                excluded.highest_acknowledged_offset);
    PERFORM pg_notify('tideline_acks',
        'quiesce:' || p_topic_id || ':' || p_partition || ':' || p_generation);
END
$$;

-- Every gateway that may act. A fenced one is passed: it knows the topic, since tracking, and the
-- fence makes it drop what it has pending.
CREATE FUNCTION quiesce_barrier(p_topic_id uuid, p_partition integer, p_generation integer)
RETURNS TABLE (
    gateway_id integer, broker_id integer, incarnation uuid, status text, renewals bigint,
    lease_ms integer, address text, version text, registered_at timestamptz, acknowledged boolean,
    highest_acknowledged_offset bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT g.gateway_id, g.broker_id, g.incarnation, g.status, g.renewals, g.lease_ms, g.address,
           g.version, g.registered_at, a.gateway_id IS NOT NULL,
           coalesce(a.highest_acknowledged_offset, -1)
    FROM gateways AS g
    LEFT JOIN logs AS l ON l.topic_id = p_topic_id AND l.partition = p_partition
    LEFT JOIN quiesce_acks AS a ON a.log_id = l.log_id AND a.generation = p_generation
        AND a.gateway_id = g.gateway_id AND a.incarnation = g.incarnation
    WHERE g.status = 'active'
    ORDER BY g.gateway_id
$$;

-- True when the partition takes classic appends again; false when B0 is set or another generation
-- took over.
CREATE FUNCTION reopen_generation(p_topic_id uuid, p_partition integer, p_generation integer)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    IF v_log.generation <> p_generation OR v_log.diskless_log_start_offset >= 0 THEN
        RETURN false;
    ELSIF v_log.quiesce = 'closed' THEN
        UPDATE logs SET quiesce = 'reopened', quiesce_deadline = NULL
            WHERE log_id = v_log.log_id;
        PERFORM notify_log(p_topic_id, p_partition);
    END IF;
    RETURN true;
END
$$;

-- A gateway asks whether it may un-park: true when nothing is closed and B0 is unset, which this
-- makes so if the deadline has passed on this clock (schedule 13).
CREATE FUNCTION void_expired_quiesce(p_topic_id uuid, p_partition integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    IF v_log.diskless_log_start_offset >= 0 THEN
        RETURN false;
    ELSIF v_log.quiesce = 'closed' THEN
        IF v_log.quiesce_deadline > clock_timestamp() THEN
            RETURN false;
        END IF;
        UPDATE logs SET quiesce = 'reopened', quiesce_deadline = NULL
            WHERE log_id = v_log.log_id;
        PERFORM notify_log(p_topic_id, p_partition);
    END IF;
    RETURN true;
END
$$;

-- Raises unless the quiesce of the generation at hand holds: closed, not past its deadline, and
-- acknowledged by every gateway that may act. Answers the highest acknowledged offset or -1.
CREATE FUNCTION assert_quiesced(p_log logs) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_missing text;
BEGIN
    IF p_log.quiesce <> 'closed' OR p_log.quiesce_deadline <= clock_timestamp() THEN
        PERFORM refuse('TL007',
            format('generation %s of %s is %s', p_log.generation, log_label(p_log),
                CASE p_log.quiesce WHEN 'closed' THEN 'past its deadline' ELSE p_log.quiesce END),
            'Gateways may append again: take the next generation and quiesce anew.');
    END IF;
    SELECT string_agg(gateway_id::text, ', ') INTO v_missing
        FROM quiesce_barrier(p_log.topic_id, p_log.partition, p_log.generation)
        WHERE NOT acknowledged;
    IF v_missing IS NOT NULL THEN
        PERFORM refuse('TL007',
            format('gateway %s has not acknowledged generation %s of %s', v_missing,
                p_log.generation, log_label(p_log)),
            'Wait for it, or fence it when its lease has lapsed.');
    END IF;
    RETURN (SELECT coalesce(max(highest_acknowledged_offset), -1) FROM quiesce_acks
        WHERE log_id = p_log.log_id AND generation = p_log.generation);
END
$$;

-- What a gateway that was answered by Kafka asks before it tells: one snapshot, taken after Kafka's
-- answer. The argument is at tideline/domain/ack_gate.py. Partitions without a row are left out.
CREATE FUNCTION confirm_partitions(
    p_gateway_id integer, p_incarnation uuid, p_topic_ids uuid[], p_partitions integer[]
)
RETURNS TABLE (
    topic_id uuid, partition integer, generation integer, boundary bigint, active boolean,
    closed boolean, awaited boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_settled();
    SELECT l.topic_id, l.partition, l.generation, l.diskless_log_start_offset,
           EXISTS (SELECT FROM gateways AS g WHERE g.gateway_id = p_gateway_id
               AND g.incarnation = p_incarnation AND g.status = 'active'),
           l.quiesce = 'closed',
           EXISTS (SELECT FROM quiesce_witnesses AS w WHERE w.log_id = l.log_id
               AND w.generation = l.generation AND w.incarnation = p_incarnation)
           AND NOT EXISTS (SELECT FROM quiesce_acks AS a WHERE a.log_id = l.log_id
               AND a.generation = l.generation AND a.gateway_id = p_gateway_id
               AND a.incarnation = p_incarnation)
    FROM unnest(p_topic_ids, p_partitions) AS asked (topic_id, partition)
    JOIN logs AS l USING (topic_id, partition)
    WHERE l.deleted_at IS NULL
$$;
