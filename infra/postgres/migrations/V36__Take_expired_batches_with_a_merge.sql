-- As V26's, and also deletes the rows of the same split files that have expired before the range:
-- prune_batches may not have been there yet, and such a row would keep its file for as long as
-- retention does not reach the file's end.
CREATE OR REPLACE FUNCTION take_merged_batches(
    p_log_id bigint, p_base_offset bigint, p_last_offset bigint,
    OUT batches bigint, OUT first bigint, OUT last bigint, OUT offsets bigint, OUT bytes bigint,
    OUT all_split boolean, OUT split_ids bigint[]
)
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM batches
            WHERE log_id = p_log_id AND last_offset BETWEEN p_base_offset AND p_last_offset
            RETURNING base_offset, last_offset, byte_size, split_id
    ), expired AS (
        DELETE FROM batches AS b USING split_files AS f, logs AS l
            WHERE f.split_id IN (SELECT split_id FROM gone) AND l.log_id = p_log_id
                AND b.log_id = p_log_id
                AND b.last_offset BETWEEN f.base_offset AND p_base_offset - 1
                AND b.last_offset < l.suffix_start
    )
    SELECT count(*), min(base_offset), max(last_offset),
           sum(last_offset - base_offset + 1)::bigint, sum(byte_size)::bigint,
           bool_and(split_id IS NOT NULL), array_agg(DISTINCT split_id)
    FROM gone
$$;
