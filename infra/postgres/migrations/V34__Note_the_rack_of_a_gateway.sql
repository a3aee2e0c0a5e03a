-- Gateways lead clients to one that is near them. Null: as its broker's broker.rack says.
ALTER TABLE gateways ADD COLUMN rack text CHECK (rack <> '');
