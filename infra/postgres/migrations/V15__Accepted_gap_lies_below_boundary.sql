-- First offset of a log gap [it, B0) whose loss an operator has accepted, and the leader epoch at
-- which nobody had it; -1 if none.
ALTER TABLE logs ADD COLUMN accepted_gap_from bigint NOT NULL DEFAULT -1,
    ADD COLUMN accepted_gap_epoch integer NOT NULL DEFAULT -1,
    ADD CONSTRAINT accepted_gap_lies_below_b0
        CHECK (accepted_gap_from < 0 OR accepted_gap_from < diskless_log_start_offset);
