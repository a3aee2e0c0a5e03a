-- What is known of the periodic jobs as such. One command may do the work of several.

-- The last failure stays known.
CREATE FUNCTION note_job_begun(p_jobs text[], p_run_id uuid) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO job_attempts AS a (job, run_id, began_at)
        SELECT job, p_run_id, clock_timestamp() FROM unnest(p_jobs) AS job GROUP BY job ORDER BY job
        ON CONFLICT (job) DO UPDATE SET
            run_id = excluded.run_id, began_at = excluded.began_at, ended_at = NULL
$$;

-- An older run that ends later than a newer one began says how it ended, and leaves the newer one
-- running. Lost rows of records add up.
CREATE FUNCTION note_job_ended(
    p_jobs text[], p_run_id uuid, p_error text, p_records_overdue_since timestamptz,
    p_records_lost bigint
) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO job_successes AS j (job, succeeded_at)
        SELECT job, clock_timestamp() FROM unnest(p_jobs) AS job
        WHERE p_error IS NULL GROUP BY job ORDER BY job
        ON CONFLICT (job) DO UPDATE SET succeeded_at = excluded.succeeded_at;
    INSERT INTO job_attempts AS a (
            job, run_id, began_at, ended_at, failed_at, error, records_overdue_since, records_lost
        )
        SELECT job, p_run_id, clock_timestamp(), clock_timestamp(),
            CASE WHEN p_error IS NOT NULL THEN clock_timestamp() END, left(p_error, 2000),
            p_records_overdue_since, p_records_lost
        FROM unnest(p_jobs) AS job GROUP BY job ORDER BY job
        ON CONFLICT (job) DO UPDATE SET
            ended_at = CASE WHEN a.run_id = p_run_id THEN excluded.ended_at ELSE a.ended_at END,
            failed_at = coalesce(excluded.failed_at, a.failed_at),
            error = coalesce(excluded.error, a.error),
            records_overdue_since = excluded.records_overdue_since,
            records_lost = a.records_lost + excluded.records_lost
$$;

-- Times are ms since the epoch on the clock of this server, and so is now_ms. Without jobs that no
-- whole run was ever begun of.
CREATE FUNCTION jobs_known() RETURNS TABLE (
    job text, run_id uuid, began_ms bigint, ended_ms bigint, succeeded_ms bigint, failed_ms bigint,
    error text, records_overdue_ms bigint, records_lost bigint, now_ms bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT job, a.run_id, epoch_ms(a.began_at), epoch_ms(a.ended_at), epoch_ms(s.succeeded_at),
        epoch_ms(a.failed_at), a.error, epoch_ms(a.records_overdue_since),
        coalesce(a.records_lost, 0), epoch_ms(clock_timestamp())
    FROM job_attempts AS a FULL JOIN job_successes AS s USING (job) ORDER BY job
$$;
