-- Advances the start of the suffix; -1 means its high watermark. Never moves it back, and never
-- touches the prefix's start unless records of the suffix go: an empty suffix whose start "moves"
-- to the boundary must not take the prefix with it. Answers the suffix's start.
CREATE FUNCTION delete_records(p_topic_id uuid, p_partition integer, p_before_offset bigint)
RETURNS bigint
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
    PERFORM notify_log(p_topic_id, p_partition);
    RETURN v_before;
END
$$;
