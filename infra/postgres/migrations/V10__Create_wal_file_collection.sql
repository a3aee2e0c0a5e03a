-- Object keys that may be deleted: registered or committed at least p_grace_ms ago and without a
-- live batch. They are marked deleting, so that no commit can bring them back; keys that an
-- earlier, killed collection marked are answered again.
CREATE FUNCTION claim_dead_files(p_grace_ms bigint, p_limit integer) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
    WITH dead AS (
        SELECT file_id FROM wal_files AS f
            WHERE f.status = 'deleting'
                OR (coalesce(f.committed_at, f.registered_at)
                        < clock_timestamp() - p_grace_ms * interval '1 millisecond'
                    AND NOT EXISTS (SELECT FROM batches AS b WHERE b.file_id = f.file_id))
            ORDER BY file_id LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    UPDATE wal_files AS f SET status = 'deleting' FROM dead WHERE f.file_id = dead.file_id
        RETURNING f.object_key
$$;

-- Called when the objects are gone.
CREATE FUNCTION forget_dead_files(p_keys text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_forgotten integer;
BEGIN
    DELETE FROM wal_files WHERE object_key = ANY (p_keys) AND status = 'deleting';
    GET DIAGNOSTICS v_forgotten = ROW_COUNT;
    RETURN v_forgotten;
END
$$;
