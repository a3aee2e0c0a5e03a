-- Registrations, leases and fences of gateways.

-- Each gateway logs in as a role of its own, tideline_gateway_<id>, and speaks for that id alone.
CREATE FUNCTION assert_own_gateway(p_gateway_id integer) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT acts_as_owner() AND session_user IS DISTINCT FROM 'tideline_gateway_' || p_gateway_id THEN
        PERFORM refuse('TL051',
            format('role %s does not speak for gateway %s', session_user,
                coalesce(p_gateway_id::text, 'null')),
            'A gateway logs in as tideline_gateway_<its id>: correct TIDELINE_POSTGRES_DSN or '
            'TIDELINE_GATEWAY_ID of this process.');
    END IF;
END
$$;

CREATE FUNCTION assert_gateway_active(p_gateway_id integer, p_incarnation uuid) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_gateway gateways;
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    SELECT * INTO v_gateway FROM gateways WHERE gateway_id = p_gateway_id;
    IF FOUND AND v_gateway.incarnation = p_incarnation AND v_gateway.status = 'active' THEN
        RETURN;
    END IF;
    PERFORM refuse('TL008',
        format('incarnation %s of gateway %s may not act: %s', p_incarnation, p_gateway_id,
            CASE
                WHEN v_gateway.gateway_id IS NULL THEN 'it is not registered'
                WHEN v_gateway.incarnation <> p_incarnation THEN 'a newer one has registered'
                ELSE format('it is %s (%s)', v_gateway.status, v_gateway.status_reason)
            END),
        'Drop every pending answer for tracked topics, then register with a new incarnation.');
END
$$;

