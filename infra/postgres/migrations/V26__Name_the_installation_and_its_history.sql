-- Which installation of Tideline the rows belong to, and which history of commits. One row, made
-- here: a database that is made anew is another installation.
CREATE TABLE installation (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    installation_id uuid NOT NULL DEFAULT gen_random_uuid(),
    history_id uuid NOT NULL DEFAULT gen_random_uuid(),
    cluster_id text CHECK (cluster_id <> ''),
    halted text CHECK (halted <> '')
);

INSERT INTO installation DEFAULT VALUES;

-- Histories that an operator began after commits were lost; the first one has no row.
CREATE TABLE histories (
    history_id uuid PRIMARY KEY,
    before_id uuid NOT NULL,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_by text NOT NULL CHECK (begun_by <> ''),
    reason text NOT NULL CHECK (reason <> '')
);

-- Proof that nothing was taken back: who has seen a beat finds its token here again.
CREATE TABLE history_beats (
    beat bigint PRIMARY KEY,
    token uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO history_beats (beat) VALUES (1);
