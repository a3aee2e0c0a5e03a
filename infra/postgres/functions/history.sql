-- Which history of commits this is, and whether it still holds what was seen in it.

-- Grows with each promotion. Fails on a standby.
CREATE FUNCTION current_timeline() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
$$;

-- Whether it is known that this timeline lacks no commit that was acknowledged before it.
CREATE FUNCTION is_settled() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT i.timeline = current_timeline() FROM installation AS i
$$;

-- Nothing is committed, read by clients or taken from a gateway before that (schedule 16).
CREATE FUNCTION assert_settled() RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT is_settled() THEN
        PERFORM refuse('TL052',
            format('timeline %s was promoted, and it is not known yet that it lacks nothing: %s '
                'not shown the last commit', current_timeline(),
                coalesce((SELECT 'gateway ' || string_agg(format('%s at %s', g.gateway_id, g.address),
                    ', gateway ' ORDER BY g.gateway_id) || ' has'
                    FROM gateways AS g
                    WHERE g.status = 'active' AND g.timeline <> current_timeline()),
                    'the next renewal of a gateway tells; none has')),
            'Wait: a gateway that lives shows it by its next renewal, and the worker looks into the '
            'bucket for one that stays away. Start the worker if it does not run.');
    END IF;
END
$$;

-- Commits are taken on this timeline when every gateway that was active before it has renewed on it:
-- whoever connects asks for the last commit that it was answered, before anything else. A halted
-- history stays as it is.
CREATE FUNCTION settle() RETURNS void
LANGUAGE sql AS $$
    UPDATE installation SET timeline = current_timeline()
        WHERE NOT is_settled() AND halted IS NULL
            AND NOT EXISTS (SELECT FROM gateways AS g
                WHERE g.status = 'active' AND g.timeline <> current_timeline())
$$;

