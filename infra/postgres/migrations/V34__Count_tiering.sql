-- Counters of split and merge (seed 002, 4.8.1). A job lives only as long as its run; what the
-- worker exports must outlive it. Names: tideline/domain/tiering_totals.py.
CREATE TABLE tiering_totals (
    total text PRIMARY KEY,
    value bigint NOT NULL CHECK (value >= 0)
);

-- In the order of the names, so that two drivers never wait for each other in a circle.
CREATE FUNCTION add_tiering_totals(p_totals text[], p_values bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(p_totals, p_values) AS t (total, value)
        WHERE total IS NULL OR value IS NULL OR value < 0) THEN
        PERFORM refuse('TL018', 'a counter cannot decrease',
            'Give one value of at least 0 for each counter.');
    END IF;
    INSERT INTO tiering_totals AS t (total, value)
        SELECT total, sum(value) FROM unnest(p_totals, p_values) AS given (total, value)
            GROUP BY total ORDER BY total
        ON CONFLICT (total) DO UPDATE SET value = t.value + excluded.value;
END
$$;

CREATE FUNCTION read_tiering_totals() RETURNS SETOF tiering_totals
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    SELECT * FROM tiering_totals ORDER BY total
$$;

GRANT EXECUTE ON FUNCTION add_tiering_totals TO tideline_jobs_rights;
GRANT EXECUTE ON FUNCTION read_tiering_totals
    TO tideline_jobs_rights, tideline_worker_rights;

-- What is eligible depends on the topics' configs, which the worker reads for its gauges.
GRANT EXECUTE ON FUNCTION log_id_range, tiering_partitions TO tideline_worker_rights;
