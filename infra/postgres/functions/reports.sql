-- What gateways say of Kafka, and the worker decides: it can ask the brokers, SQL cannot. So no
-- gateway's credentials set a B0, hide a name or bury a topic.

-- A birth is asked for, by name alone; repeats are one, and tell what the worker has refused: null
-- while it has not. One that was refused may be asked for again. Those of ten minutes ago have no
-- gateway that waits (BIRTH_PATIENCE).
CREATE FUNCTION ask_birth(
    p_name text, p_partitions integer, p_timestamp_type text, p_max_message_bytes integer,
    p_timestamp_before_max_ms bigint, p_timestamp_after_max_ms bigint, p_given_max_message_bytes text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_refused text;
BEGIN
    IF p_name !~ '^[a-zA-Z0-9._-]{1,249}$' OR p_partitions NOT BETWEEN 1 AND 1000000 THEN
        PERFORM refuse('TL018',
            format('Kafka has no topic %L of %s partitions', left(p_name, 300), p_partitions),
            'Name one of 1 to 249 letters, digits, dots, underscores and hyphens, with 1 to '
            '1000000 partitions.');
    END IF;
    IF (SELECT count(*) FROM asked_births WHERE asked_by = session_user AND name <> p_name) >= 1000 THEN
        PERFORM refuse('TL018', format('%s asks for 1000 topics already', session_user),
            'Wait until some of them are created.');
    END IF;
    DELETE FROM asked_births WHERE name = p_name AND asked_by = session_user
        AND (refused IS NOT NULL OR asked_at < clock_timestamp() - interval '10 minutes')
        RETURNING refused INTO v_refused;
    IF v_refused IS NULL THEN
        INSERT INTO asked_births (name, asked_by, partitions, timestamp_type, max_message_bytes,
                timestamp_before_max_ms, timestamp_after_max_ms, given_max_message_bytes)
            VALUES (p_name, session_user, p_partitions, p_timestamp_type, p_max_message_bytes,
                p_timestamp_before_max_ms, p_timestamp_after_max_ms, p_given_max_message_bytes)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pg_notify('tideline_reports', '');
        END IF;
    END IF;
    RETURN v_refused;
END
$$;

-- The caller waits for it no more, and nobody else's word is touched.
CREATE FUNCTION withdraw_birth(p_name text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    DELETE FROM asked_births WHERE name = p_name AND asked_by = session_user
$$;

-- Whether no live topic has the id: until then it is to be looked for.
CREATE FUNCTION report_deletion(p_topic_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM topics WHERE topic_id = p_topic_id AND status <> 'deleted') THEN
        RETURN true;
    END IF;
    INSERT INTO reported_deletions (topic_id, reported_by) VALUES (p_topic_id, session_user)
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM pg_notify('tideline_reports', '');
    END IF;
    RETURN false;
END
$$;

-- Births that have not ended, at most 1000: those that somebody waits for, with what the first one said, and those
-- that were begun and nobody waits for (wanted: false).
CREATE FUNCTION open_births()
RETURNS TABLE (
    name text, wanted boolean, partitions integer, timestamp_type text, max_message_bytes integer,
    timestamp_before_max_ms bigint, timestamp_after_max_ms bigint, given_max_message_bytes text,
    topic_key bigint, topic_id uuid, kind text, status text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH asked AS (
        SELECT DISTINCT ON (a.name) a.* FROM asked_births AS a
            WHERE a.refused IS NULL AND a.asked_at >= clock_timestamp() - interval '10 minutes'
            ORDER BY a.name, a.asked_at
    ), begun AS (
        SELECT t.* FROM topics AS t
            WHERE t.status <> 'deleted' AND (
                t.name IN (SELECT a.name FROM asked AS a)
                OR (t.status = 'tracking' AND t.kind = 'born_diskless'))
    )
    SELECT coalesce(a.name, b.name), a.name IS NOT NULL, a.partitions,
           coalesce(a.timestamp_type, b.timestamp_type),
           coalesce(a.max_message_bytes, b.max_message_bytes),
           a.timestamp_before_max_ms, a.timestamp_after_max_ms, a.given_max_message_bytes,
           b.topic_key, b.topic_id, b.kind, b.status
    FROM asked AS a FULL JOIN begun AS b ON b.name = a.name
    ORDER BY 1 LIMIT 1000
$$;

-- Every gateway is to know the name before Kafka has the topic; its id comes with complete_creation.
CREATE FUNCTION begin_birth(p_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_asked asked_births;
BEGIN
    SELECT * INTO v_asked FROM asked_births WHERE name = p_name AND refused IS NULL
        ORDER BY asked_at LIMIT 1;
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('no gateway asks for a topic %s', p_name),
            'Create it through a gateway.');
    END IF;
    PERFORM begin_tracking(p_name, NULL, 'born_diskless', v_asked.partitions,
        v_asked.timestamp_type, v_asked.max_message_bytes, NULL);
END
$$;

CREATE FUNCTION refuse_birth(p_name text, p_why text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE asked_births SET refused = p_why WHERE name = p_name
$$;

-- The oldest 1000.
CREATE FUNCTION open_deletions()
RETURNS TABLE (topic_id uuid, name text, reported_by text, reported_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT r.topic_id, t.name, r.reported_by, r.reported_at
    FROM reported_deletions AS r JOIN topics AS t USING (topic_id)
    WHERE t.status <> 'deleted' ORDER BY r.reported_at LIMIT 1000
$$;

-- Kafka has the topic, or the topic is buried: there is nothing to look for.
CREATE FUNCTION settle_deletion(p_topic_id uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    DELETE FROM reported_deletions WHERE topic_id = p_topic_id
$$;
