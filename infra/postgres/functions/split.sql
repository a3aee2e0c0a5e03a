-- Nothing here locks a row that a commit needs.

-- How old a batch is, in ms: the largest timestamp that its producer gave it, but no later than its
-- commit. A clock that runs ahead does not keep a batch young. As in the index batches_by_age.
CREATE FUNCTION age_of(p_max_timestamp bigint, p_append_time bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_max_timestamp, p_append_time)
$$;

-- Whether a batch may be split: it is older than the cutoff, or was committed until the request of an
-- operator. Null: there is none.
CREATE FUNCTION may_be_split(
    p_max_timestamp bigint, p_append_time bigint, p_cutoff bigint, p_requested_until bigint
) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT age_of(p_max_timestamp, p_append_time) < p_cutoff OR p_append_time <= p_requested_until
$$;

-- Logs that have something to tier, with what makes one of their batches eligible: an age below
-- cutoff, or committed until the request of an operator. No eligible one is past newest.
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
        AND age_of(b.max_timestamp, b.append_time) <= p_newest
        AND may_be_split(b.max_timestamp, b.append_time, p_cutoff, p_requested_until)
$$;

-- Files that nobody may claim at that time: claimed, parked, or waiting after a failure.
CREATE FUNCTION withheld_wal_files(p_at timestamptz) RETURNS TABLE (file_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.file_id FROM wal_file_claims AS c WHERE c.expires_at > p_at
    UNION ALL SELECT f.key FROM tiering_failures AS f
        WHERE f.scope = 'split' AND (f.parked OR f.retry_at > p_at)
$$;

-- Of each log the oldest eligible batch from p_from on (ms, inclusive) that lies in none of p_passed:
-- one look into an index a log.
CREATE FUNCTION oldest_eligible(
    p_from bigint, p_passed bigint[], p_topic_ids uuid[], p_cutoffs bigint[]
) RETURNS TABLE (log_id bigint, file_id bigint, age bigint)
LANGUAGE sql STABLE AS $$
    SELECT h.log_id, found.file_id, found.age
    FROM split_horizons(p_topic_ids, p_cutoffs) AS h CROSS JOIN LATERAL (
        SELECT b.file_id, age_of(b.max_timestamp, b.append_time) AS age FROM eligible_batches(
                h.log_id, h.suffix_start, h.cutoff, h.requested_until, h.newest) AS b
            WHERE age_of(b.max_timestamp, b.append_time) >= p_from
                AND b.file_id NOT IN (SELECT unnest(p_passed))
            ORDER BY age_of(b.max_timestamp, b.append_time) LIMIT 1
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
        FROM (SELECT o.file_id, min(o.age) AS age
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
                    UNION ALL SELECT o.file_id, o.age
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
    -- In the order of their ids, so that two claims never wait for each other in a circle.
    PERFORM FROM wal_file_claims AS c WHERE c.file_id = ANY (v_files)
        ORDER BY c.file_id FOR UPDATE;
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

-- Those of the claims that are this worker's under these tokens, locked. An expired claim still is,
-- until somebody takes it over: nobody else can have touched the file.
CREATE FUNCTION held_split_claims(p_worker uuid, p_file_ids bigint[], p_tokens bigint[])
RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM wal_file_claims WHERE file_id = ANY (p_file_ids) ORDER BY file_id FOR UPDATE;
    -- Another statement: it sees what was committed while the first one waited.
    RETURN ARRAY(SELECT c.file_id FROM unnest(p_file_ids, p_tokens) AS g (file_id, token)
        JOIN wal_file_claims AS c USING (file_id, token)
        WHERE c.worker = p_worker ORDER BY c.file_id);
END
$$;

-- Sets split_id of every batch that lies in one of the recorded runs: of each run a look into the primary
-- key. "+ 0" keeps the planner from reading all batches of the file for each of its runs.
CREATE FUNCTION mark_split_batches(p_split_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE batches AS b SET split_id = f.split_id
        FROM split_files AS f
        WHERE f.split_id = ANY (p_split_ids) AND b.log_id = f.log_id
            AND b.last_offset BETWEEN f.base_offset AND f.last_offset
            AND b.file_id + 0 = f.file_id AND b.split_id IS NULL
$$;

-- What the marked batches of a run are.
CREATE FUNCTION marked_run(p_run split_files)
RETURNS TABLE (first bigint, last bigint, offsets bigint, bytes bigint, batches bigint)
LANGUAGE sql STABLE AS $$
    SELECT min(b.base_offset), max(b.last_offset),
           sum(b.last_offset - b.base_offset + 1)::bigint, sum(b.byte_size)::bigint, count(*)
    FROM batches AS b
    WHERE b.log_id = p_run.log_id AND b.split_id = p_run.split_id
        AND b.last_offset BETWEEN p_run.base_offset AND p_run.last_offset
$$;

-- Refuses a run that is not exactly its marked batches. The suffix's start is read after they are
-- marked: what retention removed before lies below it, so a run may lack its first batches, or all.
CREATE FUNCTION assert_runs_match(p_split_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_wrong record;
BEGIN
    SELECT f.file_id, coalesce(log_label(l), format('log %s', f.log_id)) AS label, CASE
            WHEN l.log_id IS NULL THEN 'there is no such log'
            WHEN m.batches = 0 THEN format('offsets %s to %s hold none of the file''s batches',
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
        LEFT JOIN logs AS l USING (log_id)
        CROSS JOIN LATERAL marked_run(f) AS m
        WHERE f.split_id = ANY (p_split_ids)
            AND l.deleted_at IS NULL AND (l.log_id IS NULL OR f.last_offset >= l.suffix_start)
        ORDER BY why, f.split_id LIMIT 1;
    IF v_wrong.why IS NOT NULL THEN
        PERFORM refuse('TL026', format('run of %s in WAL file %s: %s', v_wrong.label,
                v_wrong.file_id, v_wrong.why),
            'Cut contiguous runs of exactly the claimed batches.');
    END IF;
END
$$;

-- Records the runs that begin in the arrays, one element each, of the files whose claims hold, marks
-- their batches as split and ends the claims. Answers the files that are split now, and how many batches
-- of each: what is not among them is somebody else's. Again with the same input it answers the same and
-- changes nothing. A run that has expired, or whose topic was deleted, is left out.
CREATE FUNCTION finish_split(
    p_worker uuid, p_file_ids bigint[], p_tokens bigint[], p_run_files bigint[],
    p_log_ids bigint[], p_base_offsets bigint[], p_last_offsets bigint[], p_byte_sizes bigint[],
    p_batch_counts integer[], p_max_timestamps bigint[]
) RETURNS TABLE (file_id bigint, runs bigint, batches bigint, bytes bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_held bigint[] := held_split_claims(p_worker, p_file_ids, p_tokens);
    v_runs bigint[];
BEGIN
    WITH recorded AS (
        INSERT INTO split_files AS f (file_id, token, log_id, base_offset, last_offset,
                byte_size, batch_count, max_timestamp)
            SELECT c.file_id, c.token, r.log_id, r.base_offset, r.last_offset, r.byte_size,
                   r.batch_count, r.max_timestamp
            FROM unnest(p_run_files, p_log_ids, p_base_offsets, p_last_offsets, p_byte_sizes,
                p_batch_counts, p_max_timestamps) AS r (file_id, log_id, base_offset, last_offset,
                byte_size, batch_count, max_timestamp)
            JOIN wal_file_claims AS c USING (file_id)
            WHERE c.file_id = ANY (v_held)
            ORDER BY r.log_id, r.base_offset
            RETURNING f.split_id
    )
    SELECT array_agg(split_id) INTO v_runs FROM recorded;
    PERFORM mark_split_batches(v_runs), assert_runs_match(v_runs);
    DELETE FROM split_files AS f USING logs AS l
        WHERE f.split_id = ANY (v_runs) AND l.log_id = f.log_id
            AND (l.deleted_at IS NOT NULL OR f.last_offset < l.suffix_start);
    DELETE FROM tiering_failures WHERE scope = 'split' AND key = ANY (v_held);
    PERFORM note_tiering_work(p_worker, ARRAY['files.split', 'runs.split', 'batches.split',
            'bytes.split'], ARRAY[cardinality(v_held)::bigint, count(*),
            coalesce(sum(f.batch_count), 0)::bigint, coalesce(sum(f.byte_size), 0)::bigint])
        FROM split_files AS f WHERE f.split_id = ANY (v_runs);
    DELETE FROM wal_file_claims WHERE file_id = ANY (v_held);
    RETURN QUERY
    SELECT g.file_id, count(f.split_id), coalesce(sum(f.batch_count), 0)::bigint,
           coalesce(sum(f.byte_size), 0)::bigint
        FROM unnest(p_file_ids, p_tokens) AS g (file_id, token)
        LEFT JOIN split_files AS f ON f.file_id = g.file_id AND f.token = g.token
        WHERE f.split_id IS NOT NULL OR g.file_id = ANY (v_held)
        GROUP BY g.file_id ORDER BY g.file_id;
END
$$;

CREATE FUNCTION release_claim(p_worker uuid, p_file_id bigint, p_token bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    DELETE FROM wal_file_claims
        WHERE file_id = p_file_id AND worker = p_worker AND token = p_token
$$;

-- What an earlier run of the same worker left, given back: WAL files and partitions. Returns of how
-- many. Should that run still live, its next write is refused.
CREATE FUNCTION release_claims(p_worker uuid) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_files bigint[] := ARRAY(SELECT file_id FROM wal_file_claims
        WHERE worker = p_worker ORDER BY file_id FOR UPDATE);
    v_logs bigint[] := ARRAY(SELECT log_id FROM merge_claims
        WHERE worker = p_worker AND segment_id IS NOT NULL ORDER BY log_id FOR UPDATE);
BEGIN
    DELETE FROM wal_file_claims WHERE file_id = ANY (v_files);
    PERFORM end_merge_claim(c, 'a later run of its worker took over')
        FROM merge_claims AS c WHERE c.log_id = ANY (v_logs);
    RETURN cardinality(v_files) + cardinality(v_logs);
END
$$;
