-- Who reads objects for long: what died after pinned_at is collected once nobody holds such a pin.
CREATE TABLE read_pins (
    pin_id uuid PRIMARY KEY,
    reader text NOT NULL,
    pinned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

-- What the last verification of a topic found: the table from object storage beside what gateways
-- serve.
CREATE TABLE verify_verdicts (
    topic_id uuid PRIMARY KEY,
    run_id uuid NOT NULL,
    verified_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sample double precision NOT NULL CHECK (sample > 0 AND sample <= 1),
    ranges bigint NOT NULL,
    records bigint NOT NULL,
    byte_count bigint NOT NULL,
    differences bigint NOT NULL,
    detail jsonb NOT NULL DEFAULT '[]'
);
