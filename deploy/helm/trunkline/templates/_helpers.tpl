{{- define "trunkline.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "trunkline.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "trunkline.selector" -}}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "trunkline.scheme" -}}
{{- if eq .Values.tls.mode "terminated" }}http{{ else }}https{{ end -}}
{{- end -}}

{{- define "trunkline.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- required "tls.mode secret needs tls.secretName" .Values.tls.secretName -}}
{{- else -}}
{{ include "trunkline.name" . }}-tls
{{- end -}}
{{- end -}}

{{- /* Who signed the gateways' certificate, as a volume's source; nothing for a public authority. */ -}}
{{- define "trunkline.caVolume" -}}
{{- $ca := .Values.tls.ca -}}
{{- if eq .Values.tls.mode "generated" -}}
configMap: {name: {{ include "trunkline.name" . }}-ca}
{{- else if and (eq $ca.kind "ConfigMap") $ca.name -}}
configMap: {name: {{ $ca.name }}, items: [{key: {{ $ca.key }}, path: ca.crt}]}
{{- else if $ca.name -}}
secret: {secretName: {{ $ca.name }}, defaultMode: 0444, items: [{key: {{ $ca.key }}, path: ca.crt}]}
{{- end -}}
{{- end -}}

{{- /* The same as a selector of one key, with its kind. */ -}}
{{- define "trunkline.caKey" -}}
{{- if eq .Values.tls.mode "generated" -}}
{{- dict "kind" "ConfigMap" "name" (printf "%s-ca" (include "trunkline.name" .)) "key" "ca.crt" | toJson -}}
{{- else if .Values.tls.ca.name -}}
{{- .Values.tls.ca | toJson -}}
{{- end -}}
{{- end -}}

{{- define "trunkline.serviceHost" -}}
{{ include "trunkline.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "trunkline.kedaHost" -}}
{{ include "trunkline.name" . }}-keda.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "trunkline.clusterKeySecret" -}}
{{- default (printf "%s-cluster-key" (include "trunkline.name" .)) .Values.store.clusterKeySecret.name -}}
{{- end -}}

{{- define "trunkline.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "trunkline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}
