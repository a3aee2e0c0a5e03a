-- How many topics migrate at once. Places go by the order in which they were first asked for, and to
-- whoever is next, whether it asks right now or not: one that has stopped asking holds nobody up for
-- longer than it takes to find out that it is gone.

-- What operators allow now; no row: they have never said.
CREATE FUNCTION migration_limits_of() RETURNS SETOF migration_limits
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM migration_limits ORDER BY number DESC LIMIT 1
$$;

CREATE FUNCTION set_migration_limits(
    p_topics integer, p_partitions integer, p_set_by text, p_reason text
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO migration_limits (topics, partitions, set_by, reason)
        VALUES (p_topics, p_partitions, p_set_by, p_reason)
$$;

-- How many of the topic's partitions may be between validation and B0, of those that operators allow
-- to all topics together; NULL: no limit. Topics that have a place and partitions without B0 share
-- evenly, and what is left over goes to those that asked for their place first: all shares together
-- are the limit.
CREATE FUNCTION migration_share(p_topic_id uuid) RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH sharing AS (
        SELECT p.topic_id, row_number() OVER (ORDER BY p.number) - 1 AS before,
               count(*) OVER () AS topics
        FROM migration_places AS p
        WHERE p.taken_at IS NOT NULL AND (p.topic_id = p_topic_id OR EXISTS (
            SELECT FROM logs AS l WHERE l.topic_id = p.topic_id AND l.deleted_at IS NULL
                AND l.migration_state = 'MIGRATING'))
    )
    SELECT (n.partitions / s.topics + (s.before < n.partitions % s.topics)::integer)::integer
    FROM migration_limits_of() AS n, sharing AS s WHERE s.topic_id = p_topic_id
$$;

-- Ask for a place, or whether there is one by now. p_places: how many there are, unless operators have
-- said otherwise. Of those that have a
-- place, the ones unheard of for p_doubt_ms are named once, to one caller, who looks for them.
CREATE FUNCTION take_migration_place(
    p_topic_id uuid, p_topic text, p_run text, p_places integer, p_doubt_ms bigint
) RETURNS TABLE (taken boolean, before bigint, doubtful jsonb, places integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_now timestamptz;
    v_places integer := coalesce((SELECT n.topics FROM migration_limits_of() AS n), p_places);
BEGIN
    LOCK TABLE migration_places IN EXCLUSIVE MODE;
    v_now := clock_timestamp();
    INSERT INTO migration_places AS p (topic_id, topic, run, seen_at)
        VALUES (p_topic_id, p_topic, p_run, v_now)
        ON CONFLICT (topic_id) DO UPDATE
            SET topic = excluded.topic, run = excluded.run, seen_at = v_now;
    UPDATE migration_places AS p SET taken_at = v_now
        WHERE p.topic_id IN (
            SELECT w.topic_id FROM migration_places AS w WHERE w.taken_at IS NULL
            ORDER BY w.number
            LIMIT greatest(0, v_places -
                (SELECT count(*) FROM migration_places AS h WHERE h.taken_at IS NOT NULL)));
    RETURN QUERY
        WITH looked_for AS (
            UPDATE migration_places AS p SET seen_at = v_now
                WHERE p.taken_at IS NOT NULL AND p.topic_id <> p_topic_id
                    AND p.seen_at <= v_now - p_doubt_ms * interval '1 millisecond'
                RETURNING p.topic_id, p.topic, p.run, p.number
        )
        SELECT own.taken_at IS NOT NULL,
               (SELECT count(*) FROM migration_places AS w
                WHERE w.taken_at IS NULL AND w.number < own.number),
               (SELECT coalesce(jsonb_agg(jsonb_build_object(
                    'topic_id', l.topic_id, 'topic', l.topic, 'run', l.run) ORDER BY l.number), '[]')
                FROM looked_for AS l),
               v_places
        FROM migration_places AS own WHERE own.topic_id = p_topic_id;
END
$$;

-- False: that run has no place and waits for none, as when a later run of the topic asked meanwhile.
CREATE FUNCTION leave_migration_place(p_topic_id uuid, p_run text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH left_now AS (
        DELETE FROM migration_places WHERE topic_id = p_topic_id AND run = p_run RETURNING 1
    )
    SELECT EXISTS (SELECT FROM left_now)
$$;
