-- The regions of a log: Kafka's prefix, merged segments, batches in WAL objects. Where each begins
-- and ends, and how retention moves that. What it passes is left to garbage collection.

-- F: the first offset that is not merged, B0 while nothing is.
CREATE FUNCTION merge_frontier(p_log logs) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(p_log.diskless_log_start_offset, p_log.tiered_high_offset + 1)
$$;

-- Kafka still holds something below B0.
CREATE FUNCTION has_prefix(p_log logs) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_log.tiered_log_start_offset >= 0
        AND p_log.tiered_log_start_offset < p_log.diskless_log_start_offset
$$;

-- The first readable offset of the merged segments for a suffix that starts at p_suffix_start, or
-- null if there is none. They have no gaps.
CREATE FUNCTION first_merged_offset(p_log_id bigint, p_suffix_start bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT greatest(base_offset, p_suffix_start) FROM merged_segments
        WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
            AND last_offset >= p_suffix_start
        ORDER BY last_offset LIMIT 1
$$;

-- A log without Kafka's prefix and without a readable merged segment is DISKLESS_ONLY; with one
-- it is HYBRID and its tiered region starts where the suffix does.
CREATE FUNCTION settle_tiered_region(p_log_id bigint) RETURNS void
LANGUAGE sql AS $$
    WITH region AS (
        SELECT l.log_id, first_merged_offset(l.log_id, l.suffix_start) AS start
            FROM logs AS l
            WHERE l.log_id = p_log_id AND l.migration_state = 'HYBRID' AND NOT has_prefix(l)
    )
    UPDATE logs AS l SET
            tiered_log_start_offset = coalesce(r.start, -1),
            tiered_high_offset = CASE WHEN r.start IS NULL THEN -1 ELSE l.tiered_high_offset END,
            migration_state = CASE WHEN r.start IS NULL THEN 'DISKLESS_ONLY' ELSE 'HYBRID' END
        FROM region AS r WHERE l.log_id = r.log_id
$$;

-- Advances the start of the suffix, through merged segments and batches alike; -1 means its high
-- watermark. Never moves it back, and never touches the prefix's start unless records of the suffix
-- go: an empty suffix whose start "moves" to the boundary must not take the prefix with it. What it
-- passes is left to garbage collection. Answers the suffix's start.
CREATE FUNCTION delete_records(
    p_topic_id uuid, p_partition integer, p_before_offset bigint
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_before bigint := CASE p_before_offset WHEN -1 THEN v_log.high_watermark
                                            ELSE p_before_offset END;
BEGIN
    IF v_log.suffix_start < 0 THEN
        PERFORM refuse('TL022',
            format('partition %s-%s has no diskless suffix yet', v_log.topic_name, p_partition),
            'Delete records through the classic log until B0 is set.');
    ELSIF v_before < 0 OR v_before > v_log.high_watermark THEN
        PERFORM refuse('TL020',
            format('offset %s of %s-%s lies outside 0..%s (its high watermark)', p_before_offset,
                v_log.topic_name, p_partition, v_log.high_watermark),
            'Choose an offset up to the high watermark, or -1 for it.');
    ELSIF v_before <= v_log.suffix_start THEN
        RETURN v_log.suffix_start;
    END IF;
    UPDATE logs SET suffix_start = v_before,
            log_start_offset = greatest(log_start_offset, v_before)
        WHERE log_id = v_log.log_id;
    IF v_log.tiered_high_offset >= v_log.diskless_log_start_offset THEN
        PERFORM settle_tiered_region(v_log.log_id);
    END IF;
    PERFORM notify_log(p_topic_id, p_partition);
    RETURN v_before;
END
$$;

-- Kafka's log start of the prefix moved (retention, DeleteRecords). Never moves back. Clipped to
-- B0, which never moves; where an accepted log gap begins it is at B0, since nothing lies between.
-- At B0 the prefix is gone, and the partition is DISKLESS_ONLY unless it has merged segments.
CREATE FUNCTION advance_prefix_start(
    p_topic_id uuid, p_partition integer, p_log_start bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_start bigint := least(p_log_start, v_log.diskless_log_start_offset);
BEGIN
    IF v_log.accepted_gap_from BETWEEN 0 AND v_start THEN
        v_start := v_log.diskless_log_start_offset;
    END IF;
    IF v_log.migration_state <> 'HYBRID' THEN
        RETURN;
    ELSIF v_start < v_log.diskless_log_start_offset THEN
        IF v_start <= v_log.tiered_log_start_offset THEN
            RETURN;
        END IF;
        UPDATE logs SET tiered_log_start_offset = v_start,
                log_start_offset = greatest(log_start_offset, v_start)
            WHERE log_id = v_log.log_id;
    ELSIF NOT has_prefix(v_log) AND v_log.tiered_high_offset >= v_log.diskless_log_start_offset
    THEN
        RETURN;
    ELSE
        UPDATE logs SET tiered_log_start_offset = -1,
                tiering_complete = true, tiering_reason = 'the prefix has expired',
                log_start_offset = greatest(log_start_offset, suffix_start)
            WHERE log_id = v_log.log_id;
        PERFORM settle_tiered_region(v_log.log_id);
    END IF;
    PERFORM notify_log(p_topic_id, p_partition);
END
$$;

-- tieringComplete: any replica may serve the prefix. Cleared when the prefix is no longer whole.
-- Never says that less is tiered than is merged. Without a prefix nothing is missing from it.
CREATE FUNCTION set_tiering_complete(
    p_topic_id uuid, p_partition integer, p_generation integer, p_complete boolean, p_reason text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_complete boolean := p_complete OR v_log.migration_state = 'DISKLESS_ONLY';
BEGIN
    PERFORM assert_generation(v_log, p_generation);
    IF p_complete AND v_log.diskless_log_start_offset < 0 THEN
        PERFORM refuse('TL022', format('%s has no B0 yet', log_label(v_log)),
            'Tiering is complete up to B0 - 1 only once B0 is set.');
    END IF;
    UPDATE logs SET tiering_complete = v_complete, tiering_reason = p_reason,
            tiered_high_offset = CASE
                WHEN diskless_log_start_offset >= 0
                    AND tiered_high_offset >= diskless_log_start_offset THEN tiered_high_offset
                WHEN v_complete AND has_prefix(v_log) THEN diskless_log_start_offset - 1
                ELSE -1 END
        WHERE log_id = v_log.log_id;
    IF v_log.tiering_complete <> v_complete THEN
        PERFORM notify_log(p_topic_id, p_partition);
    END IF;
END
$$;

-- Of many partitions of a topic whether they are ready: p_looks is an array of objects with
-- partition, generation, complete, reason and evidence. Answers the partitions of which it was kept;
-- one of another generation, without B0 or not live is left out, as if each had been refused alone,
-- and so is a wait that somebody saw before the partition was found ready.
CREATE FUNCTION record_readiness(p_topic_id uuid, p_looks jsonb) RETURNS SETOF integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_look record;
BEGIN
    FOR v_look IN
        SELECT w.* FROM jsonb_to_recordset(p_looks) AS w (
                partition integer, generation integer, complete boolean, reason text, evidence jsonb)
            JOIN logs AS l ON l.topic_id = p_topic_id AND l.partition = w.partition
                AND l.deleted_at IS NULL AND l.generation = w.generation
                AND l.diskless_log_start_offset >= 0 AND (w.complete OR NOT l.tiering_complete)
            -- In the order of all who lock rows of several partitions.
            ORDER BY l.log_id FOR UPDATE OF l
    LOOP
        PERFORM record_phase(p_topic_id, v_look.partition, v_look.generation, 'readiness',
            CASE WHEN v_look.complete THEN 'done' ELSE 'waiting' END, v_look.evidence,
            CASE WHEN NOT v_look.complete THEN v_look.reason END);
        IF v_look.complete THEN
            PERFORM set_tiering_complete(
                p_topic_id, v_look.partition, v_look.generation, true, v_look.reason);
        END IF;
        RETURN NEXT v_look.partition;
    END LOOP;
END
$$;

-- When what has no timestamp is as old as it is: when it came, as in Kafka (LogSegment.largestTimestamp).
CREATE FUNCTION largest_timestamp(p_largest bigint, p_came bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_largest < 0 THEN p_came ELSE p_largest END
$$;

-- The units of the suffixes of p_log_ids: merged segments (region 1) and, where p_sized says so,
-- all WAL batches as one row (region 2). One statement, so that a batch that is merged meanwhile
-- counts once.
CREATE FUNCTION retention_suffix(p_log_ids bigint[], p_sized boolean[])
RETURNS TABLE (
    log_id bigint, region integer, start_offset bigint, end_offset bigint, size_bytes bigint,
    max_timestamp bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT l.log_id, u.*
    FROM unnest(p_log_ids, p_sized) AS wanted (log_id, sized)
    JOIN logs AS l USING (log_id)
    CROSS JOIN LATERAL (
        SELECT 1, s.base_offset, s.last_offset, s.size_bytes,
                largest_timestamp(s.max_timestamp, epoch_ms(s.finished_at))
            FROM merged_segments AS s
            WHERE s.log_id = l.log_id AND s.state = 'COPY_SEGMENT_FINISHED'
                AND s.last_offset >= l.suffix_start
        UNION ALL
        SELECT 2, min(b.base_offset), max(b.last_offset), sum(b.byte_size)::bigint, -1::bigint
            FROM batches AS b
            WHERE wanted.sized AND b.log_id = l.log_id
                AND b.last_offset >= l.suffix_start
            HAVING count(*) > 0
    ) AS u
    WHERE l.deleted_at IS NULL AND l.suffix_start >= 0
$$;

-- The leading run of WAL batches that retention removes, log by log: a batch goes when its
-- largest timestamp is at most the cutoff (-1: none is), else while the excess holds all of it; either
-- way the excess shrinks. tideline.domain.retention.LeadingRun is the same rule.
-- Answers before_offset (exclusive). Looks at no more than p_limit batches in all: a log that is
-- not reached is left out, and what is left over is the next run's. Without a sort, whatever statistics
-- say: it would read all of the log.
CREATE FUNCTION retention_wal_cut(
    p_log_ids bigint[], p_from bigint[], p_cutoffs bigint[], p_excess bigint[], p_limit integer
) RETURNS TABLE (
    log_id bigint, before_offset bigint, by_time bigint, by_size bigint, removed_bytes bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_left integer := p_limit;
    v_excess bigint;
    v_batch record;
BEGIN
    FOR i IN 1 .. cardinality(p_log_ids) LOOP
        EXIT WHEN v_left <= 0;
        log_id := p_log_ids[i];
        before_offset := p_from[i];
        by_time := 0;
        by_size := 0;
        removed_bytes := 0;
        v_excess := p_excess[i];
        FOR v_batch IN
            SELECT b.base_offset, b.last_offset, b.byte_size,
                    largest_timestamp(b.max_timestamp, b.append_time) AS max_timestamp
                FROM batches AS b
                WHERE b.log_id = p_log_ids[i] AND b.last_offset >= p_from[i]
                ORDER BY b.last_offset LIMIT v_left
        LOOP
            v_left := v_left - 1;
            -- What stood here was merged since the caller looked.
            EXIT WHEN v_batch.base_offset > before_offset;
            IF p_cutoffs[i] >= 0 AND v_batch.max_timestamp <= p_cutoffs[i] THEN
                by_time := by_time + 1;
            ELSIF v_excess > 0 AND v_batch.byte_size <= v_excess THEN
                by_size := by_size + 1;
            ELSE
                EXIT;
            END IF;
            v_excess := greatest(v_excess - v_batch.byte_size, 0);
            removed_bytes := removed_bytes + v_batch.byte_size;
            before_offset := v_batch.last_offset + 1;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Where at most p_limit batch rows lie that nobody can read: below the start of their suffix, or of a deleted
-- topic.
CREATE FUNCTION unreadable_batches(p_limit integer)
RETURNS TABLE (batch tid, file_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT dead.ctid, dead.file_id
        FROM logs AS l CROSS JOIN LATERAL (
            SELECT b.ctid, b.file_id FROM batches AS b
                WHERE b.log_id = l.log_id AND b.last_offset < CASE
                    WHEN l.deleted_at IS NULL THEN l.suffix_start
                    ELSE 9223372036854775807 END
                ORDER BY b.last_offset LIMIT p_limit
        ) AS dead
        LIMIT p_limit
$$;

-- Removes at most p_limit batch rows that nobody can read: below the start of their suffix, or of
-- a deleted topic; and the producer state of deleted topics. Locks no row that a commit needs.
-- Answers how many batch rows went; call again while it answers p_limit.
CREATE FUNCTION prune_batches(p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_pruned integer;
BEGIN
    WITH gone AS (
        -- Not by their keys: where statistics say that there is no batch, a join reads all of them
        -- for each. One that split has marked meanwhile may be the next run's.
        DELETE FROM batches AS b
            WHERE b.ctid = ANY (ARRAY(SELECT dead.batch FROM unreadable_batches(p_limit) AS dead))
            RETURNING b.file_id
    ), lessened AS (
        INSERT INTO lessened_files (file_id) SELECT DISTINCT file_id FROM gone
    )
    SELECT count(*) INTO v_pruned FROM gone;
    -- Nor these by a join, which reads all logs for each of them then.
    DELETE FROM producer_state WHERE ctid = ANY (ARRAY(
        SELECT p.producer FROM logs AS l CROSS JOIN LATERAL (
            SELECT s.ctid AS producer FROM producer_state AS s WHERE s.log_id = l.log_id OFFSET 0
        ) AS p WHERE l.deleted_at IS NOT NULL));
    RETURN v_pruned;
END
$$;
