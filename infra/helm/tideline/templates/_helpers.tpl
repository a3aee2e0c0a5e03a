{{- define "tideline.name" -}}
{{- $own := .Values.nameOverride | default .Chart.Name -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $own) (contains $own .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tideline.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "tideline.selector" . }}
{{- end -}}

{{- define "tideline.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Of a `role`. */ -}}
{{- define "tideline.serviceAccount" -}}
{{- $given := .root.Values.serviceAccount -}}
{{- if and $given.create $given.name (not (contains "{role}" $given.name)) -}}
{{- fail "serviceAccount.name has no {role}, and gateways and workers get one each: add it, or leave the name out" -}}
{{- end -}}
{{- $own := ternary (printf "%s-{role}" (include "tideline.name" .root)) "default" $given.create -}}
{{- include "tideline.filled" (dict "text" ($given.name | default $own) "of" .) -}}
{{- end -}}

{{- define "tideline.image" -}}
{{- $image := index .root.Values.images .role -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- /* What clients are told of one broker: `advertised`, else the Service of its gateway. */ -}}
{{- define "tideline.advertised" -}}
{{- .broker.advertised | default (printf "%s-gateway-%d.%s.svc:%d" (include "tideline.name" .root) (int .broker.id) .root.Release.Namespace (int .root.Values.gateway.port)) -}}
{{- end -}}

{{- /* Where the other gateways stand in for the one of a broker. */ -}}
{{- define "tideline.standInPort" -}}
{{- $port := add .root.Values.gateway.standInBasePort .broker.id | int -}}
{{- if or (gt $port 65535) (has $port (list (int .root.Values.gateway.port) (int .root.Values.gateway.metricsPort))) -}}
{{- fail (printf "gateway.standInBasePort and the id of broker %d are %d, which is another port of gateways or none: choose another standInBasePort" (int .broker.id) $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}

{{- define "tideline.standIns" -}}
{{- $found := list -}}
{{- $root := . -}}
{{- range .Values.kafka.brokers -}}
{{- $found = append $found (printf "%d=0.0.0.0:%s" (int .id) (include "tideline.standInPort" (dict "root" $root "broker" .))) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{- define "tideline.bootstrap" -}}
{{- $found := list -}}
{{- range .Values.kafka.brokers -}}{{- $found = append $found .address -}}{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{- define "tideline.peers" -}}
{{- $found := list -}}
{{- $root := . -}}
{{- range .Values.kafka.brokers -}}
{{- $found = append $found (printf "%d=%s" (int .id) (include "tideline.advertised" (dict "root" $root "broker" .))) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{- /* The settings file that all processes share, without secrets. */ -}}
{{- define "tideline.toml" -}}
kafka_bootstrap = {{ include "tideline.bootstrap" . | quote }}
kafka_security_protocol = {{ .Values.kafka.securityProtocol | quote }}
{{- if hasPrefix "SASL" .Values.kafka.securityProtocol }}
kafka_sasl_mechanism = {{ .Values.kafka.saslMechanism | quote }}
{{- end }}
gateway_peers = {{ include "tideline.peers" . | quote }}
gateway_security_protocol = {{ .Values.gateway.securityProtocol | quote }}
{{- if .Values.gateway.standInBasePort }}
gateway_stand_in = {{ include "tideline.standIns" . | quote }}
{{- end }}
temporal_address = {{ .Values.temporal.address | quote }}
temporal_namespace = {{ .Values.temporal.namespace | quote }}
{{- with .Values.s3 }}
{{- if .endpoint }}
s3_endpoint = {{ .endpoint | quote }}
{{- end }}
s3_region = {{ .region | quote }}
s3_bucket = {{ .bucket | quote }}
{{- if .prefix }}
s3_prefix = {{ .prefix | quote }}
{{- end }}
s3_tiered_bucket = {{ .tieredBucket | quote }}
{{- if .tieredPrefix }}
s3_tiered_prefix = {{ .tieredPrefix | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{ $name }} = {{ if kindIs "string" $value }}{{ $value | quote }}{{ else if kindIs "bool" $value }}{{ $value }}{{ else }}{{ int64 $value }}{{ end }}
{{- end }}
{{- end -}}

{{- /* The files of a process with a `role`: value of `secrets`, name of the file, what names it. */ -}}
{{- define "tideline.files" -}}
{{- if eq .role "gateway" }}
- [gatewayPostgresDsn, postgres-dsn, TIDELINE_POSTGRES_DSN_FILE]
- [gatewayCertificate, gateway.pem, TIDELINE_GATEWAY_SSL_CERTIFICATE_FILE]
- [gatewayKey, gateway.key, TIDELINE_GATEWAY_SSL_KEY_FILE]
- [clientAuthority, clients-ca.pem, TIDELINE_GATEWAY_SSL_CA_FILE]
{{- else if eq .role "worker" }}
- [workerPostgresDsn, postgres-dsn, TIDELINE_POSTGRES_DSN_FILE]
- [temporalConfig, temporal.toml, TEMPORAL_CONFIG_FILE]
{{- else if eq .role "schema" }}
- [ownerPostgresDsn, owner-postgres-dsn, TIDELINE_SCHEMA_POSTGRES_DSN_FILE]
- [gatewayPasswords, gateway-passwords, TIDELINE_SCHEMA_GATEWAY_PASSWORDS_FILE]
- [workerPassword, worker-password, TIDELINE_SCHEMA_WORKER_PASSWORD_FILE]
- [jobsPassword, jobs-password, TIDELINE_SCHEMA_JOBS_PASSWORD_FILE]
{{- end }}
{{- if ne .role "schema" }}
- [s3AccessKey, s3-access-key, TIDELINE_S3_ACCESS_KEY_FILE]
- [s3SecretKey, s3-secret-key, TIDELINE_S3_SECRET_KEY_FILE]
- [s3Authority, s3-ca.pem, TIDELINE_S3_CA_FILE]
- [kafkaPassword, kafka-password, TIDELINE_KAFKA_SASL_PASSWORD_FILE]
- [kafkaAuthority, kafka-ca.pem, TIDELINE_KAFKA_SSL_CA_FILE]
- [kafkaCertificate, kafka.pem, TIDELINE_KAFKA_SSL_CERTIFICATE_FILE]
- [kafkaKey, kafka.key, TIDELINE_KAFKA_SSL_KEY_FILE]
{{- end }}
{{- if ne .role "jobs" }}
- [postgresAuthority, postgres-ca.pem, PGSSLROOTCERT]
{{- end }}
{{- end -}}

{{- /* Those of them that the values name, as one volume; `id`: of a gateway's broker. */ -}}
{{- define "tideline.secretFiles" -}}
{{- $of := . -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- range $file := include "tideline.files" . | fromYamlArray }}
    {{- $secret := index $of.root.Values.secrets (first $file) }}
    {{- if $secret.name }}
    - secret:
        name: {{ include "tideline.filled" (dict "text" $secret.name "of" $of) | quote }}
        items:
        - {key: {{ include "tideline.filled" (dict "text" $secret.key "of" $of) | quote }}, path: {{ index $file 1 }}}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "tideline.filled" -}}
{{- $text := .text | replace "{role}" .of.role -}}
{{- if hasKey .of "id" }}{{ $text = replace "{id}" (toString .of.id) $text }}{{ end -}}
{{- $text -}}
{{- end -}}

{{- /* The settings that name those files, and who the process is at the brokers. */ -}}
{{- define "tideline.secretEnvironment" -}}
{{- $of := . -}}
{{- range include "tideline.files" . | fromYamlArray }}
{{- if (index $of.root.Values.secrets (first .)).name }}
- {name: {{ last . }}, value: /etc/tideline/secrets/{{ index . 1 }}}
{{- end }}
{{- end }}
{{- if .root.Values.secrets.postgresAuthority.name }}
- {name: PGSSLMODE, value: verify-full}
{{- end }}
{{- if and (ne .role "schema") (hasPrefix "SASL" .root.Values.kafka.securityProtocol) }}
- {name: TIDELINE_KAFKA_SASL_USERNAME, value: {{ include "tideline.filled" (dict "text" .root.Values.kafka.user "of" .) | quote }}}
{{- end }}
{{- end -}}

{{- define "tideline.environment" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "tideline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tideline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
