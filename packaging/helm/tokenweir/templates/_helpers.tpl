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
no limit. */}}
{{- define "tokenweir.memory" -}}
{{- $limit := dig "limits" "memory" "" (.Values.resources | default dict) | toString -}}
{{- if $limit -}}
{{- $bytes := dict "" 1 "k" 1e3 "Ki" 1024 "M" 1e6 "Mi" 1048576 "G" 1e9 "Gi" 1073741824 "T" 1e12 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" $limit -}}
{{- if not (and (hasKey $bytes $unit) (regexMatch "^[0-9]+([.][0-9]+)?(e[+]?[0-9]+)?[A-Za-z]*$" $limit)) -}}
{{- fail (printf "resources.limits.memory is %s: write a quantity such as 1536Mi or 2G" $limit) -}}
{{- end -}}
{{- divf (mulf (trimSuffix $unit $limit | float64) (get $bytes $unit) 0.75) 1048576 | int64 }}MiB
{{- end -}}
{{- end }}
{{- /* The configuration of the gateway: defaults of the chart, overridden by .Values.config. */}}
{{- define "tokenweir.config" -}}
{{- $source := dict "namespace" (.Values.vllm.namespace | default .Release.Namespace) -}}
{{- if .Values.vllm.pool }}{{- $_ := set $source "pool" .Values.vllm.pool -}}{{- else -}}
{{- $_ := set $source "service" .Values.vllm.service -}}
{{- with .Values.vllm.port }}{{- $_ := set $source "port" . -}}{{- end -}}{{- end -}}
{{- $defaults := dict "listen" "0.0.0.0:8080" "admin" "0.0.0.0:9090" "discovery" (list (dict "kubernetes" $source)) "reload" (dict "watch" true) "drain" (deepCopy .Values.drain) -}}
{{- with include "tokenweir.memory" . }}{{- $_ := set $defaults "limits" (dict "memory" .) -}}{{- end -}}
{{- if include "tokenweir.adminSecret" . -}}{{- $_ := set $defaults "access" (dict "admin_token" (dict "env" "TOKENWEIR_ADMIN_TOKEN") "unauthenticated_metrics" true) -}}{{- end -}}
{{- $config := mergeOverwrite $defaults (deepCopy (.Values.config | default dict)) -}}
{{- range $key := list "listen" "admin" }}{{- $address := get $config $key -}}
{{- if regexMatch "^(localhost|127[.].*|\\[::1\\]):" $address -}}
{{- fail (printf "config.%s is %s: other pods, probes and Prometheus cannot reach loopback. Write 0.0.0.0:PORT" $key $address) -}}
{{- else if not (regexMatch ":[0-9]+$" $address) -}}
{{- fail (printf "config.%s is %s: write 0.0.0.0:PORT" $key $address) -}}
{{- end -}}{{- end -}}
{{- $config | toYaml -}}
{{- end }}
{{- /* The Secret with the admin token. Empty: the chart sets no token. */}}
{{- define "tokenweir.adminSecret" -}}
{{- $token := .Values.adminToken | default dict -}}
{{- if $token.secret -}}{{ $token.secret }}
{{- else if and $token.create (not (dig "access" "admin_token" "" (.Values.config | default dict))) -}}{{ include "tokenweir.name" . }}-admin
{{- end -}}
{{- end }}
{{- /* A checksum of the values that a reload does not apply: a change of them replaces the pods. */}}
{{- define "tokenweir.restartChecksum" -}}
{{- $config := include "tokenweir.config" . | fromYaml -}}
{{- $fixed := omit $config "backends" "canary" "discovery" "models" "routes" "admission" "retry" "circuit_breaker" "streams" "timeouts" "scrape" "sleep" "usage" "continuous_usage" "stalls" "slow" "refusal_detection" "tiers" "cost" "gpu" "webhooks" "sessions" "identities" "drain" "reload" "routing" -}}
{{- list $fixed (dig "routing" "decision_log_size" "" $config) | toJson | sha256sum -}}
{{- end }}
{{- /* The port of an address such as 0.0.0.0:8080 or [::]:8080. */}}
{{- define "tokenweir.port" -}}{{ splitList ":" . | last }}{{- end }}
{{- /* A duration such as 1m 30s in seconds. Milliseconds count as 0. */}}
{{- define "tokenweir.seconds" -}}
{{- $seconds := dict "ms" 0 "s" 1 "sec" 1 "m" 60 "min" 60 "h" 3600 "hour" 3600 -}}
{{- $sum := 0 -}}
{{- if not (regexMatch "^ *([0-9]+ *[a-z]+ *)+$" .) }}{{ fail (printf "%s: write durations of drain in s, m and h" .) }}{{ end -}}
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
