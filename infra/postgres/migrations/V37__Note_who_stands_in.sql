-- While a gateway is away another one answers for its broker, and every gateway has to know where.
ALTER TABLE gateways
    -- node=host:port, comma separated: where clients reach the brokers of other gateways through
    -- this one, while those are away. Null: nowhere.
    ADD COLUMN stand_ins text,
    -- Whether it accepts connections. Null: it is of a version that does not say.
    ADD COLUMN serving boolean;
