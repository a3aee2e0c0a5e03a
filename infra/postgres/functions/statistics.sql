-- Makes statistics anew of tables with ten times what they say, and answers the names of these. Tables of work
-- are empty when it is done, and that is when autovacuum looks at them; when it comes by again is a
-- matter of minutes, and until then a plan may read a whole table for each row of another one. A table
-- that somebody else analyzes is passed over.
CREATE FUNCTION refresh_statistics() RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_stale text[] := ARRAY(SELECT c.relname FROM pg_class AS c
        WHERE c.relnamespace = 'tideline'::regnamespace AND c.relkind = 'r'
            AND pg_stat_get_live_tuples(c.oid) > 10 * greatest(c.reltuples, 100)
        ORDER BY c.relname);
    v_table text;
BEGIN
    FOREACH v_table IN ARRAY v_stale LOOP
        EXECUTE format('ANALYZE (SKIP_LOCKED) %I', v_table);
    END LOOP;
    RETURN v_stale;
END
$$;
