-- The start of the suffix moves through merged segments and batches alike. What it passes is left
-- to garbage collection; the tiered region's start and the state follow at once.

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

CREATE OR REPLACE FUNCTION delete_records(
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

-- As V18's, and a log with merged segments stays HYBRID when its prefix is gone.
CREATE OR REPLACE FUNCTION advance_prefix_start(
    p_topic_id uuid, p_partition integer, p_log_start bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_log logs := lock_log(p_topic_id, p_partition);
    v_start bigint := least(p_log_start, v_log.diskless_log_start_offset);
BEGIN
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

-- As V18's, and never says that less is tiered than is merged. Without a prefix nothing is missing
-- from it.
CREATE OR REPLACE FUNCTION set_tiering_complete(
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
