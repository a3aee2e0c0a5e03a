-- Up to this sequence batches of the epoch were appended whose offsets are not known: below B0, where
-- retention had taken them or they lay too far back, or before a rebuild. Null: there are none.
ALTER TABLE producer_state ADD COLUMN unlocated_sequence integer;
