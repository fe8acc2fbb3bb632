{{/* At most 43 characters, the last 8 a hash if that cuts the name: the name of a StatefulSet, with its component, may have 52. Names
of Services begin with a letter and have no dots, names of releases may. */}}
{{- define "lockstep.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- $full = $full | replace "." "-" | trimAll "-" -}}
{{- if gt (len $full) 43 -}}
{{- $full = printf "%s-%s" ($full | trunc 34 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" $full) -}}{{ fail (printf "set fullnameOverride: %s begins with a digit, which the name of a Service may not" $full) }}{{- end -}}
{{- $full -}}
{{- end -}}

{{/* The seconds of a duration such as 25s or 1m30s; 0 if it has other units. */}}
{{- define "lockstep.seconds" -}}
{{- $seconds := 0.0 -}}
{{- if regexMatch "^([0-9.]+(h|m|s))+$" . -}}
{{- range $unit, $of := dict "h" 3600.0 "m" 60.0 "s" 1.0 -}}
{{- range regexFindAll (printf "[0-9.]+%s" $unit) $ -1 -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) $of) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $seconds | ceil | int -}}
{{- end -}}

{{/* Fails if a process is killed before it has drained: grace, 15 s, and 5 s of a receiver's preStop. Takes {root, values, component}. */}}
{{- define "lockstep.checkTermination" -}}
{{- $grace := include "lockstep.seconds" (toString (default "25s" .root.Values.settings.grace)) | int -}}
{{- $least := add $grace 15 (eq .component "receiver" | ternary 5 0) -}}
{{- if lt (int .values.terminationGracePeriodSeconds) (int $least) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %v, which is shorter than settings.grace allows the process to drain: want %d or more" .component .values.terminationGracePeriodSeconds $least) -}}
{{- end -}}
{{- end -}}

{{/* The label that Prometheus' operator takes the job from, if the names have no lockstep in them, by which the alerts select. */}}
{{- define "lockstep.jobLabel" -}}
{{- if not (contains "lockstep" (include "lockstep.fullname" .)) -}}
jobLabel: app.kubernetes.io/name
{{- end -}}
{{- end -}}

{{/* Labels that select the Pods of this release; component is optional. Takes {root, component}. */}}
{{- define "lockstep.selector" -}}
app.kubernetes.io/name: {{ default "lockstep" .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of objects: those of the selector, and where they come from. */}}
{{- define "lockstep.labels" -}}
{{ include "lockstep.selector" . }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "lockstep.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.redis" -}}
{{- if .Values.redis.url -}}
{{- if .Values.redis.trial.enabled -}}{{ fail "redis.url and redis.trial.enabled exclude each other" }}{{- end -}}
{{ .Values.redis.url }}
{{- else -}}
redis://{{ include "lockstep.fullname" . }}-redis:6379
{{- end -}}
{{- end -}}

{{/* The content of lockstep.yaml. Whole numbers stay whole: Helm reads them as floats. */}}
{{- define "lockstep.settings" -}}
redis: {{ include "lockstep.redis" . | quote }}
{{- with .Values.redis.existingSecret }}
redis-password-file: /etc/lockstep-secrets/redis-password
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if kindIs "float64" $value }}
{{ $name }}: {{ int64 $value }}
{{- else if not (kindIs "invalid" $value) }}
{{ $name }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "lockstep.apiSecret" -}}
{{- default (printf "%s-api" (include "lockstep.fullname" .)) .Values.api.existingSecret -}}
{{- end -}}

{{- define "lockstep.claim" -}}
{{- default (printf "%s-repos" (include "lockstep.fullname" .)) .Values.volume.existingClaim -}}
{{- end -}}
