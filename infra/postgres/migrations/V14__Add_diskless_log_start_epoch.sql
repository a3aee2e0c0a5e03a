-- The leader epoch at which B0 was set; -1: never. Fencing only. It stays when B0 is reset, so
-- that a stale epoch cannot set it again (seed 000, "Persistence + immutability").
ALTER TABLE logs
    ADD COLUMN diskless_log_start_epoch integer NOT NULL DEFAULT -1
        CHECK (diskless_log_start_epoch >= -1),
    ADD CONSTRAINT boundary_has_epoch
        CHECK (diskless_log_start_offset = -1 OR diskless_log_start_epoch >= 0);
