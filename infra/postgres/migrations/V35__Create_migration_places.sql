-- Topics whose migration has a place or waits for one, over all triggers. A topic is here before it is
-- tracked, so nothing is referenced.
CREATE TABLE migration_places (
    topic_id uuid PRIMARY KEY,
    topic text NOT NULL,
    -- The first run of the workflow that asked: the fence of who gives the place back.
    run text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    taken_at timestamptz,
    -- When whoever has it was last heard of, or looked for.
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
