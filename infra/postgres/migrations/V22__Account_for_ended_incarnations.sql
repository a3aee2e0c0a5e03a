-- An incarnation that was fenced or replaced may still run, cut off from Postgres, and pass a topic
-- through that it never heard of. Null: nobody has shown that it does not.
ALTER TABLE ended_incarnations ADD COLUMN accounted text;
ALTER TABLE ended_incarnations ADD COLUMN accounted_at timestamptz;
-- Where it was; the row of its gateway has the newest address only.
ALTER TABLE ended_incarnations ADD COLUMN address text NOT NULL DEFAULT 'an unknown address';

UPDATE ended_incarnations SET accounted = reason, accounted_at = ended_at WHERE reason = 'stopped';

CREATE INDEX ended_incarnations_unaccounted ON ended_incarnations (gateway_id)
    WHERE accounted IS NULL;
