-- After a promotion nothing is committed before it is known that the new timeline lacks no commit that
-- somebody was told. The one on which commits are taken:
ALTER TABLE installation ADD COLUMN timeline bigint;
UPDATE installation SET
    timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint;
ALTER TABLE installation ALTER COLUMN timeline SET NOT NULL;

-- The timeline on which a gateway renewed or registered last.
ALTER TABLE gateways ADD COLUMN timeline bigint NOT NULL DEFAULT 0;
UPDATE gateways SET timeline = (SELECT i.timeline FROM installation AS i);
