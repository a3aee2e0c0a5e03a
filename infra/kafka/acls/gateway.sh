#!/usr/bin/env bash
# The ACLs of the gateway: docs/rights.md. Made by `make docs`.
# PRINCIPAL=User:tideline-gateway bash gateway.sh --bootstrap-server HOST:PORT [--command-config FILE]
set -euo pipefail
: "${PRINCIPAL:=User:tideline-gateway}" "${KAFKA_ACLS:=kafka-acls.sh}"
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Describe --operation DescribeConfigs --cluster
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation Describe --group '*'
"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" --operation AlterConfigs --operation Delete --operation Describe --operation DescribeConfigs --operation Read --topic '*'
