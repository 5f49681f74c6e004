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
{{- /* Three quarters of the memory limit of the container, at which the kernel would kill the process. Empty: there is
no limit in Mi or Gi. */}}
{{- define "tokenweir.memory" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString -}}
{{- if regexMatch "^[0-9]+[MG]i$" $limit -}}
{{- $mebibytes := mul (regexFind "[0-9]+" $limit | int64) (hasSuffix "Gi" $limit | ternary 1024 1) -}}
{{- div (mul $mebibytes 3) 4 }}MiB
{{- end -}}
{{- end }}
{{- /* The configuration of the gateway: defaults of the chart, overridden by .Values.config. */}}
{{- define "tokenweir.config" -}}
{{- $source := dict "service" .Values.vllm.service "namespace" (.Values.vllm.namespace | default .Release.Namespace) -}}
{{- with .Values.vllm.port }}{{- $_ := set $source "port" . -}}{{- end -}}
{{- $defaults := dict "listen" "0.0.0.0:8080" "admin" "0.0.0.0:9090" "discovery" (list (dict "kubernetes" $source)) "reload" (dict "watch" true) "drain" (deepCopy .Values.drain) -}}
{{- with include "tokenweir.memory" . }}{{- $_ := set $defaults "limits" (dict "memory" .) -}}{{- end -}}
{{- if .Values.adminToken.secret -}}{{- $_ := set $defaults "access" (dict "admin_token" (dict "env" "TOKENWEIR_ADMIN_TOKEN") "unauthenticated_metrics" true) -}}{{- end -}}
{{- mergeOverwrite $defaults (deepCopy .Values.config) | toYaml -}}
{{- end }}
{{- /* The port of an address such as 0.0.0.0:8080 or [::]:8080. */}}
{{- define "tokenweir.port" -}}{{ splitList ":" . | last }}{{- end }}
{{- /* A duration such as 1m 30s in seconds. Milliseconds count as 0. */}}
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
{{- /* terminationGracePeriodSeconds: more than drain.delay and drain.timeout together. */}}
{{- define "tokenweir.grace" -}}
{{- $drain := (include "tokenweir.config" . | fromYaml).drain -}}
{{- $needed := add (include "tokenweir.seconds" $drain.delay | int64) (include "tokenweir.seconds" $drain.timeout | int64) -}}
{{- $value := .Values.terminationGracePeriodSeconds -}}
{{- if and $value (le (int64 $value) $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, and drain.delay plus drain.timeout is %d s: streams would be cut. Set a larger value, or null" (int64 $value) $needed) -}}
{{- end -}}
{{- int64 $value | default (add $needed 25) -}}
{{- end }}
