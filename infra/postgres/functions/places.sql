-- How many topics migrate at once. Places go by the order in which they were first asked for, and to
-- whoever is next, whether it asks right now or not: one that has stopped asking holds nobody up for
-- longer than it takes to find out that it is gone.

-- Ask for a place, or whether there is one by now. p_places: how many there are. Of those that have a
-- place, the ones unheard of for p_doubt_ms are named once, to one caller, who looks for them.
CREATE FUNCTION take_migration_place(
    p_topic_id uuid, p_topic text, p_run text, p_places integer, p_doubt_ms bigint
) RETURNS TABLE (taken boolean, before bigint, doubtful jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_now timestamptz;
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
            LIMIT greatest(0, p_places -
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
                FROM looked_for AS l)
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
