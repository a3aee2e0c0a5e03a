-- Topic configs that Tideline overrides in Kafka, and what the user had.

-- The user's value is kept from the first call: later ones see the override. In the round in which
-- both values were observed: an attempt that slept over an abort would keep for the user's what was
-- his before, and give that back one day. Null: whichever round it is.
CREATE FUNCTION override_config(
    p_topic_id uuid, p_key text, p_override_value text, p_user_value text, p_round integer
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('topic id %s is not tracked', p_topic_id),
            'Begin tracking it first.');
    END IF;
    PERFORM assert_round(v_topic, p_round);
    IF p_round IS NOT NULL AND v_topic.status = 'aborted' THEN
        PERFORM refuse('TL028',
            format('round %s of topic %s is over: it was aborted', p_round, v_topic.name),
            'Read the tracked topics again.');
    END IF;
    INSERT INTO config_overrides (topic_id, key, override_value, user_value)
        VALUES (p_topic_id, p_key, p_override_value, p_user_value)
        ON CONFLICT (topic_id, key) DO UPDATE SET override_value = excluded.override_value;
    PERFORM notify_topic_id(p_topic_id);
END
$$;

-- The user changed a config that is overridden: remembered for the day it is released. Answers
-- whether it is: else the change belongs into Kafka.
CREATE FUNCTION update_user_config(p_topic_id uuid, p_key text, p_user_value text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    UPDATE config_overrides SET user_value = p_user_value
        WHERE topic_id = p_topic_id AND key = p_key;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM notify_topic_id(p_topic_id);
    RETURN true;
END
$$;

-- Kafka has the user's value again. Answers false while the user's value is another one by now:
-- Kafka must get that first. Of the round in which Kafka was seen to have it: an attempt that slept
-- over an abort would let go of what a later migration holds, and with it of the user's value. Null:
-- whichever round it is.
CREATE FUNCTION release_config(
    p_topic_id uuid, p_key text, p_user_value text, p_round integer DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_topic topics;
BEGIN
    SELECT * INTO v_topic FROM topics WHERE topic_id = p_topic_id FOR NO KEY UPDATE;
    PERFORM assert_round(v_topic, p_round);
    DELETE FROM config_overrides
        WHERE topic_id = p_topic_id AND key = p_key
            AND user_value IS NOT DISTINCT FROM p_user_value;
    IF FOUND THEN
        PERFORM notify_topic_id(p_topic_id);
    END IF;
    RETURN NOT EXISTS (SELECT FROM config_overrides
        WHERE topic_id = p_topic_id AND key = p_key);
END
$$;

CREATE FUNCTION config_overrides_of(p_topic_id uuid)
RETURNS TABLE (key text, override_value text, user_value text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT key, override_value, user_value FROM config_overrides
        WHERE topic_id = p_topic_id ORDER BY key
$$;

-- What the suffix enforces from now on. A limit that is not named stays as it is.
CREATE FUNCTION update_topic_limits(
    p_topic_id uuid, p_timestamp_type text, p_max_message_bytes integer,
    p_timestamp_before_max_ms bigint, p_timestamp_after_max_ms bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    UPDATE topics SET
            timestamp_type = coalesce(p_timestamp_type, timestamp_type),
            max_message_bytes = coalesce(p_max_message_bytes, max_message_bytes),
            timestamp_before_max_ms = coalesce(p_timestamp_before_max_ms, timestamp_before_max_ms),
            timestamp_after_max_ms = coalesce(p_timestamp_after_max_ms, timestamp_after_max_ms)
        WHERE topic_id = p_topic_id AND status <> 'deleted';
    IF NOT FOUND THEN
        PERFORM refuse('TL019', format('topic id %s is not tracked', p_topic_id),
            'Read the tracked topics again.');
    END IF;
    PERFORM notify_topic_id(p_topic_id);
END
$$;

-- What topics have that do not set the config has changed in Kafka. The suffix follows while it
-- still enforces what was seen of it and the user has set nothing since; a limit that is set
-- later is the last word. Answers whether it follows.
CREATE FUNCTION follow_default_limit(
    p_topic_id uuid, p_key text, p_seen text, p_default text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_name text;
    v_enforced text;
BEGIN
    -- Locked before anything is compared: who changes a limit of the user changes config_overrides
    -- first and this row after it.
    SELECT name, CASE p_key
            WHEN 'message.timestamp.type' THEN timestamp_type
            WHEN 'max.message.bytes' THEN max_message_bytes::text
            WHEN 'message.timestamp.before.max.ms' THEN timestamp_before_max_ms::text
            WHEN 'message.timestamp.after.max.ms' THEN timestamp_after_max_ms::text
        END INTO v_name, v_enforced
        FROM topics WHERE topic_id = p_topic_id AND status <> 'deleted' FOR NO KEY UPDATE;
    IF v_enforced IS DISTINCT FROM p_seen OR EXISTS (
        SELECT FROM config_overrides
            WHERE topic_id = p_topic_id AND key = p_key AND user_value IS NOT NULL
    ) THEN
        RETURN false;
    END IF;
    UPDATE topics SET
            timestamp_type = CASE p_key WHEN 'message.timestamp.type'
                THEN p_default ELSE timestamp_type END,
            max_message_bytes = CASE p_key WHEN 'max.message.bytes'
                THEN p_default::integer ELSE max_message_bytes END,
            timestamp_before_max_ms = CASE p_key WHEN 'message.timestamp.before.max.ms'
                THEN p_default::bigint ELSE timestamp_before_max_ms END,
            timestamp_after_max_ms = CASE p_key WHEN 'message.timestamp.after.max.ms'
                THEN p_default::bigint ELSE timestamp_after_max_ms END
        WHERE topic_id = p_topic_id;
    PERFORM notify_topic(v_name);
    RETURN true;
END
$$;
