-- Group roles and the schema. Applied before every migration run; safe to repeat.
-- tideline_owner owns every object, so that SECURITY DEFINER functions never run as a superuser.
DO $$
DECLARE
    v_role text;
    -- From 16 on who creates a role is a member that may neither act as it nor has its rights.
    v_since_16 boolean := current_setting('server_version_num')::integer >= 160000;
BEGIN
    FOREACH v_role IN ARRAY ARRAY[
        'tideline_owner',
        'tideline_gateway_rights',
        'tideline_worker_rights',
        'tideline_jobs_rights'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
        END IF;
    END LOOP;
    IF v_since_16 THEN
        IF NOT pg_has_role(current_user, 'tideline_owner', 'SET')
            OR NOT pg_has_role(current_user, 'tideline_owner', 'USAGE') THEN
            EXECUTE format('GRANT tideline_owner TO %I WITH INHERIT TRUE, SET TRUE', current_user);
        END IF;
    ELSIF NOT pg_has_role(current_user, 'tideline_owner', 'MEMBER') THEN
        EXECUTE format('GRANT tideline_owner TO %I', current_user);
    END IF;
    -- Nobody else's login comes in. Who may only create in the database cannot say so for its owner.
    IF pg_has_role(current_user, (SELECT datdba FROM pg_database
            WHERE datname = current_database()), 'USAGE') THEN
        EXECUTE format('REVOKE CONNECT, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO tideline_gateway_rights, '
            'tideline_worker_rights, tideline_jobs_rights', current_database());
    END IF;
END
$$;

-- For attached_standbys, which tells how each standby follows. Where whoever applies this may not give
-- it, preflight says that it cannot see that.
DO $$
BEGIN
    IF NOT pg_has_role('tideline_owner', 'pg_read_all_stats', 'MEMBER') THEN
        GRANT pg_read_all_stats TO tideline_owner;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'tideline_owner has not got pg_read_all_stats';
END
$$;

CREATE SCHEMA IF NOT EXISTS tideline AUTHORIZATION tideline_owner;
GRANT USAGE ON SCHEMA tideline
    TO tideline_gateway_rights, tideline_worker_rights, tideline_jobs_rights;
ALTER DEFAULT PRIVILEGES FOR ROLE tideline_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- The catalog of the Iceberg tables of the jobs: pyiceberg reads and writes it.
CREATE SCHEMA IF NOT EXISTS tideline_records AUTHORIZATION tideline_owner;
GRANT USAGE ON SCHEMA tideline_records TO tideline_jobs_rights;