-- Gateways that were active before a promotion and have not renewed after it, with the keys that they
-- have registered and not committed, as far as they are here. beat_ms: when the newest beat was
-- written; what is missing was committed after it. None once the timeline is settled.
CREATE FUNCTION unheard_gateways()
RETURNS TABLE (
    timeline bigint, gateway_id integer, incarnation uuid, address text, lease_ms integer,
    keys text[], beat_ms bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT current_timeline(), g.gateway_id, g.incarnation, g.address, g.lease_ms,
           ARRAY(SELECT f.object_key FROM wal_files AS f
               WHERE f.status = 'registered' AND f.incarnation = g.incarnation ORDER BY f.file_id),
           (SELECT epoch_ms(b.at) FROM history_beats AS b ORDER BY b.beat DESC LIMIT 1)
    FROM gateways AS g
    WHERE g.status = 'active' AND NOT is_settled() AND g.timeline <> current_timeline()
    ORDER BY g.gateway_id
$$;

-- What the bucket says of gateways that stay away: p_keys are objects with batches that nobody has
-- told to be given up, each with its stream and its place there. One that may have been committed by
-- a process of which nothing is known here that came after it, and that is not committed here, is
-- the evidence of a loss: it halts the history, and why is answered. Null: nothing is missing of
-- p_gone. A commit of an incarnation that has ended here, or behind which another one of its stream is
-- committed here, was never answered: streams are committed in their order.
CREATE FUNCTION settle_for_absent(
    p_timeline bigint, p_gone uuid[], p_keys text[], p_incarnations uuid[], p_sequences bigint[]
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_why text;
BEGIN
    PERFORM FROM installation FOR NO KEY UPDATE;
    IF is_settled() OR p_timeline <> current_timeline() THEN
        RETURN NULL;
    END IF;
    SELECT format('timeline %s has not got the commit of %s objects that are in the bucket and may '
            'have been acknowledged: %s. Their gateway is gone, and so is the primary that would '
            'know', p_timeline, count(*), (array_agg(o.key ORDER BY o.key))[1]
            || CASE WHEN count(*) > 1 THEN ' and others' ELSE '' END)
        INTO v_why
        FROM unnest(p_keys, p_incarnations, p_sequences) AS o (key, incarnation, sequence)
        WHERE NOT coalesce(has_committed(o.key), false)
            AND NOT EXISTS (SELECT FROM ended_incarnations AS e
                WHERE e.incarnation = o.incarnation)
            AND NOT EXISTS (SELECT FROM gateways AS g
                WHERE g.incarnation = o.incarnation
                    AND (g.status <> 'active' OR g.timeline = p_timeline))
            AND o.sequence > coalesce((SELECT max(f.stream_sequence) FROM wal_files AS f
                WHERE f.incarnation = o.incarnation AND f.status <> 'registered'), -1)
        HAVING count(*) > 0;
    IF v_why IS NOT NULL THEN
        PERFORM halt_history(history_id, v_why) FROM installation;
        RETURN v_why;
    END IF;
    UPDATE gateways SET timeline = p_timeline
        WHERE status = 'active' AND incarnation = ANY (p_gone);
    PERFORM settle();
    RETURN NULL;
END
$$;

-- Servers that stream all of this one, but for those that only take a copy or decode it. sync_state is
-- null where tideline_owner has not got pg_read_all_stats.
CREATE FUNCTION attached_standbys() RETURNS TABLE (name text, sync_state text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(nullif(r.application_name, ''), 'process ' || r.pid), r.sync_state
    FROM pg_stat_replication AS r
    WHERE coalesce(r.state, 'streaming') IN ('streaming', 'catchup')
        AND NOT EXISTS (SELECT FROM pg_replication_slots AS s
            WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
    ORDER BY r.application_name, r.pid
$$;

-- p_beat and p_token: a beat that was seen before; knows: whether it is here, or older than those
-- that are kept. lsn: bytes of WAL that no crash takes back. settled: see is_settled.
CREATE FUNCTION server_identity(
    p_beat bigint, p_token uuid,
    OUT installation_id uuid, OUT history_id uuid, OUT cluster_id text,
    OUT system_identifier text, OUT timeline bigint, OUT lsn bigint,
    OUT beat bigint, OUT token uuid, OUT waits_for_standby boolean, OUT knows boolean,
    OUT halted text, OUT settled boolean
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT i.installation_id, i.history_id, i.cluster_id, s.system_identifier::text,
           current_timeline(),
           pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint,
           b.beat, b.token,
           current_setting('synchronous_standby_names') <> '',
           CASE WHEN p_beat IS NOT NULL THEN
               p_beat < (SELECT min(k.beat) FROM history_beats AS k)
               OR EXISTS (SELECT FROM history_beats AS k
                   WHERE k.beat = p_beat AND k.token = p_token)
           END,
           i.halted, is_settled()
    FROM installation AS i, pg_control_system() AS s,
        (SELECT n.beat, n.token FROM history_beats AS n ORDER BY n.beat DESC LIMIT 1) AS b
$$;

-- Whether what was committed with an object is here; null: the object is not known, was never
-- registered or is collected since. A commit is newer than every beat that its gateway can have seen.
CREATE FUNCTION has_committed(p_object_key text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT f.status <> 'registered' FROM wal_files AS f WHERE f.object_key = p_object_key
$$;

-- One more beat, but for a timeline that is not settled: its newest one says from when on something
-- may be missing. Of the oldest, those beyond 100,000 (six days of one every five seconds) go.
CREATE FUNCTION beat_history() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_beat bigint;
BEGIN
    PERFORM FROM installation FOR NO KEY UPDATE;
    IF NOT is_settled() THEN
        RETURN (SELECT max(b.beat) FROM history_beats AS b);
    END IF;
    INSERT INTO history_beats (beat) SELECT max(b.beat) + 1 FROM history_beats AS b
        RETURNING beat INTO v_beat;
    DELETE FROM history_beats WHERE beat <= v_beat - 100000;
    RETURN v_beat;
END
$$;

-- The first Kafka cluster that a process names is the installation's for good.
CREATE FUNCTION bind_cluster(p_cluster_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_bound text;
BEGIN
    IF coalesce(p_cluster_id, '') = '' THEN
        PERFORM refuse('TL018', 'the brokers name no cluster id',
            'Wait until the controllers have a leader, then try again.');
    END IF;
    UPDATE installation SET cluster_id = p_cluster_id WHERE cluster_id IS NULL;
    SELECT cluster_id INTO v_bound FROM installation;
    IF v_bound <> p_cluster_id THEN
        PERFORM refuse('TL050',
            format('this control plane belongs to Kafka cluster %s, the brokers are of cluster %s',
                v_bound, p_cluster_id),
            'One installation serves one Kafka cluster: correct the address of the brokers or of '
            'Postgres, or give this cluster a Postgres server of its own.');
    END IF;
END
$$;

-- Somebody misses a commit that was acknowledged. The first word stays.
CREATE FUNCTION halt_history(p_history uuid, p_why text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE installation SET halted = said_by(left(p_why, 1000))
        WHERE halted IS NULL AND history_id = p_history
$$;

-- What was handed out after the state that is here now may still be held by somebody: an activity
-- with its generation, a splitter or merger with its token. Both go on far behind all of that, and
-- every attempt that is under way begins anew.
CREATE FUNCTION outrun_fencing_tokens() RETURNS void
LANGUAGE sql AS $$
    SELECT setval('tiering_tokens', nextval('tiering_tokens') + 1000000000);
    DELETE FROM quiesce_acks;
    DELETE FROM quiesce_witnesses;
    UPDATE logs SET generation = generation + 1000000,
            quiesce = CASE WHEN diskless_log_start_offset < 0 THEN 'open' ELSE quiesce END,
            quiesce_deadline = CASE WHEN diskless_log_start_offset >= 0 THEN quiesce_deadline END
        WHERE log_id IN (SELECT log_id FROM logs WHERE deleted_at IS NULL
            ORDER BY log_id FOR NO KEY UPDATE);
$$;

-- An operator goes on with what is here: everybody who knew the history before stops, and starts
-- from this one.
CREATE FUNCTION begin_history(p_begun_by text, p_reason text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_before uuid;
    v_history uuid := gen_random_uuid();
BEGIN
    IF '' IN (coalesce(p_begun_by, ''), coalesce(p_reason, '')) THEN
        PERFORM refuse('TL018', 'nobody, or no reason, is named for a new history',
            'Say who has compared Postgres with what clients were told, and what was found.');
    END IF;
    SELECT history_id INTO v_before FROM installation FOR NO KEY UPDATE;
    INSERT INTO histories (history_id, before_id, begun_by, reason)
        VALUES (v_history, v_before, p_begun_by, p_reason);
    UPDATE installation SET history_id = v_history, halted = NULL, timeline = current_timeline();
    PERFORM outrun_fencing_tokens();
    PERFORM beat_history();
    RETURN v_history;
END
$$;

-- Those of these keys of the diskless bucket that nothing here has ever heard of.
CREATE FUNCTION unknown_keys(p_keys text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT k FROM unnest(p_keys) AS k
    WHERE NOT is_known_object('diskless', k)
$$;
