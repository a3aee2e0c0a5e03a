-- Which history of commits this is, and whether it still holds what was seen in it.

-- p_beat and p_token: a beat that was seen before; knows: whether it is here, or older than those
-- that are kept. lsn: bytes of WAL that no crash takes back. Fails on a standby.
CREATE FUNCTION server_identity(
    p_beat bigint, p_token uuid,
    OUT installation_id uuid, OUT history_id uuid, OUT cluster_id text,
    OUT system_identifier text, OUT timeline bigint, OUT lsn bigint,
    OUT beat bigint, OUT token uuid, OUT waits_for_standby boolean, OUT knows boolean,
    OUT halted text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT i.installation_id, i.history_id, i.cluster_id, s.system_identifier::text,
           ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint,
           pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint,
           b.beat, b.token,
           current_setting('synchronous_standby_names') <> '',
           CASE WHEN p_beat IS NOT NULL THEN
               p_beat < (SELECT min(k.beat) FROM history_beats AS k)
               OR EXISTS (SELECT FROM history_beats AS k
                   WHERE k.beat = p_beat AND k.token = p_token)
           END,
           i.halted
    FROM installation AS i, pg_control_system() AS s,
        (SELECT n.beat, n.token FROM history_beats AS n ORDER BY n.beat DESC LIMIT 1) AS b
$$;

-- Whether what was committed with an object is here; null: the object is not known, was never
-- registered or is collected since. A commit is newer than every beat that its gateway can have seen.
CREATE FUNCTION has_committed(p_object_key text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT f.status <> 'registered' FROM wal_files AS f WHERE f.object_key = p_object_key
$$;

-- One more beat. Of the oldest, those beyond 100,000 (six days of one every five seconds) go.
CREATE FUNCTION beat_history() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_beat bigint;
BEGIN
    PERFORM FROM installation FOR NO KEY UPDATE;
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
CREATE FUNCTION halt_history(p_why text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    UPDATE installation SET halted = said_by(left(p_why, 1000)) WHERE halted IS NULL
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
    UPDATE installation SET history_id = v_history, halted = NULL;
    PERFORM outrun_fencing_tokens();
    PERFORM beat_history();
    RETURN v_history;
END
$$;

-- How many of these keys of the diskless bucket nothing here has ever heard of.
CREATE FUNCTION count_unknown_keys(p_keys text[]) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT count(*) FROM unnest(p_keys) AS k
    WHERE NOT is_known_object('diskless', k)
$$;
