-- What is known of the periodic jobs as such.

CREATE FUNCTION note_job_success(p_jobs text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    INSERT INTO job_successes AS j (job, succeeded_at)
        SELECT job, clock_timestamp() FROM unnest(p_jobs) AS job GROUP BY job ORDER BY job
        ON CONFLICT (job) DO UPDATE SET succeeded_at = excluded.succeeded_at
$$;

-- The time in ms since the epoch, on the clock of this server.
CREATE FUNCTION job_successes_known() RETURNS TABLE (job text, succeeded_ms bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT job, epoch_ms(succeeded_at) FROM job_successes
$$;
