{{- define "tokenweir.name" -}}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{- end }}
{{- define "tokenweir.selector" -}}
app.kubernetes.io/name: tokenweir
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tokenweir.labels" -}}
{{ include "tokenweir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "tokenweir.config" -}}
{{- $found := dict "service" .Values.vllm.service "namespace" (.Values.vllm.namespace | default .Release.Namespace) -}}
{{- with .Values.vllm.port }}{{- $_ := set $found "port" . -}}{{- end -}}
{{- $usual := dict "listen" "0.0.0.0:8080" "admin" "0.0.0.0:9090" "discovery" (list (dict "kubernetes" $found)) "reload" (dict "watch" true) "drain" .Values.drain -}}
{{- mergeOverwrite $usual (deepCopy .Values.config) | toYaml -}}
{{- end }}
