-- Nothing here locks a row that a commit needs.

-- Logs that have something to tier, with what makes one of their batches eligible: a max_timestamp
-- below cutoff, or committed until the request of an operator. No eligible one is past newest.
CREATE FUNCTION split_horizons(p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (
    log_id bigint, topic text, topic_id uuid, partition integer, boundary_epoch integer,
    suffix_start bigint, cutoff bigint, requested_until bigint, newest bigint
)
LANGUAGE sql STABLE AS $$
    SELECT l.log_id, l.topic_name, l.topic_id, l.partition, l.diskless_log_start_epoch,
           l.suffix_start, coalesce(c.cutoff, -9223372036854775808),
           coalesce(epoch_ms(t.tiering_requested_at), -1),
           CASE WHEN t.tiering_requested_at IS NULL THEN c.cutoff ELSE 9223372036854775807 END
    FROM logs AS l
    JOIN topics AS t USING (topic_id)
    LEFT JOIN unnest(p_topic_ids, p_cutoffs) AS c (topic_id, cutoff) USING (topic_id)
    WHERE l.deleted_at IS NULL AND t.status <> 'deleted' AND NOT t.tiering_paused
        AND l.high_watermark > l.suffix_start
        AND (c.cutoff IS NOT NULL OR t.tiering_requested_at IS NOT NULL)
$$;

-- The batches of a log that may be split now. The planner puts the statement into its caller, where
-- newest lets the index find the oldest of them whatever the log holds besides.
CREATE FUNCTION eligible_batches(
    p_log_id bigint, p_suffix_start bigint, p_cutoff bigint, p_requested_until bigint,
    p_newest bigint
) RETURNS SETOF batches
LANGUAGE sql STABLE AS $$
    SELECT * FROM batches AS b
    WHERE b.log_id = p_log_id AND b.split_id IS NULL AND b.last_offset >= p_suffix_start
        AND b.max_timestamp <= p_newest
        AND (b.max_timestamp < p_cutoff OR b.append_time <= p_requested_until)
$$;

-- Files that nobody may claim at that time: claimed, parked, or waiting after a failure.
CREATE FUNCTION withheld_wal_files(p_at timestamptz) RETURNS TABLE (file_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.file_id FROM wal_file_claims AS c WHERE c.expires_at > p_at
    UNION ALL SELECT f.key FROM tiering_failures AS f
        WHERE f.scope = 'split' AND (f.parked OR f.retry_at > p_at)
$$;

-- Of each log the oldest eligible batch from p_from on (ms, inclusive) that lies in none of p_passed:
-- one look into an index a log. A batch of the largest timestamp there is chooses no file: it goes
-- with others.
CREATE FUNCTION oldest_eligible(
    p_from bigint, p_passed bigint[], p_topic_ids uuid[], p_cutoffs bigint[]
) RETURNS TABLE (log_id bigint, file_id bigint, max_timestamp bigint)
LANGUAGE sql STABLE AS $$
    SELECT h.log_id, found.file_id, found.max_timestamp
    FROM split_horizons(p_topic_ids, p_cutoffs) AS h CROSS JOIN LATERAL (
        SELECT b.file_id, b.max_timestamp FROM eligible_batches(
                h.log_id, h.suffix_start, h.cutoff, h.requested_until, h.newest) AS b
            WHERE b.max_timestamp >= p_from AND b.max_timestamp < 9223372036854775807
                AND b.file_id NOT IN (SELECT unnest(p_passed))
            ORDER BY b.max_timestamp LIMIT 1
    ) AS found
$$;

-- The batches of the files that may be split now, with their logs.
CREATE FUNCTION eligible_in_files(p_files bigint[], p_topic_ids uuid[], p_cutoffs bigint[])
RETURNS TABLE (
    file_id bigint, topic text, topic_id uuid, partition integer, log_id bigint,
    base_offset bigint, last_offset bigint, byte_offset bigint, byte_size integer,
    log_append_time boolean, append_time bigint, max_timestamp bigint, boundary_epoch integer
)
LANGUAGE sql STABLE AS $$
    SELECT b.file_id, h.topic, h.topic_id, h.partition, b.log_id, b.base_offset, b.last_offset,
           b.byte_offset, b.byte_size, b.log_append_time, b.append_time, b.max_timestamp,
           h.boundary_epoch
    FROM split_horizons(p_topic_ids, p_cutoffs) AS h CROSS JOIN LATERAL eligible_batches(
        h.log_id, h.suffix_start, h.cutoff, h.requested_until, h.newest) AS b
    WHERE b.file_id = ANY (p_files)
$$;

-- Whether the file is this transaction's to claim: no other one is claiming it, nor has it since it
-- was found. Two statements, so that the second sees what was committed before the lock was had.
CREATE FUNCTION try_wal_file(p_file_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('tideline split claim', p_file_id)) THEN
        RETURN false;
    END IF;
    RETURN NOT EXISTS (SELECT FROM withheld_wal_files(clock_timestamp()) AS w
        WHERE w.file_id = p_file_id);
END
$$;

-- The files that hold the oldest eligible batches, oldest first: as many as have at most
-- p_max_batches to split, now or later, and the first in any case. Begins with the file in which the oldest batch
-- of any log lies and goes on with the oldest that its logs have elsewhere, so that it reads a row
-- of each log and then no more than it takes.
CREATE FUNCTION oldest_wal_files(
    p_max_files integer, p_max_batches integer, p_from bigint, p_topic_ids uuid[],
    p_cutoffs bigint[]
) RETURNS bigint[]
-- The planner takes all that is eligible of a log for a few rows, which it would read and sort; and
-- planning for the very files takes longer than reading them.
LANGUAGE plpgsql SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    -- Files of which no log has anything older elsewhere, with that age, oldest first.
    v_next bigint[];
    v_ages bigint[];
    v_passed bigint[] := ARRAY(SELECT w.file_id FROM withheld_wal_files(clock_timestamp()) AS w);
    v_taken bigint[] := '{}';
    v_batches bigint := 0;
    v_logs bigint[];
    -- Each file costs a lock of a table that all connections share.
    v_most integer := least(p_max_files, 250);
BEGIN
    SELECT array_agg(f.file_id ORDER BY f.age, f.file_id),
           array_agg(f.age ORDER BY f.age, f.file_id)
        INTO v_next, v_ages
        FROM (SELECT o.file_id, min(o.max_timestamp) AS age
            FROM oldest_eligible(p_from, v_passed, p_topic_ids, p_cutoffs) AS o
            GROUP BY o.file_id) AS f;
    WHILE cardinality(v_taken) < v_most AND cardinality(v_next) > 0 LOOP
        v_logs := ARRAY(SELECT b.log_id FROM batches AS b
            WHERE b.file_id = v_next[1] AND b.split_id IS NULL);
        IF try_wal_file(v_next[1]) THEN
            v_batches := v_batches + cardinality(v_logs);
            EXIT WHEN v_batches > p_max_batches AND cardinality(v_taken) > 0;
            v_taken := v_taken || v_next[1];
        END IF;
        v_passed := v_passed || v_next[1];
        SELECT array_agg(f.file_id ORDER BY f.age, f.file_id),
               array_agg(f.age ORDER BY f.age, f.file_id)
            INTO v_next, v_ages
            FROM (SELECT n.file_id, min(n.age) AS age FROM (
                    SELECT * FROM unnest(v_next[2:], v_ages[2:])
                    UNION ALL SELECT o.file_id, o.max_timestamp
                        FROM oldest_eligible(v_ages[1], v_passed, p_topic_ids, p_cutoffs) AS o
                        WHERE o.log_id = ANY (v_logs)
                ) AS n (file_id, age) GROUP BY n.file_id) AS f;
    END LOOP;
    RETURN v_taken;
END
$$;

-- The files that hold the oldest eligible batches, one row per batch: as many files as have at most
-- p_max_batches to split, now or later, and the first in any case. p_from (ms): no file is chosen
-- for an older batch. Calls at once share the files out: what another one is taking is passed over.
CREATE FUNCTION claim_wal_files(
    p_worker uuid, p_max_files integer, p_max_batches integer, p_claim_ms bigint,
    p_topic_ids uuid[], p_cutoffs bigint[], p_from bigint DEFAULT NULL
) RETURNS TABLE (
    file_id bigint, object_key text, token bigint, topic text, topic_id uuid, partition integer,
    log_id bigint, base_offset bigint, last_offset bigint, byte_offset bigint, byte_size integer,
    log_append_time boolean, append_time bigint, max_timestamp bigint, boundary_epoch integer
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_files bigint[];
BEGIN
    PERFORM assert_positive(p_max_files, 'WAL files to claim'),
        assert_positive(p_max_batches, 'batches to claim'), assert_claim_time(p_claim_ms);
    v_files := oldest_wal_files(p_max_files, p_max_batches,
        coalesce(p_from, -9223372036854775808), p_topic_ids, p_cutoffs);
    IF cardinality(v_files) = 0 THEN
        RETURN;
    END IF;
    -- What an expired claim registered is nobody's any more.
    PERFORM mark_registered_splits_for_deletion(lost.file_id, lost.token)
        FROM (SELECT c.file_id, c.token FROM wal_file_claims AS c
            WHERE c.file_id = ANY (v_files) ORDER BY c.file_id FOR UPDATE) AS lost;
    RETURN QUERY
    WITH eligible AS MATERIALIZED (
        SELECT * FROM eligible_in_files(v_files, p_topic_ids, p_cutoffs)
    ), claimed AS (
        INSERT INTO wal_file_claims AS c (file_id, worker, token, expires_at)
            SELECT f, p_worker, nextval('tiering_tokens'),
                   clock_timestamp() + p_claim_ms * interval '1 millisecond'
            FROM unnest(v_files) AS f
            WHERE EXISTS (SELECT FROM eligible AS e WHERE e.file_id = f)
            ON CONFLICT (file_id) DO UPDATE SET worker = excluded.worker,
                token = excluded.token, claimed_at = excluded.claimed_at,
                expires_at = excluded.expires_at
            RETURNING c.file_id, c.token
    )
    SELECT e.file_id, f.object_key, c.token, e.topic, e.topic_id, e.partition, e.log_id,
           e.base_offset, e.last_offset, e.byte_offset, e.byte_size, e.log_append_time,
           e.append_time, e.max_timestamp, e.boundary_epoch
    FROM unnest(v_files) WITH ORDINALITY AS v (file_id, place)
    JOIN claimed AS c USING (file_id) JOIN wal_files AS f USING (file_id)
    JOIN eligible AS e USING (file_id)
    ORDER BY v.place, e.log_id, e.base_offset;
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

-- Keys that may be uploaded under the claim. Repeats succeed.
CREATE FUNCTION register_split_keys(
    p_worker uuid, p_file_id bigint, p_token bigint, p_keys text[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_taken record;
BEGIN
    IF NOT holds_split_claim(p_worker, p_file_id, p_token) THEN
        PERFORM refuse_stale_split(p_file_id, p_token);
    END IF;
    SELECT k AS key, CASE
            WHEN EXISTS (SELECT FROM wal_files WHERE object_key = k) THEN 'a WAL file'
            WHEN EXISTS (SELECT FROM marked_objects WHERE bucket = 'diskless' AND object_key = k)
                THEN 'an object that is to be deleted'
            WHEN EXISTS (SELECT FROM split_files WHERE object_key = k
                AND (file_id <> p_file_id OR token <> p_token)) THEN 'a split of another claim'
            WHEN EXISTS (SELECT FROM split_files WHERE object_key = k AND status <> 'registered')
                THEN 'a finished split'
        END AS holder
        INTO v_taken FROM unnest(p_keys) AS k ORDER BY holder LIMIT 1;
    IF v_taken.holder IS NOT NULL THEN
        PERFORM refuse('TL017',
            format('object key %s is taken by %s', v_taken.key, v_taken.holder),
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

-- Sets split_id of every batch of the file that lies in a described run.
CREATE FUNCTION mark_split_batches(p_file_id bigint, p_token bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE batches AS b SET split_id = f.split_id
        FROM split_files AS f
        WHERE f.file_id = p_file_id AND f.token = p_token AND f.status = 'registered'
            AND b.file_id = p_file_id AND b.log_id = f.log_id AND b.split_id IS NULL
            AND b.last_offset BETWEEN f.base_offset AND f.last_offset
$$;

-- What the marked batches of each run are.
CREATE FUNCTION marked_runs(p_file_id bigint)
RETURNS TABLE (
    split_id bigint, first bigint, last bigint, offsets bigint, bytes bigint, batches bigint,
    newest bigint
)
LANGUAGE sql STABLE AS $$
    SELECT b.split_id, min(b.base_offset), max(b.last_offset),
           sum(b.last_offset - b.base_offset + 1)::bigint, sum(b.byte_size)::bigint, count(*),
           max(b.max_timestamp)
    FROM batches AS b WHERE b.file_id = p_file_id AND b.split_id IS NOT NULL
    GROUP BY b.split_id
$$;

-- Refuses a run that is not exactly its marked batches. The suffix's start is read after they are
-- marked: what retention removed before lies below it, so a run may lack its first batches, or all.
CREATE FUNCTION assert_runs_match(p_file_id bigint, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_wrong record;
BEGIN
    SELECT f.object_key, log_label(l) AS label, CASE
            WHEN m.split_id IS NULL THEN format('offsets %s to %s hold none of the file''s batches',
                f.base_offset, f.last_offset)
            WHEN m.last <> f.last_offset THEN format('its last batch ends at offset %s, not at %s',
                m.last, f.last_offset)
            WHEN m.offsets <> m.last - m.first + 1 THEN format(
                'its batches from offset %s to %s have gaps', m.first, m.last)
            WHEN m.first <> f.base_offset
                AND m.first NOT BETWEEN f.base_offset AND l.suffix_start THEN format(
                'its first batch begins at offset %s, not at %s', m.first, f.base_offset)
            WHEN m.first = f.base_offset AND m.bytes <> f.byte_size THEN format(
                'its batches have %s bytes, not %s', m.bytes, f.byte_size)
            WHEN m.first = f.base_offset AND m.batches <> f.batch_count THEN format(
                'it has %s batches, not %s', m.batches, f.batch_count)
        END AS why
        INTO v_wrong
        FROM split_files AS f
        JOIN logs AS l USING (log_id)
        LEFT JOIN marked_runs(p_file_id) AS m USING (split_id)
        WHERE f.file_id = p_file_id AND f.token = p_token AND f.status = 'registered'
            AND l.deleted_at IS NULL AND f.last_offset >= l.suffix_start
        ORDER BY why, f.split_id LIMIT 1;
    IF v_wrong.why IS NOT NULL THEN
        PERFORM refuse('TL026', format('split %s of %s in WAL file %s: %s', v_wrong.object_key,
                v_wrong.label, p_file_id, v_wrong.why),
            'Cut contiguous runs of exactly the claimed batches.');
    END IF;
END
$$;

-- p_splits: a jsonb array of {object_key, topic_id, partition, base_offset, last_offset,
-- byte_size, batch_count}. Again with the same input it succeeds and changes nothing. What has
-- expired, and keys that no run uses, go to garbage collection.
CREATE FUNCTION finish_split(p_worker uuid, p_file_id bigint, p_token bigint, p_splits jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
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
    PERFORM mark_split_batches(p_file_id, p_token);
    PERFORM assert_runs_match(p_file_id, p_token);
    UPDATE split_files AS f SET status = 'live', max_timestamp = m.newest
        FROM marked_runs(p_file_id) AS m, logs AS l
        WHERE f.split_id = m.split_id AND f.status = 'registered' AND l.log_id = f.log_id
            AND l.deleted_at IS NULL AND f.last_offset >= l.suffix_start;
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

-- What an earlier run of the same worker left, given back; returns how many files.
CREATE FUNCTION release_claims(p_worker uuid) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_files bigint[] := ARRAY(SELECT file_id FROM wal_file_claims
        WHERE worker = p_worker ORDER BY file_id FOR UPDATE);
BEGIN
    PERFORM mark_registered_splits_for_deletion(c.file_id, c.token)
        FROM wal_file_claims AS c WHERE c.file_id = ANY (v_files);
    DELETE FROM wal_file_claims WHERE file_id = ANY (v_files);
    RETURN cardinality(v_files);
END
$$;
