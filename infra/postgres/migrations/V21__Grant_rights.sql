-- Least privilege: no role reads or writes a table; each may call the functions of its part.
GRANT EXECUTE ON FUNCTION
    list_gateways, server_identity, tracked_topics, tracked_partition, config_overrides_of,
    get_diskless_log_start_offset, list_offsets, high_watermarks, migration_status
TO tideline_gateway_rights, tideline_worker_rights, tideline_jobs_rights;

GRANT EXECUTE ON FUNCTION
    register_gateway, renew_lease, acknowledge_tracking, acknowledge_quiesce,
    void_expired_quiesce, register_object_keys, commit_file, find_batches,
    delete_records, advance_prefix_start,
    -- A gateway creates topics that are born diskless, and reports what clients do to topics.
    begin_tracking, complete_creation, tracking_barrier, activate_topic, add_partitions,
    stop_tracking, delete_topic, update_user_config, request_migration
TO tideline_gateway_rights;

GRANT EXECUTE ON FUNCTION
    fence_gateway, retire_gateway, begin_tracking, tracking_barrier, activate_topic,
    add_partitions, stop_tracking, delete_topic, next_generation, close_generation,
    quiesce_barrier, reopen_generation, initialize_diskless_migration, seed_producer_state,
    set_diskless_log_start_offset, reset_boundary, abort_migration, request_migration,
    pending_requests, request_taken, record_phase, set_tiering_complete, override_config,
    update_user_config, release_config, advance_prefix_start
TO tideline_worker_rights;

GRANT EXECUTE ON FUNCTION
    find_batches, delete_records, advance_prefix_start, set_tiering_complete,
    expire_producers, prune_batches, claim_dead_files, forget_dead_files
TO tideline_jobs_rights;
