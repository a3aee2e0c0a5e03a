-- Which topic a name means, and which ids mean none any more.

-- A tombstone: the id is refused for ever, the name is free. Waits for commits that hold a
-- partition, and every later one sees it. The rows go later, in small steps, by prune_batches.
CREATE FUNCTION delete_topic(
    p_topic_id uuid, p_by text DEFAULT 'gateway', p_why text DEFAULT 'Kafka deleted it'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id
        FOR NO KEY UPDATE;
    IF NOT FOUND OR v_topic.status = 'deleted' THEN
        RETURN;
    END IF;
    UPDATE topics SET status = 'deleted', tracked = false, deleted_at = clock_timestamp(),
            deleted_by = p_by, deleted_why = p_why
        WHERE topic_key = v_topic.topic_key;
    PERFORM FROM logs WHERE topic_id = p_topic_id ORDER BY log_id FOR NO KEY UPDATE;
    UPDATE logs SET deleted_at = clock_timestamp() WHERE topic_id = p_topic_id;
    PERFORM notify_topic(v_topic.name);
END
$$;

-- Every topic that is not deleted, also one that gateways let go of after an abort.
CREATE FUNCTION live_topics()
RETURNS TABLE (
    topic_key bigint, name text, topic_id uuid, kind text, status text, tracked boolean,
    created_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.topic_key, t.name, t.topic_id, t.kind, t.status, t.tracked, t.created_at
    FROM topics AS t WHERE t.status <> 'deleted' ORDER BY t.name
$$;

-- Tombstones of the last p_within_ms, newest first, at most p_limit.
CREATE FUNCTION deleted_topics(p_within_ms bigint, p_limit integer)
RETURNS TABLE (
    topic_id uuid, name text, deleted_at timestamptz, deleted_by text, deleted_why text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.topic_id, t.name, t.deleted_at, t.deleted_by, t.deleted_why
    FROM topics AS t
    WHERE t.status = 'deleted'
        AND t.deleted_at > clock_timestamp() - p_within_ms * interval '1 millisecond'
    ORDER BY t.deleted_at DESC, t.topic_key DESC LIMIT p_limit
$$;

-- A creation that did not end lets go of its name. By its key: another creation of the name may
-- have begun meanwhile. False: it has an id by now, or is gone.
CREATE FUNCTION release_birth(p_topic_key bigint, p_by text, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics
        WHERE topic_key = p_topic_key AND topic_id IS NULL AND status <> 'deleted'
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM bury_birth(v_topic, p_by, p_why);
    RETURN true;
END
$$;

CREATE FUNCTION bury_birth(p_topic topics, p_by text, p_why text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tracking_acks WHERE topic_key = p_topic.topic_key;
    UPDATE topics SET status = 'deleted', tracked = false, deleted_at = clock_timestamp(),
            deleted_by = p_by, deleted_why = p_why
        WHERE topic_key = p_topic.topic_key;
    PERFORM notify_topic(p_topic.name);
END
$$;
