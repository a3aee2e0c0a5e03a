-- What has changed of what is tracked: gateways ask for it every few seconds, whatever is tracked;
-- and of migrations: the worker's metrics and `tideline status --watch` do.

CREATE FUNCTION keep_topic_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO tracking_changes (name) VALUES (OLD.name);
    END IF;
    IF TG_OP <> 'DELETE' AND (TG_OP = 'INSERT' OR NEW.name <> OLD.name) THEN
        INSERT INTO tracking_changes (name) VALUES (NEW.name);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION keep_log_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO tracking_changes (name) VALUES (OLD.topic_name);
    ELSE
        INSERT INTO tracking_changes (name, partition) VALUES (NEW.topic_name, NEW.partition);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION keep_override_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    INSERT INTO tracking_changes (name)
        SELECT name FROM topics
        WHERE topic_id = CASE TG_OP WHEN 'DELETE' THEN OLD.topic_id ELSE NEW.topic_id END;
    RETURN NULL;
END
$$;

-- Once in a transaction: readiness is kept a hundred partitions at a time.
CREATE FUNCTION keep_phase_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    INSERT INTO tracking_changes (name, routed)
        SELECT l.topic_name, false FROM logs AS l
        WHERE l.log_id = CASE TG_OP WHEN 'DELETE' THEN OLD.log_id ELSE NEW.log_id END
            AND NOT EXISTS (SELECT FROM tracking_changes AS c
                WHERE c.changed_by = pg_current_xact_id() AND c.name = l.topic_name);
    RETURN NULL;
END
$$;

-- Of what is told beside a migration: by the topic's name, or by its id.
CREATE FUNCTION keep_told_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_row jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO tracking_changes (name, routed)
        SELECT n.name, false
        FROM (SELECT v_row ->> 'topic' AS name WHERE v_row ? 'topic'
              UNION ALL
              SELECT t.name FROM topics AS t
                  WHERE NOT v_row ? 'topic' AND t.topic_id = (v_row ->> 'topic_id')::uuid) AS n
        WHERE NOT EXISTS (SELECT FROM tracking_changes AS c
            WHERE c.changed_by = pg_current_xact_id() AND c.name = n.name);
    RETURN NULL;
END
$$;

CREATE TRIGGER keep_topic_change AFTER INSERT OR UPDATE OR DELETE ON topics
    FOR EACH ROW EXECUTE FUNCTION keep_topic_change();
-- Not of offsets that move with commits, retention and tiering: no route depends on them.
CREATE TRIGGER keep_log_change AFTER INSERT OR DELETE OR UPDATE OF
        migration_state, generation, quiesce, diskless_log_start_offset, diskless_log_start_epoch,
        prefix_max_timestamp, tiering_complete, accepted_gap_from, deleted_at ON logs
    FOR EACH ROW EXECUTE FUNCTION keep_log_change();
CREATE TRIGGER keep_override_change AFTER INSERT OR UPDATE OR DELETE ON config_overrides
    FOR EACH ROW EXECUTE FUNCTION keep_override_change();
CREATE TRIGGER keep_phase_begun AFTER INSERT OR DELETE ON migration_phases
    FOR EACH ROW EXECUTE FUNCTION keep_phase_change();
-- Not of evidence alone: a partition that waits is looked at again and again.
CREATE TRIGGER keep_phase_change AFTER UPDATE ON migration_phases FOR EACH ROW
    WHEN ((OLD.status, OLD.generation, OLD.started_at, OLD.ended_at, OLD.waiting_reason)
        IS DISTINCT FROM
        (NEW.status, NEW.generation, NEW.started_at, NEW.ended_at, NEW.waiting_reason))
    EXECUTE FUNCTION keep_phase_change();

CREATE TRIGGER keep_told_change AFTER INSERT OR UPDATE OR DELETE ON migration_requests
    FOR EACH ROW EXECUTE FUNCTION keep_told_change();
CREATE TRIGGER keep_told_change AFTER INSERT OR DELETE ON operator_actions
    FOR EACH ROW EXECUTE FUNCTION keep_told_change();
CREATE TRIGGER keep_told_change AFTER INSERT OR UPDATE OR DELETE ON verify_verdicts
    FOR EACH ROW EXECUTE FUNCTION keep_told_change();
CREATE TRIGGER keep_told_begun AFTER INSERT OR DELETE ON watch_findings
    FOR EACH ROW EXECUTE FUNCTION keep_told_change();
-- Not of the time alone at which it was seen once more.
CREATE TRIGGER keep_told_change AFTER UPDATE ON watch_findings FOR EACH ROW
    WHEN ((OLD.detail, OLD.ended_at) IS DISTINCT FROM (NEW.detail, NEW.ended_at))
    EXECUTE FUNCTION keep_told_change();

