-- Planned waves of migrations: what became of their topics, and which of them were aborted.

-- The newest outcome of a topic replaces the one before.
CREATE FUNCTION record_plan_outcome(
    p_plan text, p_topics text[], p_outcome text, p_reason text, p_run text
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO plan_outcomes AS o (plan, topic, outcome, reason, run)
        SELECT DISTINCT p_plan, t.topic, p_outcome, p_reason, p_run FROM unnest(p_topics) AS t (topic)
        ON CONFLICT (plan, topic) DO UPDATE SET outcome = excluded.outcome,
            reason = excluded.reason, run = excluded.run, changed_at = excluded.changed_at
$$;

CREATE FUNCTION plan_outcomes_of(p_plan text)
RETURNS TABLE (topic text, outcome text, reason text, run text, changed_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT topic, outcome, reason, run, changed_at FROM plan_outcomes
        WHERE plan = p_plan ORDER BY topic
$$;

-- Of these topics, those whose last migration was aborted, by whomever.
CREATE FUNCTION aborted_topics(p_topics text[])
RETURNS TABLE (topic text, topic_id uuid, aborted_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT name, topic_id, coalesce(aborted_at, created_at) FROM topics
        WHERE name = ANY (p_topics) AND status = 'aborted' AND kind = 'migrated'
        ORDER BY name
$$;

-- Of these topics, those of which the last that was told, in any plan, is that a person rejected them.
CREATE FUNCTION rejected_topics(p_topics text[])
RETURNS TABLE (topic text, plan text, reason text, run text, changed_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT topic, plan, reason, run, changed_at FROM (
        SELECT DISTINCT ON (o.topic) o.* FROM plan_outcomes AS o
            WHERE o.topic = ANY (p_topics) ORDER BY o.topic, o.changed_at DESC
    ) AS newest
    WHERE outcome = 'rejected' ORDER BY topic
$$;
