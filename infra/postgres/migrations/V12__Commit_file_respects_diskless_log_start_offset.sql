-- Nothing is committed before B0 is set: there is no suffix, so it has no end and no timestamp.
ALTER TABLE logs
    ADD CONSTRAINT no_suffix_before_boundary CHECK (diskless_log_start_offset >= 0
        OR (high_watermark = -1 AND suffix_start = -1 AND max_timestamp = -1));
