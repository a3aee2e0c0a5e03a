-- The embedded catalog of the Iceberg tables that runs of the jobs tell, as every JDBC catalog of
-- Iceberg has it; and what the newest run of each job knows of rows that it could not tell.
CREATE TABLE tideline_records.iceberg_tables (
    catalog_name varchar(255) NOT NULL,
    table_namespace varchar(255) NOT NULL,
    table_name varchar(255) NOT NULL,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);

CREATE TABLE tideline_records.iceberg_namespace_properties (
    catalog_name varchar(255) NOT NULL,
    namespace varchar(255) NOT NULL,
    property_key varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);

ALTER TABLE job_attempts
    ADD COLUMN records_overdue_since timestamptz,
    ADD COLUMN records_lost bigint NOT NULL DEFAULT 0;
