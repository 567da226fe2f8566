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

{{- define "trunkline.serviceHost" -}}
{{ include "trunkline.name" . }}.{{ .Release.Namespace }}.svc
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
