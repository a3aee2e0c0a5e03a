-- What the worker's watches see in Kafka that disagrees with what stands here.

-- All that one look at a topic found: what is not among it any more has ended.
CREATE FUNCTION record_findings(p_topic_id uuid, p_findings jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM topics WHERE topic_id = p_topic_id AND status <> 'deleted') THEN
        RETURN;
    END IF;
    INSERT INTO watch_findings (topic_id, kind, subject, detail)
        SELECT p_topic_id, f.kind, f.subject, f.detail
        FROM jsonb_to_recordset(p_findings) AS f(kind text, subject text, detail jsonb)
        ON CONFLICT (topic_id, kind, subject) DO UPDATE
            SET detail = excluded.detail, last_seen_at = excluded.last_seen_at, ended_at = NULL;
    UPDATE watch_findings AS w SET ended_at = clock_timestamp()
        WHERE topic_id = p_topic_id AND ended_at IS NULL
            AND NOT EXISTS (
                SELECT FROM jsonb_to_recordset(p_findings) AS f(kind text, subject text)
                WHERE f.kind = w.kind AND f.subject = w.subject);
END
$$;

-- Of one live topic or of all; those that have ended, too.
CREATE FUNCTION watch_findings_of(p_topic text)
RETURNS TABLE (
    topic text, topic_id uuid, kind text, subject text, detail jsonb, first_seen_at timestamptz,
    last_seen_at timestamptz, ended_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.name, w.topic_id, w.kind, w.subject, w.detail, w.first_seen_at, w.last_seen_at,
           w.ended_at
    FROM watch_findings AS w
    JOIN topics AS t USING (topic_id)
    WHERE t.status <> 'deleted' AND (p_topic IS NULL OR t.name = p_topic)
    ORDER BY t.name, w.kind, w.subject
$$;
