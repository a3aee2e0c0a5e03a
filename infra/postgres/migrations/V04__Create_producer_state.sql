-- Idempotent producer state: one row per producer, its last five batches in parallel arrays,
-- oldest first (Kafka: ProducerStateEntry). One row makes a commit a single heap-only update.
CREATE TABLE producer_state (
    log_id bigint NOT NULL,
    producer_id bigint NOT NULL CHECK (producer_id >= 0),
    producer_epoch integer NOT NULL,
    base_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    append_times bigint[] NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (log_id, producer_id)
) WITH (fillfactor = 50);

-- Position of the remembered batch with exactly these sequences and epoch, or NULL.
CREATE FUNCTION duplicate_position(
    p_state producer_state, p_epoch integer, p_base_sequence integer, p_last_sequence integer
) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_state.producer_epoch = p_epoch THEN
        FOR i IN 1 .. cardinality(p_state.base_sequences) LOOP
            IF p_state.base_sequences[i] = p_base_sequence
                AND p_state.last_sequences[i] = p_last_sequence THEN
                RETURN i;
            END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

-- tideline/domain/producer_state.py in SQL: NONE, DUPLICATE, OUT_OF_ORDER_SEQUENCE or
-- INVALID_PRODUCER_EPOCH. A state with a null producer_id is no state.
CREATE FUNCTION judge_batch(
    p_state producer_state, p_epoch integer, p_base_sequence integer, p_last_sequence integer
) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_last integer;
BEGIN
    IF p_state.producer_id IS NULL THEN
        RETURN 'NONE';
    ELSIF p_epoch < p_state.producer_epoch THEN
        RETURN 'INVALID_PRODUCER_EPOCH';
    ELSIF p_epoch > p_state.producer_epoch THEN
        RETURN CASE WHEN p_base_sequence = 0 THEN 'NONE' ELSE 'OUT_OF_ORDER_SEQUENCE' END;
    ELSIF duplicate_position(p_state, p_epoch, p_base_sequence, p_last_sequence) IS NOT NULL THEN
        RETURN 'DUPLICATE';
    END IF;
    v_last := p_state.last_sequences[cardinality(p_state.last_sequences)];
    IF p_base_sequence = (CASE WHEN v_last = 2147483647 THEN 0 ELSE v_last + 1 END) THEN
        RETURN 'NONE';
    END IF;
    RETURN 'OUT_OF_ORDER_SEQUENCE';
END
$$;

-- A producer that was idle for producer.id.expiration.ms is forgotten and then treated as one
-- without state (schedule 21). Called by a periodic job; at most p_limit rows at a time.
CREATE FUNCTION expire_producers(p_idle_ms bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tideline, pg_temp AS $$
DECLARE
    v_expired integer;
BEGIN
    DELETE FROM producer_state AS p USING (
        SELECT log_id, producer_id FROM producer_state
            WHERE updated_at <= clock_timestamp() - p_idle_ms * interval '1 millisecond'
            LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS idle
    WHERE p.log_id = idle.log_id AND p.producer_id = idle.producer_id;
    GET DIAGNOSTICS v_expired = ROW_COUNT;
    RETURN v_expired;
END
$$;
