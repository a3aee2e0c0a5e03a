-- These two were created anew.
GRANT EXECUTE ON FUNCTION list_offsets
TO tideline_gateway_rights, tideline_worker_rights, tideline_jobs_rights;

GRANT EXECUTE ON FUNCTION find_batches TO tideline_gateway_rights, tideline_jobs_rights;

GRANT EXECUTE ON FUNCTION
    claim_wal_files, register_split_keys, finish_split, release_claim,
    merge_candidates, begin_merge, finish_merge, abandon_merge,
    record_tiering_failure, clear_tiering_failure,
    claim_dead_objects, forget_dead_objects, mark_orphans_for_deletion,
    record_coverage,
    log_id_range, file_id_range, tiering_partitions, tiering_batches, tiering_segments,
    tiering_wal_files
TO tideline_jobs_rights;

-- What operators see and steer; the worker exports it as metrics.
GRANT EXECUTE ON FUNCTION
    tiering_status, coverage_status, pause_tiering, resume_tiering, request_tiering
TO tideline_jobs_rights, tideline_worker_rights;