-- From where a later reading goes on, and of which history: after a failover or a restore the numbers
-- of transactions may stand for others. Null on a standby: there everything is read each time.
CREATE FUNCTION place_of_reading() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT format('%s/%s/%s:%s', s.system_identifier, current_timeline(), i.history_id,
            pg_snapshot_xmin(pg_current_snapshot()))
        FROM installation AS i, pg_control_system() AS s);
END
$$;

CREATE FUNCTION transaction_of_place(p_place text) RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT split_part(p_place, ':', 2)::xid8
$$;

-- From which transaction on a reading goes on that answered p_since; null: that is not known. p_now: the
-- place of this reading.
CREATE FUNCTION transaction_since(p_since text, p_now text) RETURNS xid8
LANGUAGE sql STABLE AS $$
    SELECT t.since
    FROM tracking_changes_kept AS k, (SELECT
        CASE WHEN split_part(p_since, ':', 1) = split_part(p_now, ':', 1)
            THEN transaction_of_place(p_since) END AS since) AS t
    WHERE t.since BETWEEN k.forgotten_before AND transaction_of_place(p_now)
$$;

-- Since a reading that answered p_since. The first row says from where the next one goes on, the
-- others each name a topic that has changed, with what is tracked under that name now, if anything
-- is. A transaction that was still open at the former reading is at or past p_since, so what
-- commits late is told by the next one. upto is null where changes since then were forgotten, and
-- where p_since is of another history: read everything.
-- Of a topic of which partitions alone have changed come those, and nothing else.
-- identity, in the first row: server_identity(p_beat, p_token), of the server that has answered this.
CREATE FUNCTION tracked_changes(
    p_since text, p_beat bigint DEFAULT NULL, p_token uuid DEFAULT NULL
)
RETURNS TABLE (
    upto text, changed text, name text, topic_id uuid, kind text, status text, timestamp_type text,
    max_message_bytes integer, timestamp_before_max_ms bigint, timestamp_after_max_ms bigint,
    round integer, partitions jsonb, overrides jsonb, completion_forced_by text,
    by_partition boolean, identity jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH reading AS (
        SELECT p.upto, transaction_since(p_since, p.upto) AS since
        FROM (SELECT place_of_reading() AS upto) AS p
    ), noted AS (
        SELECT c.name, bool_and(c.partition IS NOT NULL) AS by_partition,
               array_agg(DISTINCT c.partition) AS partitions
            FROM tracking_changes AS c
            WHERE c.changed_by >= (SELECT since FROM reading) AND c.routed
            GROUP BY c.name
    )
    SELECT CASE WHEN r.since IS NOT NULL THEN r.upto END,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           (SELECT to_jsonb(i) FROM server_identity(p_beat, p_token) AS i)
        FROM reading AS r
    UNION ALL
    SELECT NULL, n.name, t.*, false, NULL FROM noted AS n
        LEFT JOIN LATERAL tracked_topics(n.name) AS t ON true
        WHERE NOT n.by_partition
    UNION ALL
    SELECT NULL, NULL, n.name, t.topic_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           coalesce((SELECT jsonb_agg(partition_view(l)) FROM logs AS l
               WHERE l.topic_id = t.topic_id AND l.partition = ANY (n.partitions)), '[]'),
           NULL, NULL, true, NULL
        FROM noted AS n
        JOIN topics AS t ON t.name = n.name AND t.tracked AND t.status <> 'deleted'
        WHERE n.by_partition
$$;

-- Where a reading of changes goes on that follows a reading of everything made after this.
CREATE FUNCTION tracked_changes_begin() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT place_of_reading()
$$;

-- Names under which migrations have changed since a reading that answered p_since, late commits
-- among them as for tracked_changes; null: that is not known, read everything. p_now: the place of
-- this reading.
CREATE FUNCTION names_changed_since(p_since text, p_now text) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_since CONSTANT xid8 := transaction_since(p_since, p_now);
BEGIN
    IF v_since IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(SELECT DISTINCT name FROM tracking_changes WHERE changed_by >= v_since);
END
$$;

-- Called by a periodic job.
CREATE FUNCTION forget_tracking_changes(p_kept_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_old xid8 := (SELECT max(changed_by) FROM tracking_changes
        WHERE noted_at <= clock_timestamp() - p_kept_ms * interval '1 millisecond'
            AND changed_by < pg_snapshot_xmin(pg_current_snapshot()));
    v_forgotten bigint;
BEGIN
    IF v_old IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE tracking_changes_kept SET forgotten_before = (v_old::text::bigint + 1)::text::xid8;
    DELETE FROM tracking_changes WHERE changed_by <= v_old;
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END
$$;
