-- What more than one subject needs: refusals, locks, notifications, checks.

-- Every refusal has its own SQLSTATE of class TL; tideline/control_plane/errors.py names them.
CREATE FUNCTION refuse(p_code text, p_message text, p_remedy text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, HINT = p_remedy;
END
$$;

-- Who applied the schema, or the superuser: rights that are bound to a login role are not asked of it.
CREATE FUNCTION acts_as_owner() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, 'tideline_owner', 'MEMBER')
$$;

-- Who said it, as the caller has it; what comes through a gateway says so.
CREATE FUNCTION said_by(p_who text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN session_user LIKE 'tideline\_gateway\_%'
        THEN format('%s (through %s)', p_who, session_user) ELSE p_who END
$$;

CREATE FUNCTION refuse_unknown_log(p_topic_id uuid, p_partition integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('TL001',
        format('partition %s of topic id %s is not tracked', p_partition, p_topic_id),
        'Begin tracking the topic first, or add the partition to it.');
END
$$;

CREATE FUNCTION epoch_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(extract(epoch FROM p_time) * 1000)::bigint
$$;

CREATE FUNCTION log_label(p_log logs) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_log.topic_name || '-' || p_log.partition
$$;

-- The row of a live partition, locked against commits, aborts and boundaries until the end of the
-- transaction. Raises TL001 when there is none, TL002 when its topic was deleted.
CREATE FUNCTION lock_log(p_topic_id uuid, p_partition integer) RETURNS logs
LANGUAGE plpgsql AS $$
DECLARE
    v_log logs;
BEGIN
    SELECT * INTO v_log FROM logs
        WHERE topic_id = p_topic_id AND partition = p_partition FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse_unknown_log(p_topic_id, p_partition);
    END IF;
    IF v_log.deleted_at IS NOT NULL THEN
        PERFORM refuse('TL002',
            format('topic %s (id %s) was deleted', v_log.topic_name, p_topic_id),
            'A topic created anew under this name has another id: resolve the name again.');
    END IF;
    RETURN v_log;
END
$$;

CREATE FUNCTION lock_live_topic(p_name text) RETURNS topics
LANGUAGE plpgsql AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE name = p_name AND status <> 'deleted'
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('topic %s is not tracked', p_name),
            'Begin tracking it first.');
    END IF;
    RETURN v_topic;
END
$$;

CREATE FUNCTION notify_log(p_topic_id uuid, p_partition integer) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tideline_control', 'log:' || p_topic_id || ':' || p_partition)
$$;

CREATE FUNCTION notify_topic(p_name text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_notify('tideline_control', 'topic:' || p_name)
$$;

CREATE FUNCTION notify_topic_id(p_topic_id uuid) RETURNS void
LANGUAGE sql AS $$
    SELECT notify_topic(name) FROM topics WHERE topic_id = p_topic_id
$$;

CREATE FUNCTION assert_generation(p_log logs, p_generation integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_generation IS DISTINCT FROM p_log.generation THEN
        PERFORM refuse('TL003',
            format('generation %s of %s is stale: %s is current', p_generation,
                log_label(p_log), p_log.generation),
            'Another attempt or an abort took over: stop, and observe the partition again.');
    END IF;
END
$$;

CREATE FUNCTION assert_migrating(p_log logs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_log.migration_state = 'TIERED_ONLY' THEN
        PERFORM refuse('TL016',
            format('%s is %s: its migration was aborted', log_label(p_log),
                p_log.migration_state),
            'Start the migration of the topic again.');
    END IF;
END
$$;

CREATE FUNCTION assert_positive(p_value bigint, p_what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_value, 0) < 1 THEN
        PERFORM refuse('TL018', format('%s: %s is too few', p_what, p_value),
            'Choose at least one.');
    END IF;
END
$$;

CREATE FUNCTION assert_claim_time(p_claim_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(p_claim_ms, 0) NOT BETWEEN 1 AND 86400000 THEN
        PERFORM refuse('TL018', format('a claim of %s ms is not allowed', p_claim_ms),
            'Claim for 1 to 86400000 ms, a day.');
    END IF;
END
$$;
