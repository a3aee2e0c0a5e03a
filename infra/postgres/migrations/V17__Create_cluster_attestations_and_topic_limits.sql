-- An operator's word that clients reach the brokers of a Kafka cluster only through gateways. Rows
-- stay when the word is withdrawn: who said what, and when, is the record.
CREATE TABLE cluster_attestations (
    attestation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id text NOT NULL CHECK (cluster_id <> ''),
    attested_by text NOT NULL CHECK (attested_by <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    attested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    withdrawn_by text,
    withdrawn_reason text,
    withdrawn_at timestamptz,
    CONSTRAINT withdrawn_by_somebody_for_a_reason CHECK (
        (withdrawn_at IS NULL) = (withdrawn_by IS NULL)
        AND (withdrawn_at IS NULL) = (withdrawn_reason IS NULL)
        AND withdrawn_by <> '' AND withdrawn_reason <> '')
);

CREATE UNIQUE INDEX cluster_attestations_in_force ON cluster_attestations (cluster_id)
    WHERE withdrawn_at IS NULL;

-- Kafka's own defaults (message.timestamp.before.max.ms, message.timestamp.after.max.ms), in ms.
ALTER TABLE topics
    ADD COLUMN timestamp_before_max_ms bigint NOT NULL DEFAULT 9223372036854775807
        CHECK (timestamp_before_max_ms >= 0),
    ADD COLUMN timestamp_after_max_ms bigint NOT NULL DEFAULT 3600000
        CHECK (timestamp_after_max_ms >= 0);