-- The same incarnation may register again (a retry). Over another one that is active only who has
-- watched its counter stand still for its lease and a margin registers, and names what it saw:
-- where the counter has moved since, the holder lives and keeps the id.
CREATE FUNCTION assert_may_replace(p_holder gateways, p_watched uuid, p_renewals bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_holder.status = 'active' AND (p_holder.incarnation, p_holder.renewals)
            IS DISTINCT FROM (p_watched, p_renewals) THEN
        PERFORM refuse('TL027',
            format('gateway id %s is held by incarnation %s at %s (renewal %s)',
                p_holder.gateway_id, p_holder.incarnation, p_holder.address, p_holder.renewals),
            'Wait until its counter has not moved for its lease and a margin. If it moves, '
            'another process runs under this id: stop one of them or give it its own id.');
    END IF;
END
$$;

CREATE FUNCTION register_gateway(
    p_gateway_id integer, p_broker_id integer, p_incarnation uuid,
    p_address text, p_version text, p_lease_ms integer,
    p_watched uuid, p_watched_renewals bigint, p_rack text DEFAULT NULL,
    p_stand_ins text DEFAULT NULL, p_serving boolean DEFAULT true
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_known gateways;
    v_first boolean;
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    PERFORM settle();
    PERFORM assert_settled();
    INSERT INTO gateways AS g
        (gateway_id, broker_id, incarnation, status, lease_ms, address, version, rack, stand_ins,
         serving, timeline)
        VALUES (p_gateway_id, p_broker_id, p_incarnation, 'active', p_lease_ms, p_address,
                p_version, p_rack, p_stand_ins, p_serving, current_timeline())
        ON CONFLICT (gateway_id) DO NOTHING;
    v_first := FOUND;
    SELECT * INTO STRICT v_known FROM gateways WHERE gateway_id = p_gateway_id
        FOR NO KEY UPDATE;
    IF v_known.status = 'retired' THEN
        PERFORM refuse('TL009', format('gateway %s was retired (%s)', p_gateway_id,
                v_known.status_reason),
            'Start the gateway under an id that was never retired.');
    END IF;
    IF EXISTS (SELECT FROM ended_incarnations WHERE incarnation = p_incarnation)
        OR (v_known.incarnation = p_incarnation AND v_known.status <> 'active') THEN
        PERFORM refuse('TL008',
            format('incarnation %s of gateway %s was fenced for ever', p_incarnation,
                p_gateway_id),
            'Register with a new incarnation.');
    END IF;
    IF v_known.incarnation <> p_incarnation THEN
        PERFORM assert_may_replace(v_known, p_watched, p_watched_renewals);
        INSERT INTO ended_incarnations (incarnation, gateway_id, reason, address)
            VALUES (v_known.incarnation, p_gateway_id, 'replaced by ' || p_incarnation,
                v_known.address)
            ON CONFLICT DO NOTHING;
        UPDATE gateways
            SET broker_id = p_broker_id, incarnation = p_incarnation, status = 'active',
                status_reason = NULL, lease_ms = p_lease_ms, address = p_address,
                version = p_version, rack = p_rack, stand_ins = p_stand_ins,
                serving = p_serving, renewals = renewals + 1, registered_at = clock_timestamp(),
                timeline = current_timeline()
            WHERE gateway_id = p_gateway_id;
    ELSIF NOT v_first THEN
        -- The process counts its lease from here: who waits for it to lapse has to see that.
        UPDATE gateways SET renewals = renewals + 1 WHERE gateway_id = p_gateway_id;
    END IF;
END
$$;

-- Whether it accepts connections now: while it does not another one may stand in for it. Says nothing
-- of what it may do.
CREATE FUNCTION note_serving(p_gateway_id integer, p_incarnation uuid, p_serving boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    UPDATE gateways SET serving = p_serving
        WHERE gateway_id = p_gateway_id AND incarnation = p_incarnation AND status = 'active';
    IF NOT FOUND THEN
        PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    END IF;
END
$$;

-- The process stops and has nothing left to tell: whoever comes next need not wait.
CREATE FUNCTION release_gateway(p_gateway_id integer, p_incarnation uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_address text;
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    UPDATE gateways SET status = 'released', status_reason = 'stopped'
        WHERE gateway_id = p_gateway_id AND incarnation = p_incarnation AND status = 'active'
        RETURNING address INTO v_address;
    IF FOUND THEN
        INSERT INTO ended_incarnations (incarnation, gateway_id, reason, address)
            VALUES (p_incarnation, p_gateway_id, 'stopped', v_address) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM account_ended(p_gateway_id, ARRAY[p_incarnation], 'stopped');
END
$$;

-- Ended incarnations of which the caller knows for certain that no process acts under them: it holds
-- the lock of their state directory, is the same process, or stops. Others are left as they are.
CREATE FUNCTION account_incarnations(p_gateway_id integer, p_incarnations uuid[], p_how text)
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT assert_own_gateway(p_gateway_id);
    SELECT account_ended(p_gateway_id, p_incarnations, p_how)
$$;

CREATE FUNCTION account_ended(p_gateway_id integer, p_incarnations uuid[], p_how text) RETURNS void
LANGUAGE sql AS $$
    UPDATE ended_incarnations SET accounted = p_how, accounted_at = clock_timestamp()
        WHERE gateway_id = p_gateway_id AND incarnation = ANY (p_incarnations)
            AND accounted IS NULL
$$;

-- An operator's word for incarnations that nothing else accounts for.
CREATE FUNCTION attest_incarnations_gone(
    p_gateway_id integer, p_incarnations uuid[], p_attested_by text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_unknown text;
BEGIN
    IF coalesce(p_attested_by, '') = '' THEN
        PERFORM refuse('TL018', 'nobody attests that the process is gone',
            'Name the person who made sure that it does not run any more.');
    END IF;
    SELECT string_agg(i::text, ', ') INTO v_unknown FROM unnest(p_incarnations) AS i
        WHERE NOT EXISTS (SELECT FROM ended_incarnations AS e
            WHERE e.incarnation = i AND e.gateway_id = p_gateway_id);
    IF v_unknown IS NOT NULL THEN
        PERFORM refuse('TL021',
            format('no incarnation %s of gateway %s has ended', v_unknown, p_gateway_id),
            'List those that are unaccounted for and name them as they are shown.');
    END IF;
    PERFORM account_ended(p_gateway_id, p_incarnations,
        'gone, attested by ' || p_attested_by);
END
$$;

-- What was replaced and may still run. The current incarnation of an id stands at barriers itself.
CREATE FUNCTION unaccounted_incarnations()
RETURNS TABLE (
    gateway_id integer, broker_id integer, incarnation uuid, status text, renewals bigint,
    lease_ms integer, address text, version text, registered_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT g.gateway_id, g.broker_id, e.incarnation, 'unaccounted', 0::bigint, g.lease_ms,
           e.address, g.version, e.ended_at
    FROM ended_incarnations AS e
    JOIN gateways AS g ON g.gateway_id = e.gateway_id
    WHERE e.accounted IS NULL AND g.status <> 'retired' AND g.incarnation <> e.incarnation
    ORDER BY g.gateway_id, e.ended_at
$$;

CREATE FUNCTION renew_lease(p_gateway_id integer, p_incarnation uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_renewals bigint;
BEGIN
    PERFORM assert_own_gateway(p_gateway_id);
    UPDATE gateways SET renewals = renewals + 1, timeline = current_timeline()
        WHERE gateway_id = p_gateway_id AND incarnation = p_incarnation AND status = 'active'
        RETURNING renewals INTO v_renewals;
    IF NOT FOUND THEN
        PERFORM assert_gateway_active(p_gateway_id, p_incarnation);
    END IF;
    PERFORM settle();
    RETURN v_renewals;
END
$$;

CREATE FUNCTION list_gateways() RETURNS SETOF gateways
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM gateways ORDER BY gateway_id
$$;

-- What a gateway asks for all the time, as one statement: the row of its own among them has the
-- counter after this renewal.
CREATE FUNCTION renew_and_list(p_gateway_id integer, p_incarnation uuid) RETURNS SETOF gateways
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    PERFORM renew_lease(p_gateway_id, p_incarnation);
    RETURN QUERY SELECT * FROM list_gateways();
END
$$;

-- True when the incarnation is fenced now. False when it is not the registered one (a newer one
-- has taken over), has renewed its lease since it was looked at, has released it, or the gateway is
-- retired; nor while the timeline is not settled, to which it belongs: look again.
CREATE FUNCTION fence_gateway(
    p_gateway_id integer, p_incarnation uuid, p_renewals bigint, p_reason text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_address text;
BEGIN
    UPDATE gateways SET status = 'fenced', status_reason = p_reason
        WHERE gateway_id = p_gateway_id AND incarnation = p_incarnation AND status = 'active'
            AND renewals = p_renewals
            AND (SELECT is_settled() OR i.halted IS NOT NULL FROM installation AS i)
        RETURNING address INTO v_address;
    IF FOUND THEN
        INSERT INTO ended_incarnations (incarnation, gateway_id, reason, address)
            VALUES (p_incarnation, p_gateway_id, p_reason, v_address) ON CONFLICT DO NOTHING;
    END IF;
    RETURN EXISTS (SELECT FROM gateways WHERE gateway_id = p_gateway_id
        AND incarnation = p_incarnation AND status = 'fenced');
END
$$;

CREATE FUNCTION retire_gateway(p_gateway_id integer, p_attested_by text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF coalesce(p_attested_by, '') = '' THEN
        PERFORM refuse('TL018', 'nobody attests that the gateway is cut off',
            'Name the person who made sure that the process cannot reach a broker any more.');
    END IF;
    PERFORM assert_settled();
    UPDATE gateways SET status = 'retired', status_reason = 'cut off, attested by ' || p_attested_by
        WHERE gateway_id = p_gateway_id AND status <> 'retired';
    IF NOT FOUND AND NOT EXISTS (SELECT FROM gateways WHERE gateway_id = p_gateway_id) THEN
        PERFORM refuse('TL021', format('gateway %s was never registered', p_gateway_id),
            'List the registered gateways and choose one of them.');
    END IF;
END
$$;
