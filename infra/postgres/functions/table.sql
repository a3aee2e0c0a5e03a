-- A hybrid topic as a table: what is read, who reads it, and what a verification found.

-- Pins what can be read now against the collection for p_ttl_ms, or holds a pin for that long from now
-- on. No pin lasts longer than a day: a reader that goes on asking must not keep garbage for ever.
CREATE FUNCTION pin_reads(p_pin_id uuid, p_reader text, p_ttl_ms bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF p_ttl_ms <= 0 THEN
        PERFORM refuse('TL018', format('a pin of %s ms pins nothing', p_ttl_ms),
            'Give a time of at least 1 ms.');
    END IF;
    DELETE FROM read_pins WHERE expires_at < clock_timestamp() - interval '1 day';
    INSERT INTO read_pins AS p (pin_id, reader, expires_at)
        VALUES (p_pin_id, p_reader, clock_timestamp()
            + least(p_ttl_ms, 86400000) * interval '1 millisecond')
        ON CONFLICT (pin_id) DO UPDATE SET expires_at = least(
            greatest(p.expires_at, excluded.expires_at), p.pinned_at + interval '1 day');
END
$$;

-- The read is over.
CREATE FUNCTION unpin_reads(p_pin_id uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    DELETE FROM read_pins WHERE pin_id = p_pin_id
$$;

-- Objects that died before this may go: a grace ago, and before the oldest reader began. A transaction
-- that marks an object may commit a moment after the time that it notes, so that a minute is left.
CREATE FUNCTION collection_horizon(p_grace_ms bigint) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_grace_ms IS NOT NULL THEN least(
        clock_timestamp() - p_grace_ms * interval '1 millisecond',
        (SELECT min(pinned_at) - interval '1 minute' FROM read_pins
            WHERE expires_at > clock_timestamp()),
        -- What a segment was merged from dies after it was finished, and may be the only copy until
        -- somebody has seen the segment whole.
        (SELECT min(finished_at) - interval '1 minute' FROM merged_segments
            WHERE state = 'COPY_SEGMENT_FINISHED' AND seen_whole_at IS NULL)) END
$$;

-- Readers whose pins hold, the oldest first.
CREATE FUNCTION list_read_pins()
RETURNS TABLE (pin_id uuid, reader text, pinned_ms bigint, expires_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT p.pin_id, p.reader, epoch_ms(p.pinned_at), epoch_ms(p.expires_at)
        FROM read_pins AS p WHERE p.expires_at > clock_timestamp() ORDER BY p.pinned_at, p.pin_id
$$;

-- [lo, hi) holds the log ids of the topic that has this name now, and others; equal without one.
CREATE FUNCTION topic_log_ids(p_topic text) RETURNS TABLE (lo bigint, hi bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT coalesce(min(log_id), 0), coalesce(max(log_id) + 1, 0)
        FROM logs WHERE topic_name = p_topic AND deleted_at IS NULL
$$;

-- What holds the offsets [p_from, p_to) of a suffix, in one snapshot: a row for where the suffix begins
-- and ends (last_offset: the last one that is committed), merged segments, and runs of batches in WAL
-- objects of about p_chunk_bytes. Indexes know last offsets only: the first one that reaches p_to is looked
-- up, else a short range would be read to the log's end. (Settings: as at the top of read.sql.)
CREATE FUNCTION table_suffix(
    p_log_id bigint, p_from bigint, p_to bigint, p_chunk_bytes bigint
) RETURNS TABLE (
    place text, segment_id uuid, object_key_stem text, base_offset bigint, last_offset bigint,
    byte_size bigint, max_timestamp bigint, offset_index_bytes integer, time_index_bytes integer
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp
SET jit = off SET enable_sort = off AS $$
    SELECT 'log', NULL::uuid, NULL::text,
           greatest(l.diskless_log_start_offset, l.suffix_start), l.high_watermark - 1,
           0::bigint, -1::bigint, 0, 0
        FROM logs AS l WHERE l.log_id = p_log_id AND l.deleted_at IS NULL
    UNION ALL
    SELECT 'merged', m.segment_id, m.object_key_stem, m.base_offset, m.last_offset, m.size_bytes,
           m.max_timestamp, m.offset_index_bytes, m.time_index_bytes
        FROM merged_segments AS m
        WHERE m.log_id = p_log_id AND m.state = 'COPY_SEGMENT_FINISHED'
            AND m.last_offset >= p_from AND m.base_offset < p_to
            AND m.last_offset <= coalesce((
                SELECT last_offset FROM merged_segments
                    WHERE log_id = p_log_id AND state = 'COPY_SEGMENT_FINISHED'
                        AND last_offset >= p_to - 1
                    ORDER BY last_offset LIMIT 1), 9223372036854775807)
    UNION ALL
    SELECT 'wal', NULL, NULL, min(c.base_offset), max(c.last_offset), sum(c.byte_size)::bigint,
           max(c.max_timestamp), 0, 0
        FROM (
            SELECT b.base_offset, b.last_offset, b.byte_size, b.max_timestamp,
                   (sum(b.byte_size) OVER (ORDER BY b.last_offset) - b.byte_size)
                       / greatest(p_chunk_bytes, 1) AS chunk
                FROM batches AS b
                WHERE b.log_id = p_log_id AND b.last_offset >= p_from AND b.base_offset < p_to
                    AND b.last_offset <= coalesce((
                        SELECT last_offset FROM batches
                            WHERE log_id = p_log_id AND last_offset >= p_to - 1
                            ORDER BY last_offset LIMIT 1), 9223372036854775807)
        ) AS c GROUP BY c.chunk
    ORDER BY 4, 5
$$;

CREATE FUNCTION record_verify_verdict(
    p_topic_id uuid, p_run_id uuid, p_sample double precision, p_ranges bigint, p_records bigint,
    p_bytes bigint, p_differences bigint, p_detail jsonb
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO verify_verdicts (topic_id, run_id, sample, ranges, records, byte_count, differences,
            detail)
        VALUES (p_topic_id, p_run_id, p_sample, p_ranges, p_records, p_bytes, p_differences,
            p_detail)
        ON CONFLICT (topic_id) DO UPDATE SET run_id = excluded.run_id, verified_at = excluded.verified_at, sample = excluded.sample,
            ranges = excluded.ranges, records = excluded.records, byte_count = excluded.byte_count,
            differences = excluded.differences, detail = excluded.detail
$$;

-- The last verdict on each live topic, or on p_topic.
CREATE FUNCTION verify_verdicts_of(p_topic text)
RETURNS TABLE (
    topic text, topic_id uuid, run_id uuid, verified_at timestamptz, sample double precision,
    ranges bigint, records bigint, byte_count bigint, differences bigint, detail jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT t.name, t.topic_id, v.run_id, v.verified_at, v.sample, v.ranges, v.records,
           v.byte_count, v.differences, v.detail
        FROM verify_verdicts AS v JOIN topics AS t USING (topic_id)
        WHERE t.status <> 'deleted' AND (p_topic IS NULL OR t.name = p_topic)
        ORDER BY t.name
$$;
