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
{{- /* What the gateway reads: what is usual, under what is configured. */}}
{{- define "tokenweir.config" -}}
{{- $found := dict "service" .Values.vllm.service "namespace" (.Values.vllm.namespace | default .Release.Namespace) -}}
{{- with .Values.vllm.port }}{{- $_ := set $found "port" . -}}{{- end -}}
{{- $usual := dict "listen" "0.0.0.0:8080" "admin" "0.0.0.0:9090" "discovery" (list (dict "kubernetes" $found)) "reload" (dict "watch" true) "drain" (deepCopy .Values.drain) -}}
{{- mergeOverwrite $usual (deepCopy .Values.config) | toYaml -}}
{{- end }}
{{- /* The port of an address such as 0.0.0.0:8080 or [::]:8080. */}}
{{- define "tokenweir.port" -}}{{ splitList ":" . | last }}{{- end }}
{{- /* How long a duration such as 1m 30s is, in whole seconds. */}}
{{- define "tokenweir.seconds" -}}
{{- $seconds := dict "ms" 0 "s" 1 "sec" 1 "m" 60 "min" 60 "h" 3600 "hour" 3600 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+ *[a-z]+" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- if not (hasKey $seconds $unit) }}{{ fail (printf "%s: write durations of drain in s, m and h" .) }}{{ end -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) (get $seconds $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}
{{- /* The time that Kubernetes gives a pod to end: more than it takes to drain. */}}
{{- define "tokenweir.grace" -}}
{{- $drain := (include "tokenweir.config" . | fromYaml).drain -}}
{{- $needed := add (include "tokenweir.seconds" $drain.delay | int64) (include "tokenweir.seconds" $drain.timeout | int64) -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if and $given (le (int64 $given) $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, and drain takes %d s: streams would be cut. Give more, or null" (int64 $given) $needed) -}}
{{- end -}}
{{- int64 $given | default (add $needed 25) -}}
{{- end }}
