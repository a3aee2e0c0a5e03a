-- A topic born diskless is created by a gateway with its classic log sealed: the gateway records
-- that config as held, with the user's own value beside it.
GRANT EXECUTE ON FUNCTION override_config TO tideline_gateway_rights;
