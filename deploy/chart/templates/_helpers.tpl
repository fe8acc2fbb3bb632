{{/* At most 43 characters: the name of a StatefulSet, with its component, may have 52. */}}
{{- define "lockstep.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 43 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" -}}
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
redis: {{ include "lockstep.redis" . }}
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
