{{- define "tideline.name" -}}
{{- .Values.fullnameOverride | default (printf "%s-%s" .Release.Name (.Values.nameOverride | default .Chart.Name)) | trunc 40 | trimSuffix "-" -}}
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

{{- define "tideline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tideline.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "tideline.image" -}}
{{- $image := index .root.Values.images .role -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- /* What clients are told of one broker: `advertised`, else the Service of its gateway. */ -}}
{{- define "tideline.advertised" -}}
{{- .broker.advertised | default (printf "%s-gateway-%d.%s.svc:%d" (include "tideline.name" .root) (int .broker.id) .root.Release.Namespace (int .root.Values.gateway.port)) -}}
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
gateway_peers = {{ include "tideline.peers" . | quote }}
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

{{- /* Secrets as files of one directory: a list of [value of `secrets`, name of the file]. */ -}}
{{- define "tideline.secretFiles" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- range .files }}
    {{- $ref := index $.root.Values.secrets (first .) }}
    {{- if $ref.name }}
    - secret:
        name: {{ $ref.name }}
        items:
        - {key: {{ $ref.key | quote }}, path: {{ last . }}}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "tideline.s3Environment" -}}
{{- if .Values.secrets.s3AccessKey.name }}
- {name: TIDELINE_S3_ACCESS_KEY_FILE, value: /etc/tideline/secrets/s3-access-key}
- {name: TIDELINE_S3_SECRET_KEY_FILE, value: /etc/tideline/secrets/s3-secret-key}
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
