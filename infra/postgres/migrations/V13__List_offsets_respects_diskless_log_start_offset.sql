-- The suffix begins at B0 or later: what it answers for an offset or a time never lies below.
ALTER TABLE logs
    ADD CONSTRAINT suffix_starts_at_boundary_or_later
        CHECK (suffix_start >= diskless_log_start_offset);
