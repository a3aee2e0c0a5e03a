-- Which state of a partition may follow which: the same table as tideline.domain.migration.STATE_MOVES.

CREATE FUNCTION state_moves() RETURNS TABLE (origin text, target text)
LANGUAGE sql IMMUTABLE AS $$
    VALUES
        ('TIERED_ONLY', 'MIGRATING'),
        ('MIGRATING', 'HYBRID'),
        ('MIGRATING', 'DISKLESS_ONLY'),
        ('MIGRATING', 'TIERED_ONLY'),
        ('HYBRID', 'DISKLESS_ONLY'),
        ('HYBRID', 'MIGRATING'),
        ('DISKLESS_ONLY', 'HYBRID')
$$;

-- Whatever function writes: a move that is not in the table changes nothing. A rebuild, over a halted
-- history, writes what the bucket says.
CREATE FUNCTION assert_state_move() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF (SELECT halted FROM installation) IS NULL AND NOT EXISTS (
            SELECT FROM state_moves()
            WHERE origin = OLD.migration_state AND target = NEW.migration_state) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation', CONSTRAINT = 'legal_state_move',
            MESSAGE = format('legal_state_move: %s does not become %s out of %s',
                log_label(NEW), NEW.migration_state, OLD.migration_state);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER assert_state_move BEFORE UPDATE OF migration_state ON logs
    FOR EACH ROW WHEN (OLD.migration_state <> NEW.migration_state)
    EXECUTE FUNCTION assert_state_move();
