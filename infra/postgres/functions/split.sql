-- Logs that have something to tier, with what makes one of their batches eligible: a max_timestamp
-- below cutoff, or committed until the request of an operator.
CREATE FUNCTION split_horizons(p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (
    log_id bigint, topic text, topic_id uuid, partition integer, boundary_epoch integer,
    suffix_start bigint, cutoff bigint, requested_until bigint
)
LANGUAGE sql STABLE AS $$
    SELECT l.log_id, l.topic_name, l.topic_id, l.partition, l.diskless_log_start_epoch,
           l.suffix_start, coalesce(c.cutoff, -9223372036854775808),
           coalesce(epoch_ms(t.tiering_requested_at), -1)
    FROM logs AS l
    JOIN topics AS t USING (topic_id)
    LEFT JOIN unnest(p_topic_ids, p_cutoffs) AS c (topic_id, cutoff) USING (topic_id)
    WHERE l.deleted_at IS NULL AND t.status <> 'deleted' AND NOT t.tiering_paused
        AND l.high_watermark > l.suffix_start
        AND (c.cutoff IS NOT NULL OR t.tiering_requested_at IS NOT NULL)
$$;

-- The files that hold the oldest eligible batches, one row per batch. Claims are handed out one
-- call at a time, so that no two workers choose the same file. Logs whose oldest eligible batch is
-- the oldest come first; of each the index gives the oldest rows alone.
CREATE FUNCTION claim_wal_files(
    p_worker uuid, p_max_files integer, p_max_batches integer, p_claim_ms bigint,
    p_topic_ids uuid[], p_cutoffs bigint[]
) RETURNS TABLE (
    file_id bigint, object_key text, token bigint, topic text, topic_id uuid, partition integer,
    log_id bigint, base_offset bigint, last_offset bigint, byte_offset bigint, byte_size integer,
    log_append_time boolean, append_time bigint, max_timestamp bigint, boundary_epoch integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_blocked bigint[];
    v_files bigint[];
    v_lost record;
BEGIN
    IF p_max_files < 1 OR p_max_batches < 1 OR p_claim_ms NOT BETWEEN 1 AND 86400000 THEN
        PERFORM refuse('TL018',
            format('%s files, %s batches or a claim of %s ms cannot be claimed', p_max_files,
                p_max_batches, p_claim_ms),
            'Claim at least one of each, for 1 to 86400000 ms.');
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('tideline split claims', 0));
    v_blocked := ARRAY(
        SELECT c.file_id FROM wal_file_claims AS c WHERE c.expires_at > clock_timestamp()
        UNION SELECT f.key FROM tiering_failures AS f
            WHERE f.scope = 'split' AND (f.parked OR f.retry_at > clock_timestamp()));
    v_files := ARRAY(
        WITH horizons AS MATERIALIZED (
            SELECT h.*, CASE WHEN h.requested_until >= 0 THEN 9223372036854775807
                             ELSE h.cutoff END AS newest
            FROM split_horizons(p_topic_ids, p_cutoffs) AS h
        ), oldest AS MATERIALIZED (
            SELECT h.*, found.max_timestamp
            FROM horizons AS h CROSS JOIN LATERAL (
                SELECT b.max_timestamp FROM batches AS b
                    WHERE b.log_id = h.log_id AND b.split_id IS NULL
                        AND b.max_timestamp < h.newest AND b.last_offset >= h.suffix_start
                        AND (b.max_timestamp < h.cutoff OR b.append_time <= h.requested_until)
                        AND b.file_id <> ALL (v_blocked)
                    ORDER BY b.max_timestamp LIMIT 1
            ) AS found
            ORDER BY found.max_timestamp LIMIT p_max_files * 4
        )
        SELECT found.file_id
        FROM oldest AS h CROSS JOIN LATERAL (
            SELECT b.file_id, b.max_timestamp FROM batches AS b
                WHERE b.log_id = h.log_id AND b.split_id IS NULL
                    AND b.max_timestamp < h.newest AND b.last_offset >= h.suffix_start
                    AND (b.max_timestamp < h.cutoff OR b.append_time <= h.requested_until)
                    AND b.file_id <> ALL (v_blocked)
                ORDER BY b.max_timestamp LIMIT p_max_batches
        ) AS found
        GROUP BY found.file_id
        ORDER BY min(found.max_timestamp), found.file_id LIMIT p_max_files);
    IF cardinality(v_files) = 0 THEN
        RETURN;
    END IF;
    -- What an expired claim registered is nobody's any more.
    FOR v_lost IN SELECT c.file_id, c.token FROM wal_file_claims AS c
        WHERE c.file_id = ANY (v_files) ORDER BY c.file_id FOR UPDATE
    LOOP
        PERFORM mark_registered_splits_for_deletion(v_lost.file_id, v_lost.token);
    END LOOP;
    RETURN QUERY
    WITH eligible AS MATERIALIZED (
        SELECT b.*, h.topic, h.topic_id, h.partition, h.boundary_epoch,
               array_position(v_files, b.file_id) AS rank
        FROM batches AS b JOIN split_horizons(p_topic_ids, p_cutoffs) AS h USING (log_id)
        WHERE b.file_id = ANY (v_files) AND b.split_id IS NULL
            AND b.last_offset >= h.suffix_start
            AND (b.max_timestamp < h.cutoff OR b.append_time <= h.requested_until)
    ), bounded AS (
        SELECT file_id FROM (
            SELECT file_id, rank, sum(count(*)) OVER (ORDER BY rank) AS batches
            FROM eligible GROUP BY file_id, rank
        ) AS sums
        WHERE rank = (SELECT min(rank) FROM eligible) OR batches <= p_max_batches
    ), claimed AS (
        INSERT INTO wal_file_claims AS c (file_id, worker, token, expires_at)
            SELECT file_id, p_worker, nextval('tiering_tokens'),
                   clock_timestamp() + p_claim_ms * interval '1 millisecond'
            FROM bounded
            ON CONFLICT (file_id) DO UPDATE SET worker = excluded.worker,
                token = excluded.token, claimed_at = excluded.claimed_at,
                expires_at = excluded.expires_at
            RETURNING c.file_id, c.token
    )
    SELECT e.file_id, f.object_key, c.token, e.topic, e.topic_id, e.partition, e.log_id,
           e.base_offset, e.last_offset, e.byte_offset, e.byte_size, e.log_append_time,
           e.append_time, e.max_timestamp, e.boundary_epoch
    FROM eligible AS e
    JOIN claimed AS c USING (file_id)
    JOIN wal_files AS f USING (file_id)
    ORDER BY e.rank, e.log_id, e.base_offset;
END
$$;

CREATE FUNCTION refuse_stale_split(p_file_id bigint, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM refuse('TL024',
        format('claim %s of WAL file %s is lost', p_token, p_file_id),
        'Another worker took it over, or it was released: leave the file to whoever holds it.');
END
$$;

-- Whether the claim is this worker's under this token, locked if so. An expired claim still is,
-- until somebody takes it over: nobody else can have touched the file.
CREATE FUNCTION holds_split_claim(p_worker uuid, p_file_id bigint, p_token bigint)
RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM wal_file_claims
        WHERE file_id = p_file_id AND worker = p_worker AND token = p_token FOR UPDATE;
    RETURN FOUND;
END
$$;

CREATE FUNCTION register_split_keys(
    p_worker uuid, p_file_id bigint, p_token bigint, p_keys text[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_taken text;
BEGIN
    IF NOT holds_split_claim(p_worker, p_file_id, p_token) THEN
        PERFORM refuse_stale_split(p_file_id, p_token);
    END IF;
    SELECT k INTO v_taken FROM unnest(p_keys) AS k
        WHERE EXISTS (SELECT FROM wal_files WHERE object_key = k)
            OR EXISTS (SELECT FROM marked_objects WHERE bucket = 'diskless' AND object_key = k)
            OR EXISTS (SELECT FROM split_files WHERE object_key = k
                AND (file_id <> p_file_id OR token <> p_token OR status <> 'registered'))
        LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL017', format('object key %s is taken', v_taken),
            'Register a random key that was never used.');
    END IF;
    INSERT INTO split_files (object_key, file_id, token)
        SELECT k, p_file_id, p_token FROM unnest(p_keys) AS k
        ON CONFLICT (object_key) DO NOTHING;
END
$$;

-- p_splits as rows, with their logs.
CREATE FUNCTION split_runs(p_splits jsonb)
RETURNS TABLE (
    object_key text, topic_id uuid, partition integer, log_id bigint, base_offset bigint,
    last_offset bigint, byte_size bigint, batch_count integer
)
LANGUAGE sql STABLE AS $$
    SELECT s.object_key, s.topic_id, s.partition, l.log_id, s.base_offset, s.last_offset,
           s.byte_size, s.batch_count
    FROM jsonb_to_recordset(p_splits) AS s (object_key text, topic_id uuid, partition integer,
        base_offset bigint, last_offset bigint, byte_size bigint, batch_count integer)
    LEFT JOIN logs AS l ON l.topic_id = s.topic_id AND l.partition = s.partition
$$;

-- Writes what each registered key holds. Raises TL024 for a key that is not registered (any more)
-- under the claim, TL001 for a partition without a row.
CREATE FUNCTION describe_splits(p_file_id bigint, p_token bigint, p_splits jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_run record;
BEGIN
    PERFORM FROM split_files WHERE file_id = p_file_id AND token = p_token
        ORDER BY split_id FOR UPDATE;
    SELECT r.* INTO v_run FROM split_runs(p_splits) AS r
        WHERE NOT EXISTS (SELECT FROM split_files AS f WHERE f.object_key = r.object_key
            AND f.file_id = p_file_id AND f.token = p_token AND f.status = 'registered')
        LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL024',
            format('split key %s is not registered under claim %s', v_run.object_key, p_token),
            'It was collected, or never registered: claim the file again.');
    END IF;
    SELECT r.* INTO v_run FROM split_runs(p_splits) AS r WHERE r.log_id IS NULL LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_unknown_log(v_run.topic_id, v_run.partition);
    END IF;
    UPDATE split_files AS f SET log_id = r.log_id, base_offset = r.base_offset,
            last_offset = r.last_offset, byte_size = r.byte_size, batch_count = r.batch_count
        FROM split_runs(p_splits) AS r
        WHERE f.object_key = r.object_key;
END
$$;

-- Sets split_id of every batch of the file that lies in a described run, and says what was found,
-- run by run.
CREATE FUNCTION mark_split_batches(
    p_file_id bigint, p_token bigint,
    OUT split_ids bigint[], OUT firsts bigint[], OUT lasts bigint[], OUT offsets bigint[],
    OUT bytes bigint[], OUT batches bigint[], OUT newest bigint[]
)
LANGUAGE sql AS $$
    WITH marked AS (
        UPDATE batches AS b SET split_id = f.split_id
            FROM split_files AS f
            WHERE f.file_id = p_file_id AND f.token = p_token AND f.status = 'registered'
                AND b.file_id = p_file_id AND b.log_id = f.log_id AND b.split_id IS NULL
                AND b.last_offset BETWEEN f.base_offset AND f.last_offset
            RETURNING b.split_id, b.base_offset, b.last_offset, b.byte_size, b.max_timestamp
    ), runs AS (
        SELECT split_id, min(base_offset) AS first, max(last_offset) AS last,
               sum(last_offset - base_offset + 1)::bigint AS offsets,
               sum(byte_size)::bigint AS bytes, count(*) AS batches,
               max(max_timestamp) AS newest
        FROM marked GROUP BY split_id
    )
    SELECT array_agg(split_id), array_agg(first), array_agg(last), array_agg(offsets),
           array_agg(bytes), array_agg(batches), array_agg(newest)
    FROM runs
$$;

-- p_splits: a jsonb array of {object_key, topic_id, partition, base_offset, last_offset,
-- byte_size, batch_count}. Again with the same input it succeeds and changes nothing. The suffix's
-- start is read after the rows are marked: rows that retention removed before lie below it. What
-- has expired, and keys that no run uses, go to garbage collection.
CREATE FUNCTION finish_split(p_worker uuid, p_file_id bigint, p_token bigint, p_splits jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_marked record;
    v_wrong record;
BEGIN
    IF NOT holds_split_claim(p_worker, p_file_id, p_token) THEN
        IF EXISTS (SELECT FROM jsonb_to_recordset(p_splits) AS s (object_key text)
            WHERE NOT EXISTS (SELECT FROM split_files AS f WHERE f.object_key = s.object_key
                AND f.file_id = p_file_id AND f.token = p_token AND f.log_id IS NOT NULL)) THEN
            PERFORM refuse_stale_split(p_file_id, p_token);
        END IF;
        RETURN;
    END IF;
    PERFORM describe_splits(p_file_id, p_token, p_splits);
    v_marked := mark_split_batches(p_file_id, p_token);
    SELECT f.*, log_label(l) AS label, m.first, m.last, m.bytes, m.batches INTO v_wrong
        FROM split_files AS f
        JOIN logs AS l USING (log_id)
        LEFT JOIN unnest(v_marked.split_ids, v_marked.firsts, v_marked.lasts, v_marked.offsets,
                v_marked.bytes, v_marked.batches)
            AS m (split_id, first, last, offsets, bytes, batches) USING (split_id)
        WHERE f.file_id = p_file_id AND f.token = p_token AND f.status = 'registered'
            AND l.deleted_at IS NULL AND f.last_offset >= l.suffix_start
            AND (m.last IS DISTINCT FROM f.last_offset
                OR m.offsets <> f.last_offset - m.first + 1
                OR (m.first = f.base_offset
                    AND (m.bytes <> f.byte_size OR m.batches <> f.batch_count))
                OR (m.first <> f.base_offset
                    AND m.first NOT BETWEEN f.base_offset AND l.suffix_start))
        ORDER BY f.split_id LIMIT 1;
    IF FOUND THEN
        PERFORM refuse('TL026',
            format('split %s of %s claims offsets %s to %s in %s batches of %s bytes; WAL file %s '
                'has %s to %s in %s of %s', v_wrong.object_key, v_wrong.label,
                v_wrong.base_offset, v_wrong.last_offset, v_wrong.batch_count,
                v_wrong.byte_size, p_file_id, coalesce(v_wrong.first, -1),
                coalesce(v_wrong.last, -1), coalesce(v_wrong.batches, 0),
                coalesce(v_wrong.bytes, 0)),
            'Cut contiguous runs of exactly the claimed batches.');
    END IF;
    UPDATE split_files AS f SET status = 'live', max_timestamp = m.newest
        FROM unnest(v_marked.split_ids, v_marked.newest) AS m (split_id, newest), logs AS l
        WHERE f.split_id = m.split_id AND l.log_id = f.log_id AND l.deleted_at IS NULL
            AND f.last_offset >= l.suffix_start;
    PERFORM mark_registered_splits_for_deletion(p_file_id, p_token);
    DELETE FROM wal_file_claims WHERE file_id = p_file_id;
    DELETE FROM tiering_failures WHERE scope = 'split' AND key = p_file_id;
END
$$;

CREATE FUNCTION release_claim(p_worker uuid, p_file_id bigint, p_token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF holds_split_claim(p_worker, p_file_id, p_token) THEN
        PERFORM mark_registered_splits_for_deletion(p_file_id, p_token);
        DELETE FROM wal_file_claims WHERE file_id = p_file_id;
    END IF;
END
$$;
