-- Who has been idle is found without reading everybody. By the hour: an index on the time itself
-- would make every commit of a producer a new entry in each index of the table; so it does once an
-- hour. Rewrites the table.
ALTER TABLE producer_state ADD COLUMN updated_hour integer NOT NULL
    GENERATED ALWAYS AS (floor(extract(epoch FROM
        updated_at - timestamptz '1970-01-01 00:00:00+00') / 3600)::integer) STORED;

CREATE INDEX producer_state_by_hour ON producer_state (updated_hour);
