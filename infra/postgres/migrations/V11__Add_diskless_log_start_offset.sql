-- B0: offsets below it are in tiered storage, offsets from it on are in the suffix. -1: not set
-- (seed 000, State model). A topic born diskless has B0 = 0.
ALTER TABLE logs
    ADD COLUMN diskless_log_start_offset bigint NOT NULL DEFAULT -1
        CHECK (diskless_log_start_offset >= -1),
    ADD CONSTRAINT state_says_whether_boundary_is_set CHECK (
        (migration_state IN ('HYBRID', 'DISKLESS_ONLY')) = (diskless_log_start_offset >= 0)),
    ADD CONSTRAINT quiesce_ends_with_boundary
        CHECK (diskless_log_start_offset = -1 OR quiesce = 'open'),
    ADD CONSTRAINT seeds_lie_below_boundary CHECK (
        diskless_log_start_offset = -1 OR seeds_last_offset < diskless_log_start_offset),
    ADD CONSTRAINT tiering_is_complete_only_with_boundary
        CHECK (NOT tiering_complete OR diskless_log_start_offset >= 0);
