CREATE TABLE gateways (
    gateway_id integer PRIMARY KEY CHECK (gateway_id >= 0),
    broker_id integer NOT NULL,
    incarnation uuid NOT NULL,
    status text NOT NULL CHECK (status IN ('active', 'fenced', 'retired')),
    -- A waiter times by its own clock how long this stays unchanged (schedule 15).
    renewals bigint NOT NULL DEFAULT 0,
    lease_ms integer NOT NULL CHECK (lease_ms > 0),
    address text NOT NULL,
    version text NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Why it was fenced, or who attested that a retired one is cut off.
    status_reason text
) WITH (fillfactor = 50);

-- Incarnations that may never act again.
CREATE TABLE ended_incarnations (
    incarnation uuid PRIMARY KEY,
    gateway_id integer NOT NULL,
    reason text NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
