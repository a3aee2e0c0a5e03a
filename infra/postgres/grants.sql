-- Least privilege: no role reads or writes a table, except those of a catalog that is not ours to
-- define, at the end; each may call the functions of its part.

-- What everybody reads.
GRANT EXECUTE ON FUNCTION
    list_gateways, server_identity, tracked_topics, tracked_partition, config_overrides_of,
    list_offsets, high_watermarks, migration_status,
    migration_summary, migration_changes, migration_status_changes, topic_states,
    list_requests, cluster_attestations_of, watch_findings_of, live_topics, deleted_topics,
    tracked_changes, tracked_changes_begin, unaccounted_incarnations, attached_standbys
TO tideline_gateway_rights, tideline_worker_rights, tideline_jobs_rights;

GRANT EXECUTE ON FUNCTION
    register_gateway, renew_lease, renew_and_list, note_serving, release_gateway, account_incarnations,
    bind_cluster, halt_history, unknown_keys,
    acknowledge_tracking, acknowledge_quiesce,
    confirm_partitions,
    void_expired_quiesce, register_object_keys, commit_file, has_committed, untold_commits, find_batches,
    describe_producers, delete_records, advance_prefix_start,
    -- A gateway says what clients do to topics. What Kafka has made of it the worker asks the
    -- brokers, before a topic gets B0 = 0 or is buried.
    ask_birth, withdraw_birth, report_deletion, tracking_barrier, add_partitions,
    update_user_config, update_topic_limits, request_migration
TO tideline_gateway_rights;

GRANT EXECUTE ON FUNCTION
    fence_gateway, retire_gateway, attest_incarnations_gone, attest_cluster, withdraw_attestation,
    bind_cluster, halt_history, unknown_keys, beat_history, begin_history,
    unheard_gateways, settle_for_absent,
    open_births, begin_birth, refuse_birth, open_deletions, settle_deletion,
    -- Not begin_tracking: a migration begins under an attestation only, a birth by its name.
    begin_migration, end_tracking_run, tracking_barrier, activate_topic,
    add_partitions, stop_tracking, delete_topic, release_birth, complete_creation,
    next_generation, close_generation,
    quiesce_barrier, reopen_generation, initialize_diskless_migration,
    reset_boundary, abort_migration, request_migration,
    pending_requests, started_requests, settle_request, call_off_request, record_configuration, accept_gap,
    force_completion, list_operator_actions, told_of_topics, record_plan_outcome, plan_outcomes_of,
    take_migration_place, leave_migration_place, migration_limits_of, set_migration_limits,
    migration_share,
    aborted_topics, rejected_topics, record_phase, phase_began, phase_durations, record_readiness, set_tiering_complete, override_config,
    update_user_config, update_topic_limits, follow_default_limit, record_findings, release_config,
    advance_prefix_start,
    -- What is eligible depends on the topics' configs, which the worker reads for its gauges.
    log_id_range, tiering_partitions, read_tiering_totals, oldest_unsplit, estimate_batch_rows
TO tideline_worker_rights;

GRANT EXECUTE ON FUNCTION
    find_batches, delete_records, advance_prefix_start, set_tiering_complete,
    expire_producers, forget_tracking_changes, prune_batches, claim_dead_files, forget_dead_files,
    retention_suffix, retention_wal_cut,
    claim_wal_files, finish_split, release_claim, release_claims,
    merge_candidates, begin_merge, renew_merge, merge_claimed_for, finish_merge, abandon_merge,
    take_tiering_work, pending_reads,
    record_tiering_failure, add_tiering_totals, read_tiering_totals,
    unseen_segments, note_segments_seen,
    forget_uncommitted_keys, mark_dead_objects, claim_dead_objects, forget_dead_objects,
    report_orphans, unknown_objects, claim_orphans, forget_orphans, preview_garbage,
    begin_gc_run, measure_garbage, judge_gc_run, end_gc_run, allow_gc_run,
    adopt_gc_runs, confirm_coverage, record_coverages, coverage_looks,
    note_job_begun, note_job_ended, refresh_statistics,
    pin_reads, unpin_reads, list_read_pins, topic_log_ids, table_suffix, record_verify_verdict,
    log_id_range, tiering_partitions, tiering_batches, tiering_segments,
    oldest_unsplit, split_work, estimate_batch_rows
TO tideline_jobs_rights;

-- What operators see and steer; the worker exports it as metrics.
GRANT EXECUTE ON FUNCTION
    tiering_status, coverage_status, pause_tiering, resume_tiering, request_tiering, list_gc_runs,
    jobs_known, verify_verdicts_of
TO tideline_jobs_rights, tideline_worker_rights;

GRANT SELECT, INSERT, UPDATE, DELETE ON
    tideline_records.iceberg_tables, tideline_records.iceberg_namespace_properties
TO tideline_jobs_rights;
