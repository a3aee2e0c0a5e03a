-- Of phases, too, it is noted that they have changed: who adds up migrations reads what changed.
-- Gateways pass over it, because no route depends on a phase.
ALTER TABLE tracking_changes ADD COLUMN routed boolean NOT NULL DEFAULT true;
