-- One attestation per Kafka cluster: nobody but gateways reaches its brokers as a client.

CREATE FUNCTION attest_cluster(p_cluster_id text, p_attested_by text, p_reason text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF '' IN (coalesce(p_cluster_id, ''), coalesce(p_attested_by, ''), coalesce(p_reason, '')) THEN
        PERFORM refuse('TL018', 'an attestation names a cluster, a person and a reason',
            'Say who made sure that clients cannot reach the brokers, and how.');
    END IF;
    -- One that is in force stays: the first word counts until it is withdrawn.
    INSERT INTO cluster_attestations (cluster_id, attested_by, reason)
        VALUES (p_cluster_id, p_attested_by, p_reason)
        ON CONFLICT (cluster_id) WHERE withdrawn_at IS NULL DO NOTHING;
END
$$;

CREATE FUNCTION withdraw_attestation(p_cluster_id text, p_withdrawn_by text, p_reason text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF '' IN (coalesce(p_withdrawn_by, ''), coalesce(p_reason, '')) THEN
        PERFORM refuse('TL018', 'nobody, or no reason, is named for the withdrawal',
            'Say who withdraws the attestation, and why.');
    END IF;
    UPDATE cluster_attestations SET withdrawn_by = p_withdrawn_by, withdrawn_reason = p_reason,
            withdrawn_at = clock_timestamp()
        WHERE cluster_id = p_cluster_id AND withdrawn_at IS NULL;
    IF NOT FOUND THEN
        PERFORM refuse_unattested(p_cluster_id);
    END IF;
END
$$;

CREATE FUNCTION refuse_unattested(p_cluster_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('TL040',
        format('nobody attests that clients reach the brokers of Kafka cluster %s only through '
            'gateways', coalesce(nullif(p_cluster_id, ''), '(unknown)')),
        'Close the brokers'' listeners to clients, then run `tideline cluster attest --reason`.');
END
$$;

-- Newest first; the one in force, if any, is not withdrawn.
CREATE FUNCTION cluster_attestations_of(p_cluster_id text)
RETURNS TABLE (
    cluster_id text, attested_by text, reason text, attested_at timestamptz, withdrawn_by text,
    withdrawn_reason text, withdrawn_at timestamptz
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT cluster_id, attested_by, reason, attested_at, withdrawn_by, withdrawn_reason,
           withdrawn_at
    FROM cluster_attestations
    WHERE p_cluster_id IS NULL OR cluster_id = p_cluster_id
    ORDER BY attestation_id DESC
$$;

-- A round of migration begins only under an attestation. One that has begun goes on without: its
-- topic is tracked, and its gateways would have to forget it first.
CREATE FUNCTION begin_migration(
    p_name text, p_topic_id uuid, p_partitions integer, p_timestamp_type text,
    p_max_message_bytes integer, p_cluster_id text, p_run text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM topics WHERE name = p_name AND topic_id = p_topic_id
            AND status IN ('tracking', 'active')) THEN
        -- Locked, so that a withdrawal comes either before this round or after its beginning.
        PERFORM FROM cluster_attestations
            WHERE cluster_id = p_cluster_id AND withdrawn_at IS NULL FOR SHARE;
        IF NOT FOUND THEN
            PERFORM refuse_unattested(p_cluster_id);
        END IF;
    END IF;
    PERFORM begin_tracking(p_name, p_topic_id, 'migrated', p_partitions, p_timestamp_type,
        p_max_message_bytes, p_run);
END
$$;
