-- Ways out: what an operator may decide, each refused where it would lose what can be kept, each
-- recorded in the transaction that does it.

CREATE FUNCTION add_operator_action(
    p_topic text, p_topic_id uuid, p_partition integer, p_action text, p_decided_by text,
    p_reason text, p_details jsonb
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF btrim(p_decided_by) = '' OR btrim(p_reason) = '' THEN
        PERFORM refuse('TL018',
            format('%s of topic %s: who decides it (%L) and why (%L) must be said', p_action,
                p_topic, p_decided_by, p_reason),
            'Give a name and a reason.');
    END IF;
    INSERT INTO operator_actions (topic, topic_id, partition, action, decided_by, reason, details)
        VALUES (p_topic, p_topic_id, p_partition, p_action, p_decided_by, p_reason, p_details);
END
$$;

-- What of a running migration lives in its workflow (options, a pause): here is only the record. Of
-- the whole topic where p_partition is null.
CREATE FUNCTION record_configuration(
    p_topic text, p_topic_id uuid, p_decided_by text, p_reason text, p_details jsonb,
    p_action text DEFAULT 'configure', p_partition integer DEFAULT NULL
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT add_operator_action(p_topic, p_topic_id, p_partition, p_action, p_decided_by, p_reason,
        p_details)
$$;

-- The loss of [p_from, B0) is accepted. The caller has asked every replica and remote storage
-- under this generation and leader epoch; the row's lock decides against a reset, another boundary
-- and an older look. The same range again changes nothing; a longer one replaces a shorter one.
CREATE FUNCTION accept_gap(
    p_topic_id uuid, p_partition integer, p_generation integer, p_leader_epoch integer,
    p_from bigint, p_to bigint, p_decided_by text, p_reason text, p_details jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
BEGIN
    IF v_log.diskless_log_start_offset < 0 THEN
        PERFORM refuse('TL022', format('%s has no B0', log_label(v_log)),
            'Without B0 there is no gap: the migration observes the log end again.');
    END IF;
    PERFORM assert_generation(v_log, p_generation);
    PERFORM assert_epoch(v_log, p_leader_epoch);
    IF p_to <> v_log.diskless_log_start_offset THEN
        PERFORM refuse('TL018',
            format('a log gap of %s ends at B0 %s, not at %s', log_label(v_log),
                v_log.diskless_log_start_offset, p_to),
            'Name the range from the log end to B0.');
    ELSIF p_from < greatest(v_log.log_start_offset, 0) OR p_from >= p_to THEN
        PERFORM refuse('TL018',
            format('offset %s of %s lies outside %s (log start) to %s (B0)', p_from,
                log_label(v_log), greatest(v_log.log_start_offset, 0), p_to),
            'Name the range from the log end to B0.');
    ELSIF p_leader_epoch < v_log.accepted_gap_epoch THEN
        PERFORM refuse('TL004',
            format('leader epoch %s of %s is stale: a gap was accepted at epoch %s',
                p_leader_epoch, log_label(v_log), v_log.accepted_gap_epoch),
            'Observe the partition at its current leader.');
    ELSIF v_log.accepted_gap_from = p_from THEN
        RETURN;
    ELSIF v_log.accepted_gap_from >= 0 AND p_from > v_log.accepted_gap_from THEN
        PERFORM refuse('TL041',
            format('the loss of %s to %s of %s is accepted already', v_log.accepted_gap_from,
                p_to - 1, log_label(v_log)),
            'Consumers were told so; it cannot be taken back.');
    END IF;
    UPDATE logs SET accepted_gap_from = p_from, accepted_gap_epoch = p_leader_epoch
        WHERE log_id = v_log.log_id;
    PERFORM add_operator_action(v_log.topic_name, p_topic_id, p_partition, 'accept_gap',
        p_decided_by, p_reason, p_details || jsonb_build_object('from', p_from, 'to', p_to,
            'generation', p_generation, 'leader_epoch', p_leader_epoch));
    PERFORM notify_log(p_topic_id, p_partition);
END
$$;

-- Freeze and seal although a prefix is not complete; tieringComplete stays as it is. The locks of
-- the partitions decide against a reset: either it is seen here, or it sees this.
CREATE FUNCTION force_completion(p_topic_id uuid, p_decided_by text, p_reason text)
RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
    v_without_b0 text;
    v_incomplete integer[];
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('topic id %s is not tracked', p_topic_id),
            'Nothing to complete.');
    ELSIF v_topic.status = 'deleted' THEN
        PERFORM refuse('TL002', format('topic %s (id %s) was deleted', v_topic.name, p_topic_id),
            'Nothing to complete.');
    END IF;
    PERFORM FROM logs WHERE topic_id = p_topic_id ORDER BY log_id FOR NO KEY UPDATE;
    SELECT string_agg(partition::text, ', ' ORDER BY partition)
               FILTER (WHERE diskless_log_start_offset < 0),
           coalesce(array_agg(partition ORDER BY partition)
               FILTER (WHERE NOT tiering_complete), '{}')
        INTO v_without_b0, v_incomplete
        FROM logs WHERE topic_id = p_topic_id;
    IF v_without_b0 IS NOT NULL THEN
        PERFORM refuse('TL042',
            format('topic %s cannot be completed: partition %s has no B0', v_topic.name,
                v_without_b0),
            'A sealed log would take none of its records: let it cross, or abort the migration.');
    ELSIF v_topic.completion_forced_by IS NULL AND v_incomplete <> '{}' THEN
        UPDATE topics SET completion_forced_by = p_decided_by
            WHERE topic_key = v_topic.topic_key;
        PERFORM add_operator_action(v_topic.name, p_topic_id, NULL, 'force_completion',
            p_decided_by, p_reason, jsonb_build_object('incomplete', v_incomplete));
        PERFORM notify_topic(v_topic.name);
    END IF;
    RETURN v_incomplete;
END
$$;

-- Of a topic, or of all; the oldest first.
CREATE FUNCTION list_operator_actions(p_topic text) RETURNS TABLE (
    topic text, topic_id uuid, partition integer, action text, decided_by text, reason text,
    details jsonb, decided_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT topic, topic_id, partition, action, decided_by, reason, details, decided_at
    FROM operator_actions WHERE p_topic IS NULL OR topic = p_topic ORDER BY action_id
$$;

-- Requests to migrate that came as a config change.

CREATE FUNCTION list_requests(p_topic text) RETURNS SETOF migration_requests
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM migration_requests WHERE p_topic IS NULL OR topic = p_topic
        ORDER BY requested_at
$$;

-- Those whose migrations run, as far as is known.
CREATE FUNCTION started_requests() RETURNS SETOF migration_requests
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM migration_requests WHERE state = 'started' ORDER BY requested_at
$$;

-- What became of the request that was made at p_requested_at; a newer one is left alone, and what
-- has ended stays ended. p_retry_after_ms counts from now.
CREATE FUNCTION settle_request(
    p_topic_id uuid, p_requested_at timestamptz, p_state text, p_reason text,
    p_retry_after_ms bigint
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    UPDATE migration_requests SET state = p_state, reason = p_reason,
            tries = tries + (p_state = 'retrying')::integer,
            next_try_at = CASE WHEN p_state = 'retrying'
                THEN clock_timestamp() + p_retry_after_ms * interval '1 ms' END,
            taken_at = CASE WHEN p_state IN ('received', 'retrying') THEN NULL
                ELSE coalesce(taken_at, clock_timestamp()) END,
            changed_at = clock_timestamp()
        WHERE topic_id = p_topic_id AND requested_at = p_requested_at
            AND state IN ('received', 'retrying', 'started');
    RETURN FOUND;
END
$$;

-- Only what has not begun: a migration that runs is ended by an abort.
CREATE FUNCTION call_off_request(p_topic_id uuid, p_decided_by text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_request migration_requests;
BEGIN
    SELECT * INTO v_request FROM migration_requests WHERE topic_id = p_topic_id
        FOR NO KEY UPDATE;
    IF NOT FOUND OR v_request.state NOT IN ('received', 'retrying', 'called_off') THEN
        PERFORM refuse('TL043',
            format('the request to migrate topic id %s is %s: nothing waits to be called off',
                p_topic_id, coalesce(v_request.state, 'unknown')),
            'A migration that runs is ended by an abort.');
    ELSIF v_request.state <> 'called_off' THEN
        UPDATE migration_requests SET state = 'called_off', reason = p_reason, next_try_at = NULL,
                taken_at = clock_timestamp(), changed_at = clock_timestamp()
            WHERE topic_id = p_topic_id;
        PERFORM add_operator_action(v_request.topic, p_topic_id, NULL, 'call_off_request',
            p_decided_by, p_reason, '{}');
    END IF;
END
$$;
