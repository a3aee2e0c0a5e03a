-- A batch is as old as its largest timestamp says, or as its commit: a producer whose clock is years
-- ahead must not keep its partition from being tiered. The index is on the older of the two, and holds
-- both, so that counting what is old reads no row. Built while nobody commits: some seconds for each
-- ten million batches that are not split.
CREATE INDEX batches_by_age ON batches (log_id, least(max_timestamp, append_time))
    INCLUDE (max_timestamp, append_time, last_offset, file_id, byte_size) WHERE split_id IS NULL;
DROP INDEX batches_to_split;
