-- No topic starts to migrate before every gateway has acknowledged that it tracks it.
CREATE TABLE tracking_acks (
    topic_key bigint NOT NULL REFERENCES topics (topic_key),
    gateway_id integer NOT NULL REFERENCES gateways (gateway_id),
    incarnation uuid NOT NULL,
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_key, gateway_id)
);

-- What each gateway had relayed when it stopped forwarding for a closed generation (schedule 14).
CREATE TABLE quiesce_acks (
    log_id bigint NOT NULL REFERENCES logs (log_id),
    generation integer NOT NULL,
    gateway_id integer NOT NULL REFERENCES gateways (gateway_id),
    incarnation uuid NOT NULL,
    highest_acknowledged_offset bigint NOT NULL,
    read_ceiling bigint NOT NULL,
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (log_id, generation, gateway_id, incarnation)
);
