-- Postgres looks after a table when a fifth of it is dead. Of 10^9 rows that are 2 * 10^8, and the
-- one vacuum that follows takes hours. What grows with what clients send is looked after more often,
-- and a vacuum may do ten times the work between two of its pauses. The work of all of them goes
-- through every index: the share is not smaller than a fiftieth, so that a row that lives and dies
-- is read over fifty times at most.
-- Without truncation: it waits for a lock that nobody shares, and commits wait behind it.
ALTER TABLE batches SET (autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
ALTER TABLE wal_files SET (autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = off);
ALTER TABLE split_files SET (autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off);
ALTER TABLE merged_segments SET (autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02, vacuum_truncate = off);
ALTER TABLE producer_state SET (autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 2000,
    vacuum_truncate = off);
ALTER TABLE marked_objects SET (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);
ALTER TABLE orphan_reports SET (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = off);
-- Queues: nearly empty, and read from their beginning, over everything that is dead there.
ALTER TABLE lessened_files SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
ALTER TABLE tracking_changes SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
